"""What a put would change of a job that is there: one answer for `put`, `apply` and its plan. Pure; nothing is recorded."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..model.nouns import NEVER, JobState
from ..protocol.definition import SERVER_KEYS

if TYPE_CHECKING:
    from ..engine.core import Core

_SHOWN_PAYLOAD_MAX: Final = 4_096  # larger ones are told by their size and a hash


class Wanted(NamedTuple):
    """What a job is to be. An empty note and a pause of None leave what is there."""

    wire: dict[str, Any]  # its resolved definition
    param: int
    payload: bytes
    note: str
    paused: bool | None


def difference(core: Core, row: int, wanted: Wanted) -> dict[str, dict[str, Any]]:
    """{old, new}: what a job is and is to be, both with just the keys that differ."""
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    before = core.state.specs[int(fields["spec"])]
    old = {k: v for k, v in before.items() if k not in SERVER_KEYS}
    new = {k: v for k, v in wanted.wire.items() if k not in SERVER_KEYS}
    was = int(fields["param_us"])
    if old["schedule"]["kind"] == "at":
        old["param_us"] = was
    if new["schedule"]["kind"] == "at":
        new["param_us"] = wanted.param
    elif new["schedule"]["kind"] == "every" and wanted.param not in (NEVER, was):
        old["param_us"], new["param_us"] = was, wanted.param
    had = core.state.notes.get(row, "")
    old["note"], new["note"] = had, wanted.note or had
    was_paused = bool(fields["state"] == JobState.PAUSED)
    old["paused"], new["paused"] = was_paused, was_paused if wanted.paused is None else wanted.paused
    sides = _differing(old, new)
    payloads = {"old": core.state.jobs.payload(row), "new": wanted.payload}
    if payloads["old"] != payloads["new"]:  # shown also when they differ in nothing but what is redacted
        for side, payload in payloads.items():
            sides[side]["payload"] = _shown(core.redaction.shown(payload, core.state.announced, before, wanted.wire))
    return sides


def _shown(payload: bytes) -> bytes | str:
    if len(payload) <= _SHOWN_PAYLOAD_MAX:
        return payload
    return f"{len(payload)} bytes, {blake2b(payload, digest_size=6, person=b'wheelsched.diff').hexdigest()}"


def _differing(old: dict[str, Any], new: dict[str, Any]) -> dict[str, dict[str, Any]]:
    keys = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    return {"old": {k: old.get(k) for k in keys}, "new": {k: new.get(k) for k in keys}}
