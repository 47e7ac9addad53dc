"""The verbs about dead letters as questions, and the methods of the clients. No I/O."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..model.errors import InvalidArgumentError
from ..model.nouns import parse_instant
from ..protocol.checks import parse_rate
from .bounds import span
from .requests import Ask
from .values import call_words
from .verbs import Pages, checked_filters, checked_glob, checked_limit, checked_run_id, checked_text, field_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .async_client import AsyncListing, AsyncRun
    from .client import Listing, Run
    from .values import RunInfo
    from .verbs import Verbs

__all__ = ["AsyncDeadVerbs", "DeadVerbs", "Lines"]

_ERROR_MAX: Final = 200
_RUN_ID: Final = re.compile(r"[0-9a-f]{32}")


class Lines(Protocol):
    """What an export is written to: an open text file, for one."""

    def write(self, text: str, /) -> Any:
        """Take a line."""


def _filters(given: Mapping[str, Any]) -> dict[str, Any]:
    """match, error, task, queue, namespace, since, until: those that are given, checked."""
    error = given["error"]
    checked = {
        "match": checked_glob(given["match"]), "error": None if error is None else checked_text(error, "error", _ERROR_MAX),
        **checked_filters(given["task"], given["queue"], given["namespace"]),
    }
    found: dict[str, Any] = {name: value for name, value in checked.items() if value is not None}
    return found | {f"{name}_us": parse_instant(given[name], name) for name in ("since", "until") if given[name] is not None}


def _pages(make: Callable[[dict[str, Any]], Any], given: Mapping[str, Any], limit: Any, *, payload: bool = False
           ) -> Callable[[], Pages[Any]]:
    args = {"match": None, **_filters(given)} | ({"payload": True} if payload else {})
    total = checked_limit(limit)
    return lambda: Pages("dead", args, total, make)


def _change(verb: str, ids: Iterable[Any] | None, given: Mapping[str, Any], *, limit: Any, dry_run: Any, rate: Any = None) -> Ask[int]:
    args = _filters(given)
    if (ids is None) == (not args):
        raise InvalidArgumentError(f"{verb}: give ids= (run ids), or a filter such as match= (a pattern of job names; '*' is all)")
    if _RUN_ID.fullmatch(str(args.get("match", ""))):
        raise InvalidArgumentError(f"{verb}: {args['match']} is a run's id, and match= a pattern of job names: give ids=[...]")
    if ids is not None:
        if limit is not None:
            raise InvalidArgumentError(f"{verb}: limit goes with a filter, not with ids")
        args["ids"] = [checked_run_id(run_id) for run_id in ids]
    if (total := checked_limit(limit)) is not None:
        args["limit"] = total
    if rate is not None:
        parse_rate(rate, "rate")
        args["rate"] = rate
    if dry_run:
        args["dry_run"] = True
    return Ask(verb, args, lambda result: field_of(result, "count", int))


def _line(letter: RunInfo, raw: Mapping[str, Any]) -> str:
    """A dead letter as one line of JSON, with its call."""
    words = call_words(raw["payload"])
    return json.dumps({**letter.to_dict(), "args": words["args"], "kwargs": words["kwargs"]}, ensure_ascii=False) + "\n"


class DeadVerbs:
    """Of Client."""

    _verbs: Verbs[Run]
    _now_us: Any

    def _do(self, ask: Ask[Any], timeout: Any) -> Any:
        raise NotImplementedError

    def _listing(self, pages: Callable[[], Pages[Any]], timeout: Any) -> Listing[Any]:
        raise NotImplementedError

    def dead(
        self, match: str | None = None, limit: int | None = None, *, error: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, since: Any = None, until: Any = None, timeout: Any = None,
    ) -> Listing[Run]:
        """Dead letters, runs out of attempts, in the order in which they died: of jobs that `match` the glob, of a task, a queue, a
        namespace, with an `error` (a type's name as in Retry's `errors`, without its base classes; or a glob over full names), ended
        from `since` to `until`.
        """
        given = {"match": match, "error": error, "task": task, "queue": queue, "namespace": namespace, **span(since, until, self._now_us)}
        return self._listing(_pages(self._verbs.read_run, given, limit), timeout)

    def redrive(
        self, match: str | None = None, *, ids: Iterable[str] | None = None, error: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, since: Any = None, until: Any = None, limit: int | None = None,
        rate: str | None = None, dry_run: bool = False, timeout: Any = None,
    ) -> int:
        """Give dead letters all their attempts anew, by run ids or by the filters of `dead`: how many. Who dies meanwhile is left alone.

        `rate` ("10/s", "5/m"): the first goes now, each further one waits for its instant; over restarts too. `limit`:
        the oldest so many only. `dry_run`: only count them.
        """
        given = {"match": match, "error": error, "task": task, "queue": queue, "namespace": namespace, **span(since, until, self._now_us)}
        count: int = self._do(_change("redrive", ids, given, limit=limit, dry_run=dry_run, rate=rate), timeout)
        return count

    def discard(
        self, match: str | None = None, *, ids: Iterable[str] | None = None, error: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, since: Any = None, until: Any = None, limit: int | None = None,
        dry_run: bool = False, timeout: Any = None,
    ) -> int:
        """Give dead letters up: they go to the history. By run ids or by the filters of `dead`; `limit`, `dry_run` as in redrive."""
        given = {"match": match, "error": error, "task": task, "queue": queue, "namespace": namespace, **span(since, until, self._now_us)}
        count: int = self._do(_change("discard", ids, given, limit=limit, dry_run=dry_run), timeout)
        return count

    def export_dead(
        self, out: Lines, match: str | None = None, limit: int | None = None, *, error: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, since: Any = None, until: Any = None, timeout: Any = None,
    ) -> int:
        """Write the dead letters that `dead` would list to `out`, a line of JSON each, with `args` and `kwargs` (redacted as
        everywhere): how many.
        """
        given = {"match": match, "error": error, "task": task, "queue": queue, "namespace": namespace, **span(since, until, self._now_us)}
        pages = _pages(lambda raw: _line(self._verbs.read_run(raw), raw), given, limit, payload=True)
        n = 0
        for n, line in enumerate(self._listing(pages, timeout), 1):  # noqa: B007 - it is the count
            out.write(line)
        return n


class AsyncDeadVerbs:
    """Of AsyncClient."""

    _verbs: Verbs[AsyncRun]
    _now_us: Any

    async def _do(self, ask: Ask[Any], timeout: Any) -> Any:  # noqa: ASYNC109 - as in the client
        raise NotImplementedError

    def _listing(self, pages: Callable[[], Pages[Any]], timeout: Any) -> AsyncListing[Any]:
        raise NotImplementedError

    def dead(
        self, match: str | None = None, limit: int | None = None, *, error: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, since: Any = None, until: Any = None, timeout: Any = None,
    ) -> AsyncListing[AsyncRun]:
        """As Client.dead."""
        given = {"match": match, "error": error, "task": task, "queue": queue, "namespace": namespace, **span(since, until, self._now_us)}
        return self._listing(_pages(self._verbs.read_run, given, limit), timeout)

    async def redrive(
        self, match: str | None = None, *, ids: Iterable[str] | None = None, error: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, since: Any = None, until: Any = None, limit: int | None = None,
        rate: str | None = None, dry_run: bool = False, timeout: Any = None,  # noqa: ASYNC109
    ) -> int:
        """As Client.redrive."""
        given = {"match": match, "error": error, "task": task, "queue": queue, "namespace": namespace, **span(since, until, self._now_us)}
        count: int = await self._do(_change("redrive", ids, given, limit=limit, dry_run=dry_run, rate=rate), timeout)
        return count

    async def discard(
        self, match: str | None = None, *, ids: Iterable[str] | None = None, error: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, since: Any = None, until: Any = None, limit: int | None = None,
        dry_run: bool = False, timeout: Any = None,  # noqa: ASYNC109
    ) -> int:
        """As Client.discard."""
        given = {"match": match, "error": error, "task": task, "queue": queue, "namespace": namespace, **span(since, until, self._now_us)}
        count: int = await self._do(_change("discard", ids, given, limit=limit, dry_run=dry_run), timeout)
        return count

    async def export_dead(
        self, out: Lines, match: str | None = None, limit: int | None = None, *, error: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, since: Any = None, until: Any = None,
        timeout: Any = None,  # noqa: ASYNC109
    ) -> int:
        """As Client.export_dead; `out.write` is called between the pages, and not awaited."""
        given = {"match": match, "error": error, "task": task, "queue": queue, "namespace": namespace, **span(since, until, self._now_us)}
        pages = _pages(lambda raw: _line(self._verbs.read_run(raw), raw), given, limit, payload=True)
        n = 0
        async for line in self._listing(pages, timeout):
            out.write(line)
            n += 1
        return n
