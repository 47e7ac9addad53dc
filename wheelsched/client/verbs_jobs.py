"""`set` and `export` of jobs as questions, and the methods of the clients. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError
from ..model.nouns import NEVER, NOTE_MAX, Call, parse_job_name
from ..model.policies import tells_policies
from ..protocol.definition import POLICIES, given_from_api, unknown_policy
from ..protocol.frames import encode_payload
from ..schedules.schedule import Cron
from .jobs_text import JobsText
from .requests import Ask
from .verbs import checked_call, checked_paused, checked_text, checked_version

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from ..model.jobs import Policies
    from ..model.typed import Duration, Schedules
    from .async_client import AsyncListing
    from .client import Listing
    from .values import JobInfo
    from .verbs import Verbs
    from .views_time import Calendar

__all__ = ["AsyncJobVerbs", "JobVerbs"]

_SOMETIMES: Final = Cron("0 0 * * *")  # a schedule that goes with any policy, where the job's own stays


def _set(
    verbs: Verbs[Any], name: Any, call: Any, schedule: Any, policies: Mapping[str, Any], *, paused: Any, note: Any, version: Any
) -> Ask[JobInfo]:
    named = call is not None, schedule is not None, paused is not None, bool(note), bool(policies)
    if not any(named):
        raise InvalidArgumentError("set: nothing is named: give call=, schedule=, paused=, note= or a policy")
    task = "x" if call is None else checked_call(call).task
    kept = {key: value for key, value in policies.items() if value is not None}
    given, param_us = given_from_api(Call(task), _SOMETIMES if schedule is None else schedule, kept)
    for policy in policies.keys() - kept.keys():
        if policy not in POLICIES:
            raise unknown_policy(policy)
        given[POLICIES[policy][0]] = None
    payload = None
    if call is None:
        del given["task"]
    else:
        payload = encode_payload(call.args, call.kwargs, call.headers, exts=verbs.exts)
    if schedule is None:
        del given["schedule"]
        param_us = NEVER
    args = {
        "name": parse_job_name(name), "given": given, "param_us": param_us, "payload": payload, "paused": checked_paused(paused),
        "note": checked_text(note, "note", NOTE_MAX), "version": checked_version(version), "keep": True,
    }
    return Ask("put", args, verbs.read_put)


class JobVerbs:
    """The methods of the client: see `client`."""

    _verbs: Verbs[Any]
    _do: Any

    @tells_policies(jobs=True)
    def set(
        self, name: str, *, call: Call | None = None, schedule: Schedules | None = None, paused: bool | None = None, note: str = "",
        version: int | None = None, call_timeout: Duration | None = None, **policies: Unpack[Policies],
    ) -> JobInfo:
        """Change what is named of a job that is there, and nothing else. A policy of None is taken away: what is the rule without it holds.

        `call` brings its task and arguments, and none of its decorator's values. The answer has `result` and `changes`, as `put` has.
        `version`: only if the job still is at that one, else AlreadyExistsError. NotFoundError.
        """
        ask = _set(self._verbs, name, call, schedule, policies, paused=paused, note=note, version=version)
        answer: JobInfo = self._do(ask, call_timeout)
        return answer

    def export(self, match: str | None = None, *, finished: bool = False, timeout: Duration | None = None) -> str:
        """The jobs whose name matches the glob as a jobs file, TOML, with the calendars they name: `job apply` of it changes nothing.

        Left out are runs of `enqueue`, and finished jobs unless `finished`: applied elsewhere, their instants could fire again. What is
        redacted is not told: the text says so, and is refused by `job apply` as long as it is not filled in.
        """
        text = JobsText(finished=finished)
        jobs: Listing[JobInfo] = self.jobs(match, timeout=timeout)  # type: ignore[attr-defined]  # of the client
        for job in jobs:
            text.add(job)
        calendars: list[Calendar] = self.calendars(timeout=timeout) if text.calendars else []  # type: ignore[attr-defined]  # of the client
        return text.whole(calendars)


class AsyncJobVerbs:
    """The methods of the asyncio client: see `aclient`."""

    _verbs: Verbs[Any]
    _do: Any

    async def set(
        self, name: str, *, call: Call | None = None, schedule: Schedules | None = None, paused: bool | None = None, note: str = "",
        version: int | None = None, call_timeout: Duration | None = None, **policies: Unpack[Policies],
    ) -> JobInfo:
        """As Client.set."""
        ask = _set(self._verbs, name, call, schedule, policies, paused=paused, note=note, version=version)
        answer: JobInfo = await self._do(ask, call_timeout)
        return answer

    async def export(
        self, match: str | None = None, *, finished: bool = False, timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> str:
        """As Client.export."""
        text = JobsText(finished=finished)
        jobs: AsyncListing[JobInfo] = self.jobs(match, timeout=timeout)  # type: ignore[attr-defined]  # of the client
        async for job in jobs:
            text.add(job)
        calendars: list[Calendar] = await self.calendars(timeout=timeout) if text.calendars else []  # type: ignore[attr-defined]  # as above
        return text.whole(calendars)
