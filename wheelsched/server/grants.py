"""Which roles a peer has: the operator's grants, with names looked up when the server starts."""

from __future__ import annotations

import grp
import os
import pwd
from typing import TYPE_CHECKING

from ..model.errors import ConfigError
from ..model.nouns import OPEN_ROLES, ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Grants:
    """Role -> users and groups. The server's own user and root have every role."""

    def __init__(self, roles: Mapping[str, Sequence[str]], *, shared: bool = False) -> None:
        """`roles`: names or numbers of users, of groups with a % before. ConfigError for those that there aren't on this machine.
        `shared`: others than the server's own user may open the socket; then `worker` is nobody's until somebody is named.
        """
        self._open = {role for role in OPEN_ROLES if not (shared and role == "worker")}
        self._users: dict[str, set[int]] = {}
        self._groups: dict[str, set[int]] = {}
        for role, names in roles.items():
            self._users[role] = {_user(role, name) for name in names if not name.startswith("%")}
            self._groups[role] = {_group(role, name[1:]) for name in names if name.startswith("%")}

    def roles(self, uid: int, gids: Collection[int]) -> frozenset[str]:
        """The roles of a peer."""
        if uid in (0, os.geteuid()):
            return frozenset(ROLES)
        return frozenset(role for role in ROLES if self._has(role, uid, gids))

    def _has(self, role: str, uid: int, gids: Collection[int]) -> bool:
        if role not in self._users:
            return role in self._open
        return uid in self._users[role] or not self._groups[role].isdisjoint(gids)


def _user(role: str, name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(f"role {role}: there is no user {name!r} on this machine; a group is written %{name}") from None


def _group(role: str, name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"role {role}: there is no group {name!r} on this machine") from None
