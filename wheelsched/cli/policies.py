"""Policies, schedules and payloads as flags: from what was typed to the arguments of the client."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from shutil import which
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..client.times import parse_day, parse_moment
from ..model.errors import InvalidArgumentError
from ..model.nouns import BUILTIN_FLAGS, CATCHUPS, HOOKS, OVERLAPS, TASKS_TOLD_MAX, Call, Command, Http, parse_duration, unserved
from ..model.policies import Catchup, Overlap, Retry
from ..schedules.schedule import DST_OVERLAPS, GAPS, At, Cron, Every, Manual
from .shell import say, shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..schedules.schedule import Schedule
    from .shell import Shell

_LEGEND: Final = """\b
D is a duration: 250ms, 90s, 1h30m, 2d. T is a time: 2026-12-01T03:00:00Z, or 2026-12-01 03:00
on the clock of --tz. N is a whole number, W a word, JSON a list (--args) or a map (--kwargs)."""
PUT_HELP: Final = """\b
Examples:
  wheelsched job put mail/digest mail.send --cron '0 8 * * *' --tz Europe/Berlin --args '["ops@example.org"]'
  wheelsched job put ops/backup --cron '0 3 * * *' --timeout 6h --retry-attempts 1 command -- /usr/local/bin/backup --all
  wheelsched job put web/ping http --every 30s --args '["POST", "https://example.org/ping"]' --kwargs '{"json": {"up": true}}'
  wheelsched job put shop/close shop.close --at '2026-12-24 18:00' --tz Europe/Berlin --on-dead ops/alarm

""" + _LEGEND
ENQUEUE_HELP: Final = """\b
Examples:
  wheelsched enqueue mail.send --args '["a@example.org"]' --in 10m --key welcome:17
  wheelsched enqueue --wait command -- /bin/echo hello
  wheelsched enqueue http --args '["POST", "https://example.org/hook"]' --kwargs '{"json": {"id": 7}}' --retry-attempts 5

""" + _LEGEND
NONE: Final = "none"  # takes a policy away
F = TypeVar("F", bound="Callable[..., Any]")

_RETRY = ("retry_attempts", "retry_backoff", "retry_cap")
_POLICIES = (
    click.option("--timeout", metavar="D", help="Of one attempt, from user code's first instruction (1h)."),
    click.option("--heartbeat-timeout", metavar="D", help="An attempt that calls no heartbeat() for so long is ended (none)."),
    click.option("--retry-attempts", type=int, metavar="N", help="All attempts, the first included (3)."),
    click.option("--retry-backoff", metavar="D", help="Wait before the second attempt (10s); doubled for each further one."),
    click.option("--retry-cap", metavar="D", help="Longest wait between attempts (1h)."),
    click.option("--retry-not-on", multiple=True, metavar="E", help="An exception type that is never retried; may come several times."),
    click.option("--retry-error", multiple=True, metavar="E=N[,D[,D]]",
                 help="Other attempts (and backoff, and cap) after this exception type; may come several times."),
    click.option("--overlap", metavar="W", help=f"While an earlier run is active: {' | '.join(OVERLAPS)}; allow:5 bounds it."),
    click.option("--catchup", type=click.Choice(CATCHUPS), help="What is run of what was missed (latest)."),
    click.option("--catchup-window", metavar="D", help="How far back a catch-up goes (all: 24h; others: no bound)."),
    click.option("--catchup-max", type=int, metavar="N", help="Of `--catchup all`: the newest so many (1000)."),
    click.option("--queue", metavar="Q", help="Its ready line (default)."),
    click.option("--priority", type=int, metavar="N", help="0 to 9, 9 first (5)."),
    click.option("--jitter", metavar="D", help="Spread starts over this long, or a percentage of the period such as 10%."),
    click.option("--start", metavar="T", help="No occurrence before this instant."),
    click.option("--end", metavar="T", help="No occurrence after this instant."),
    click.option("--max-runs", type=int, metavar="N", help="Finished after so many runs."),
    click.option("--expires-after", metavar="D", help="Not started any more so long after its time: cancelled."),
    click.option("--concurrency-key", metavar="K", help="One run of a key is leased at a time, or as its queue says."),
    click.option("--concurrency", type=int, metavar="N", help="Runs of the job (an enqueue: of the task in its namespace) leased at once."),
    click.option("--calendar", multiple=True, metavar="C", help="A named calendar that blocks occurrences; several: any of them does."),
    click.option("--redact", multiple=True, metavar="FIELD", help="An argument, or key in one, not shown to anybody; 0: the first one."),
    click.option("--late-after", metavar="D", help="A run that has not started so long after its time is marked late."),
    click.option("--on-missed", metavar="JOB", help="Trigger this job when occurrences were not run, or a run is late."),
    click.option("--on-success", metavar="JOB", help="Trigger this job when a run succeeded."),
    click.option("--on-failure", metavar="JOB", help="Trigger this job when a run will not succeed: out of attempts, or expired."),
    click.option("--on-dead", metavar="JOB", help="Trigger this job when a run is out of attempts, a dead letter."),
    click.option("--pause-after", type=int, metavar="N", help="Pause the job after so many dead runs one after another."),
)
_OF_JOBS: Final = frozenset((
    "overlap", "catchup", "catchup_window", "catchup_max", "jitter", "start", "end", "max_runs", "calendar", "late_after", "on_missed",
    "pause_after",
))
_ONE_TO_ONE = (
    "timeout", "heartbeat_timeout", "queue", "priority", "jitter", "start", "end", "max_runs", "expires_after", "concurrency_key",
    "late_after", "on_missed", "pause_after", "concurrency", *HOOKS,
)


def policy_flags(f: F) -> F:
    """Add the policy flags to a verb."""
    for option in reversed(_POLICIES):
        f = option(f)
    return f


def enqueue_flags(f: F) -> F:
    """The policy flags, of which help shows those that a single run can have; the server says why it refuses the others."""
    f = policy_flags(f)
    for param in f.__click_params__:  # type: ignore[attr-defined]  # where click keeps them until the verb is made
        if param.name in _OF_JOBS:
            param.hidden = True
    return f


class _OrNone(click.ParamType[Any]):
    """A value, or `none`: what has it not."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As the type itself, but for `none`."""
        return value if value == NONE else self.inner.convert(value, param, ctx)


