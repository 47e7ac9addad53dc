"""How long the names of runs are remembered: idempotency keys and identities (see `verbs/enqueue.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..model.nouns import KEY_TTL_US, RunState
from ..state.nouns import IDENTITY

if TYPE_CHECKING:
    from ..state.nouns import Key
    from .core import Core


def _state(core: Core, run_id: bytes) -> RunState:
    """Of a run; one that is in history has ended, whichever way."""
    row = core.state.find_run(run_id)
    return RunState.SUCCEEDED if row is None else RunState(int(core.state.runs.gather(np.array([row], np.uint32))["state"][0]))


def is_over(core: Core, key: bytes, value: Key, elapsed_us: int) -> bool:
    """Whether a name may be forgotten: a key after its time, when its run is final too; an identity when no run may hold it again."""
    if key.startswith(IDENTITY):
        return not value.holders(core.state.runs, may=True)
    return core.state.elapsed.read(value.at_us) + KEY_TTL_US < elapsed_us and _state(core, value.run_id) > RunState.RETRY_WAIT
