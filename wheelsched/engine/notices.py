"""What the operator's log is told of a turn: runs that died, and workers that were refused.

Of many at once only the first have a text: the log counts the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import display_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..model.errors import WheelschedError
    from .core import Core
    from .turn import Incoming

TEXTS_MAX: Final = 10  # of one turn
LINE_MAX: Final = 300  # characters of an error


def died(core: Core, rows: NDArray[np.uint32], fields: NDArray[Any], said: list[dict[str, Any]]) -> None:
    """These runs are dead letters. `said`: what was told of the last attempt of each of the first."""
    notices = core.effects.notices
    notices.died += len(rows)
    room = max(0, TEXTS_MAX - len(notices.deaths))
    jobs = core.state.jobs.names(np.ascontiguousarray(fields["job"][:room]))
    for row, f, name, told in zip(rows[:room].tolist(), fields[:room], jobs, said, strict=False):
        attempts = "1 attempt" if f["attempt"] == 1 else f"{f['attempt']} attempts"
        error = _first_line(core, row, int(f["spec"]), told)
        notices.deaths.append(
            f"run {core.state.runs.text_id(row)} of {display_name(name.decode())} is dead after {attempts}{': ' if error else ''}{error}"
        )


def _first_line(core: Core, row: int, spec: int, told: dict[str, Any]) -> str:
    """The error's type and the first line of its text, without values of arguments that are redacted."""
    kind, message = str(told.get("type") or ""), str(told.get("message") or "")
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    if line:
        line = core.redaction.scrubbed(line, core.state.runs.blobs(row)[0], core.state.announced, core.state.specs[spec])
    text = f"{kind}: {line}" if kind and line else kind or line
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 1] + "…"


def refused(core: Core, cmd: Incoming, error: WheelschedError) -> None:
    """A worker's hello was answered with an error."""
    notices = core.effects.notices
    notices.refused += 1
    if len(notices.refusals) < TEXTS_MAX:
        name = cmd.request.args.get("name")
        who = f" {name[:100]!r}" if isinstance(name, str) and name else ""
        notices.refusals.append(f"a worker{who} of the user with the uid {cmd.uid} was refused: {error.message}")