def change_flags(f: F) -> F:
    """The policy flags for a change: each takes `none`, too."""
    f = policy_flags(f)
    for param in f.__click_params__:  # type: ignore[attr-defined]  # as above
        if param.type is not click.BOOL:
            param.type = _OrNone(param.type)
    return f


def warn(task: str, warning: str | None) -> None:
    """Say what the server warns of: no worker serves the task. It may be a program, with the word `command` forgotten."""
    if warning:
        program = task not in BUILTIN_FLAGS and "did you mean" not in warning and which(task) is not None
        say(warning + (f"; to run the program: command -- {task}" if program else ""))


def warn_unserved(*tasks: str) -> None:
    """Say it when runs of these tasks will wait, because workers are there and none serves them."""
    stats = shell().client.stats()
    served, ready = stats.get("served_tasks"), any(worker["ready"] for worker in stats["workers"])
    if served is None or len(served) >= TASKS_TOLD_MAX:
        return
    for task in sorted(set(tasks) - set(served)):
        if ready or task in BUILTIN_FLAGS:
            warn(task, f"its runs wait: {unserved(task, served)}")


def payload_flags(f: F) -> F:
    """Add `--args`, `--kwargs` and `--header`."""
    f = click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="A text beside the arguments; repeat it.")(f)
    f = click.option("--kwargs", metavar="JSON", help="Keyword arguments: a JSON object.")(f)
    return click.option("--args", metavar="JSON", help="Arguments: a JSON list.")(f)


def policies(flags: dict[str, Any]) -> dict[str, Any]:
    """The client's policy arguments of the flags that were given. InvalidArgumentError, usage errors."""
    out = {name: flags[name] for name in _ONE_TO_ONE if flags.get(name) is not None}
    retry = {name.removeprefix("retry_"): flags[name] for name in _RETRY if flags.get(name) is not None}
    if flags.get("retry_not_on"):
        retry["not_on"] = flags["retry_not_on"]
    if flags.get("retry_error"):
        retry["errors"] = dict(_rule(text) for text in flags["retry_error"])
    if retry:
        out["retry"] = Retry(**retry)
    if flags.get("overlap") is not None:
        out["overlap"] = overlap(flags["overlap"])
    if any(flags.get(name) is not None for name in ("catchup", "catchup_window", "catchup_max")):
        out["catchup"] = Catchup(flags.get("catchup") or "latest", window=flags.get("catchup_window"), max=flags.get("catchup_max"))
    if flags.get("calendar"):
        out["calendar"] = list(flags["calendar"])
    if flags.get("redact"):
        out["redact"] = list(flags["redact"])
    return out


def _rule(text: str) -> tuple[str, Retry]:
    """`requests.Timeout=8,1s,1m`: a type, attempts, perhaps backoff and cap. Usage errors."""
    name, equals, rest = text.partition("=")
    attempts, *waits = rest.split(",")
    if not name or not equals or not (attempts.isascii() and attempts.isdigit()) or len(waits) > 2:
        raise click.BadParameter(f"{text!r}: write it like ValueError=1 or requests.Timeout=8,1s,1m", param_hint="--retry-error")
    given: dict[str, Any] = dict(zip(("backoff", "cap"), waits, strict=False))
    return name, Retry(int(attempts), **given)


def overlap(text: str) -> Overlap:
    """`allow`, or `allow:3` with its bound. Usage errors."""
    word, colon, limit = text.partition(":")
    if colon and not (limit.isascii() and limit.isdigit()):
        raise click.BadParameter(f"{text!r}: a whole number is wanted behind the colon", param_hint="--overlap")
    return Overlap(word, max=int(limit) if colon else None)  # type: ignore[arg-type]  # the word is checked with the rest


