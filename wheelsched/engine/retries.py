"""What a failure leads to: another attempt and when, or none. Per definition, and per error where it has rules for them."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model import plain
from ..model.errors import InvalidArgumentError
from ..model.nouns import DELAY_MAX_US, ERROR_BASES_MAX, ERROR_NAME_MAX, REASON_MAX, SNOOZE_MIN_US, Event, Outcome
from ..state.past import unpack_past

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .core import Core

_WITH_WORKER: Final = (Outcome.TIMED_OUT, Outcome.LOST, Outcome.INTERRUPTED)  # endings that are not the run's own


def check_result(result: dict[str, Any], outcome: int) -> None:
    """InvalidArgumentError for entries of a result map that decide something, or are counted, and can't be."""
    for name, most in (("retry_us", DELAY_MAX_US), ("snooze_us", DELAY_MAX_US), ("cpu_us", 2**62), ("max_rss", 2**62)):
        value = result.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most):
            raise InvalidArgumentError(f"finish: {name} is a whole number from 0 to {most}, not {str(value)[:60]}")
    if outcome == Outcome.SNOOZED and result.get("snooze_us") is None:
        raise InvalidArgumentError("finish: outcome 8 (snoozed) goes with snooze_us in its result: for how long")
    if not isinstance(result.get("together", False), bool):
        raise InvalidArgumentError("finish: together is true or false")
    reason, bases = result.get("reason"), result.get("bases")
    if reason is not None and (not isinstance(reason, str) or len(reason) > REASON_MAX):
        raise InvalidArgumentError(f"finish: reason is a text of at most {REASON_MAX} characters")
    if bases is not None and (not isinstance(bases, list) or len(bases) > ERROR_BASES_MAX or
                              not all(isinstance(base, str) and len(base) <= ERROR_NAME_MAX for base in bases)):
        raise InvalidArgumentError(f"finish: bases is a list of at most {ERROR_BASES_MAX} names")


def check_kept(result: Mapping[str, Any]) -> None:
    """InvalidArgumentError for entries of a result map that nobody could read later."""
    for name in ("value", "stdout", "stderr"):
        if not isinstance(result.get(name, b""), bytes | None):
            raise InvalidArgumentError(f"finish: {name} of a result is bin, not {type(result[name]).__name__}")
    for name in ("stdout_cut", "stderr_cut"):
        count = result.get(name, 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**62:
            raise InvalidArgumentError(f"finish: {name} of a result is a number of bytes")
    for name in ("type", "message", "traceback"):
        if not isinstance(result.get(name, ""), str):
            raise InvalidArgumentError(f"finish: {name} of a result is a text, not {type(result[name]).__name__}")


def decide(core: Core, row: Any, outcome: int, said: Mapping[str, Any]) -> tuple[int, int]:
    """(event, instant) of an attempt that did not succeed: RETRY, SPARE (not counted), EXHAUST or CANCEL. `said`: its result map."""
    now = core.now.wall_us
    if outcome == Outcome.CANCELLED:
        return Event.CANCEL, 0
    if outcome == Outcome.SNOOZED:
        return Event.SPARE, now + max(SNOOZE_MIN_US, said["snooze_us"])
    retry = core.state.specs[int(row["spec"])]["retry"]
    rule = rule_for(retry, said)
    before = int(row["budget"]) - int(retry["attempts"])  # spent before a person sent it back
    if rule is None or said.get("retry") is False or row["attempt"] >= before + rule["attempts"]:
        return Event.EXHAUST, 0
    draw = blake2b(b"".join(row[x].tobytes() for x in ("id_high", "id_low", "attempt")), digest_size=8, person=b"wheelsched.wait")
    spread = int.from_bytes(draw.digest(), "big") / 2**64
    if said.get("retry_us") is not None:
        return Event.RETRY, now + int(said["retry_us"] * (1 + spread / 10))
    wait = min(rule["cap_us"], rule["backoff_us"] * rule["factor"] ** min(int(row["attempt"]) - before - 1, 60))
    return Event.RETRY, now + int(wait * (1 + spread / 2))


def ended_with_worker(outcome: NDArray[np.uint8]) -> list[int]:
    """Places of runs whose last attempt did not end by itself: a batch handler gets each of them in a call of its own."""
    found: list[int] = np.flatnonzero((outcome >= plain.OUTCOME_TIMED_OUT) & (outcome <= plain.OUTCOME_INTERRUPTED)).tolist()
    return found


def spared(core: Core, slot: int, outcome: int) -> bool:
    """Is an attempt not counted that did not end, in one call of a batch handler with other runs? Nobody knows whose fault it was.

    Once: the attempt after it is alone and counts, also when a worker does not heed that.
    """
    if outcome not in _WITH_WORKER:
        return False
    before = unpack_past(core.state.runs.blobs(slot)[2])[0]
    return not before or before[-1][5] not in _WITH_WORKER


def rule_for(retry: Mapping[str, Any], said: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The rule (attempts, backoff_us, factor, cap_us) of a failure; None for one that is never retried. See policies.Retry."""
    rules: Mapping[str, Any] = retry.get("errors") or {}
    if not rules and not retry["not_on"]:
        return retry
    for kind in (str(said.get("type", "")), *(said.get("bases") or ())):
        parts = kind.split(".")
        never = max((fits(name, parts) for name in retry["not_on"]), default=0)
        near = max(((fits(name, parts), name) for name in sorted(rules)), key=lambda found: found[0], default=(0, ""))
        if never and never >= near[0]:
            return None
        if near[0]:
            rule: Mapping[str, Any] = rules[near[1]]
            return rule
    return retry


def fits(name: str, parts: list[str]) -> int:
    """How many parts of a type's name this one names: 0 when it does not fit."""
    wanted = name.split(".")
    if wanted[-1] != parts[-1]:
        return 0
    rest = iter(parts)
    return len(wanted) if all(part in rest for part in wanted) else 0


__all__ = ["check_result", "decide", "fits", "rule_for"]
