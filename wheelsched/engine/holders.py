"""Who holds a lease: the worker that it was granted to, and after a reconnect whoever proves to be that worker.

A lease is granted to a connection. When that is lost, another connection of the same user goes on with what it held if its hello has the
same secret; a worker that tells none is known by its user alone, and only while the connection that it had is gone. To all others its
runs are stale, whatever token they know.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.errors import InvalidArgumentError
from ..state.nouns import ANYBODY
from ..tables._runs import NO_ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .connected import Session
    from .core import Core

HELD: Final = 1
STALE: Final = 2
_OTHERS: Final = 4
SECRET_MIN: Final = 16
SECRET_MAX: Final = 64


def proof_of(secret: Any) -> bytes:
    """What is kept of the secret of a hello; empty when it has none. InvalidArgumentError when it is none."""
    if secret is None:
        return b""
    if not isinstance(secret, bytes) or not SECRET_MIN <= len(secret) <= SECRET_MAX:
        raise InvalidArgumentError(f"hello: secret is a bin of {SECRET_MIN} to {SECRET_MAX} random bytes is wanted")
    return blake2b(secret, digest_size=16, person=b"wheelsched").digest()


def held(core: Core, session: Session, ids: bytes, token: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """(rows, verdict) of runs that a worker speaks of: 1 it holds them, 2 stale, 3 ended under that very token. The row of a run that
    another one holds under that token is none: nothing is kept of what is said about it.
    """
    rows, verdict = core.state.runs.held(ids, token, session.worker)
    others = np.flatnonzero(verdict == _OTHERS)
    if not len(others):
        return rows, verdict
    owners = core.state.runs.gather(rows[others])["worker"]
    mine = np.isin(owners, [worker for worker in np.unique(owners).tolist() if _succeeds(core, session, worker)])
    verdict[others] = np.where(mine, HELD, STALE)
    rows[others[~mine]] = NO_ROW
    return rows, verdict


def _succeeds(core: Core, session: Session, worker: int) -> bool:
    """Does a session go on with what another worker held?"""
    before = core.state.workers[worker]
    if before.kind != "external" or session.kind != "external" or before.proof != session.proof or before.uid not in (ANYBODY, session.uid):
        return False
    return bool(session.proof) or worker in core.gone


__all__ = ["held", "proof_of"]