def _json(text: str | None, what: str, kind: type) -> Any:
    if text is None:
        return kind()
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise click.BadParameter(f"no JSON: {e or type(e).__name__}", param_hint=what) from None
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise click.BadParameter(f"{wanted} is wanted, not {text[:60]}", param_hint=what)
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def call(task: str, flags: dict[str, Any], argv: tuple[str, ...] = ()) -> Call:
    """The call of a task with its JSON arguments and headers; `command -- ARGV...` is the command task."""
    args, kwargs = flags["args"], flags["kwargs"]
    headers = dict(_header(text) for text in flags["headers"])
    if argv:
        if task != "command" or args is not None or kwargs is not None:
            raise click.UsageError("words behind the task go with `command -- ARGV...` alone; a task's arguments are --args and --kwargs")
        return Command(list(argv)).with_headers(headers)
    if task == "command" and args is None and kwargs is None:
        raise click.UsageError("command: the words to run are missing; write `command -- ARGV...`")
    made = Call(task, *_json(args, "--args", list), **{str(k): v for k, v in _json(kwargs, "--kwargs", dict).items()})
    if task == "http":  # what is wrong with it is said here, and not by a dead letter
        try:
            made = Http(*made.args, **made.kwargs)
        except TypeError as e:
            raise click.UsageError(f"http: --args is [METHOD, URL], --kwargs {{json, body, headers, timeout, ...}}: {e}") from None
    return made.with_headers(headers)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text[:60]!r}: NAME=TEXT is wanted", param_hint="--header")
    return name, value


def schedule_flags(f: F) -> F:
    """Add the flags of a schedule, of which just one of the first five is given; --cron may come several times."""
    for option in reversed((
        click.option("--cron", "expr", multiple=True, metavar="E", help="A cron expression of 5, 6 or 7 fields, quoted; several: a union."),
        click.option("--every", metavar="D", help="A fixed interval."),
        click.option("--at", "at", metavar="T", help="Once, at an instant (RFC 3339), or a time or day on the clock of --tz."),
        click.option("--in", "delay", metavar="D", help="Once, after a delay."),
        click.option("--manual", is_flag=True, help="Only when triggered."),
        click.option("--after-completion", is_flag=True, help="Count --every from the end of each run."),
        click.option("--tz", metavar="Z", help="IANA zone of --cron, and of an --at without an offset (UTC)."),
        click.option("--dst-gap", type=click.Choice(GAPS), help="Of a wall time that the clock skips."),
        click.option("--dst-overlap", type=click.Choice(DST_OVERLAPS), help="Of a wall time that the clock repeats."),
    )):
        f = option(f)
    return f


def schedule(sh: Shell, flags: dict[str, Any]) -> Schedule | list[Cron]:
    """The schedule of the flags; a list for several --cron. ScheduleError, usage errors."""
    kinds = ("expr", "every", "at", "delay", "manual")
    if sum(bool(flags[k]) for k in kinds) != 1:
        raise click.UsageError("give one of --cron, --every, --at, --in, --manual (--cron may come several times)")
    if not flags["expr"] and any(flags[k] is not None for k in ("dst_gap", "dst_overlap")):
        raise click.UsageError("--dst-gap and --dst-overlap go with --cron")
    if not flags["expr"] and flags["at"] is None and flags["tz"] is not None:
        raise click.UsageError("--tz goes with --cron and --at")
    if flags["after_completion"] and flags["every"] is None:
        raise click.UsageError("--after-completion goes with --every")
    if flags["expr"]:
        found = [Cron(expr, tz=flags["tz"] or "UTC", dst_gap=flags["dst_gap"], dst_overlap=flags["dst_overlap"]) for expr in flags["expr"]]
        return found[0] if len(found) == 1 else found
    if flags["every"] is not None:
        return Every(flags["every"], after_completion=flags["after_completion"])
    if flags["at"] is not None:
        return At(instant(flags["at"], flags["tz"]))
    if flags["delay"] is not None:
        return At(server_now(sh) + timedelta(microseconds=parse_duration(flags["delay"], "--in")))
    return Manual()


def instant(text: str, tz: str | None) -> datetime:
    """What --at says: RFC 3339, or a time or a day on the clock of --tz (UTC). InvalidArgumentError."""
    zone = tz or "UTC"
    Cron("0 0 * * *", tz=zone)  # ScheduleError for a zone that there is not
    day = parse_day(text, zone, "--at")
    return parse_moment(text, zone, "--at") if day is None else day[0]


def server_now(sh: Shell) -> datetime:
    """The server's wall clock: it may run with an offset, and it is the one that counts."""
    now_us = sh.client.stats().get("now_us")
    if not isinstance(now_us, int):
        raise InvalidArgumentError("the server doesn't tell its time")
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now_us)
