"""What the operator allows the built-in tasks: the parent of executors checks it and hands it down as text."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator allows the built-in tasks; it travels to an executor as text. No secret is in it."""

    commands: bool = False
    http: bool = False
    env: tuple[str, ...] = ()  # names or globs of environment variables that commands get beside the usual ones
    http_nets: tuple[str, ...] = ()  # networks that are not public and that `http` may connect to all the same
    http_secret_file: str = ""  # keys that requests are signed with; read at each request, so that a change needs no restart
    http_ca_file: str = ""  # certificates to trust beside the system's
    socket: str = ""  # of the server, for commands that are clients too

    def check(self) -> None:
        """ConfigError for networks and files that can't be used: better at a start than at the first request."""
        networks(self.http_nets)
        if self.http_secret_file:
            read_secrets(self.http_secret_file)
        if self.http_ca_file:
            check_ca_file(self.http_ca_file)

    def to_text(self) -> str:
        """One line; what is as it is by default is left out."""
        return json.dumps({key: value for key, value in asdict(self).items() if value})

    @classmethod
    def from_text(cls, text: str) -> Allowed:
        """The same again."""
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(text).items()}
        return cls(**values)


def read_secrets(path: str) -> list[bytes]:
    """The keys of a file, one a line as whsec_ and base64, the newest first; # begins a comment. ConfigError."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"http_secret_file {path}: {getattr(e, 'strerror', None) or 'it is no text of keys'}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            key = b""
        if not text.startswith("whsec_") or not 24 <= len(key) <= 64:
            raise ConfigError(f"http_secret_file {path}: line {number} is no key: whsec_ and the base64 of 24 to 64 bytes is wanted")
        keys.append(key)
    if not keys:
        raise ConfigError(f"http_secret_file {path}: there is no key in it")
    return keys


def check_ca_file(path: str) -> None:
    """ConfigError for a file without certificates."""
    import ssl  # noqa: PLC0415 - for those who name one, and executors start often

    try:
        ssl.create_default_context().load_verify_locations(path)
    except (OSError, ValueError) as e:
        raise ConfigError(f"http_ca_file {path}: certificates in PEM form are wanted: {e}") from None


def networks(texts: Iterable[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Networks as the operator writes them: 10.0.0.0/8, 127.0.0.1, fd00::/8. ConfigError for any other text."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as e:
            raise ConfigError(f"http_allow_net: {text[:100]!r} is no network, such as 10.0.0.0/8 or 127.0.0.1: {e}") from None
    return tuple(found)
