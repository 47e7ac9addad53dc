"""What a request costs, told from its frame before it is decided: so a turn takes what it has time for. Pure.

Costs are microseconds on a slow machine, roughly: they need not be right, only in proportion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_US: Final = 2_000  # of commands and questions in one turn; one is always taken
BYTES_A_US: Final = 500  # that are decoded
_JOB_US: Final = 5  # a job of a bulk
_RUN_US: Final = 5  # a run of a bulk
_ROW_US: Final = 8  # a row of a listing
_PACKED_US: Final = 2_000  # a page in columns: mostly bytes that are there already
_PAGE_ROWS: Final = 250  # of a listing that doesn't say how many
_BASE_US: Final = 100  # of any request
_PUT_US: Final = 300  # of one that is recorded
_FRAME_US: Final = 1_000  # of one that looks into history, or goes over a whole table
_MOST_US: Final = 1_000_000  # of anything
_TASK_US: Final = 5  # a task of a hello

_INTS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}  # bytes behind these heads of MessagePack
_STR_8: Final = 0xD9


def _length(args: dict[str, Any], name: str) -> int:
    value = args.get(name)
    return len(value) if isinstance(value, list | dict | bytes | str) else 0


def _rows(args: dict[str, Any]) -> int:
    limit = args.get("limit")
    return _PAGE_ROWS if type(limit) is not int or limit < 1 else min(limit, _PAGE_ROWS)


def _listing(args: dict[str, Any]) -> int:
    if args.get("packed"):
        return _PACKED_US
    return _ROW_US * _rows(args) + _BASE_US


def _of_history(args: dict[str, Any]) -> int:
    return _listing(args) + _FRAME_US


_COSTS: Final[dict[str, Callable[[dict[str, Any]], int]]] = {
    "put_many": lambda args: _JOB_US * _length(args, "names"),
    "stage": lambda args: _JOB_US * _length(args, "names"),
    "enqueue_many": lambda args: _RUN_US * _length(args, "payload"),
    "group_part": lambda args: _RUN_US * _length(args, "payload"),
    "group": lambda args: _RUN_US * (_length(args, "payload") + (args["members"] if type(args.get("members")) is int else 0)),
    "redrive": lambda args: _RUN_US * (_length(args, "ids") or _PAGE_ROWS),
    "discard": lambda args: _RUN_US * (_length(args, "ids") or _PAGE_ROWS),
    "jobs": _listing, "runs": _of_history, "dead": _listing,
    "run": lambda _: _BASE_US, "get": lambda _: _BASE_US, "wait": lambda _: _BASE_US, "events": lambda _: _BASE_US,
    "stats": lambda _: _FRAME_US, "queues": lambda _: _FRAME_US,
    "why": lambda _: _FRAME_US, "history": lambda _: _FRAME_US, "backfill": lambda _: _FRAME_US, "move": lambda _: _FRAME_US,
    "hello": lambda args: _BASE_US + _TASK_US * _length(args, "tasks"),
    "finish": lambda args: _RUN_US * _length(args, "token") // 8, "heartbeat": lambda args: _RUN_US * _length(args, "token") // 8,
    "lease": lambda _: _BASE_US,
    "next": lambda args: _BASE_US + (_ROW_US * min(max(args["n"], 0), 1_000) if type(args.get("n")) is int else 0),
}


def cost(verb: str, args: dict[str, Any], size: int) -> int:
    """Of a request whose frame had so many bytes; never less than 1, whatever its arguments claim."""
    of = _COSTS.get(verb)
    return min(max(1, size // BYTES_A_US + (_PUT_US if of is None else of(args))), _MOST_US)


def verb_of(body: bytes) -> str:
    """The verb of a request's frame without decoding the rest; empty for what only a decoder can tell."""
    at = 1
    if body[:1] != b"\x93" or len(body) < 4:
        return ""
    head = body[at]
    at += 1 if head < 0x80 else 1 + _INTS.get(head, len(body))
    if at >= len(body):
        return ""
    head = body[at]
    at, size = (at + 1, head & 31) if head >> 5 == 5 else (at + 2, body[at + 1]) if head == _STR_8 and at + 1 < len(body) else (at, 0)
    return body[at : at + size].decode("ascii", "replace")
