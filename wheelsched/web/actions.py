"""What changes something, with `--allow-actions` alone: asked on a page, confirmed there, done by a POST of that page and no other."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from ..client.words import number
from ..model.errors import InvalidArgumentError, PermissionDeniedError, WheelschedError
from ..model.nouns import NOTE_MAX, counted
from . import parameters
from .guard import BODY_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from .reader import Reader

__all__ = ["COOKIE", "Asked", "Outcome", "Tokens", "asked", "carry_out", "confirmed", "form_of", "same_origin"]

COOKIE: Final = "wheelsched_web"
_TOKEN_S: Final = 3_600
_USED_MAX: Final = 10_000
_CHOSEN_MAX: Final = 100
_FIELDS_MAX: Final = 150
_FILTERS: Final = ("match", "task", "error", "queue")
_JOBS: Final = {"trigger": "Run now", "pause": "Pause", "resume": "Resume"}
_LETTERS: Final = {"redrive": "Send back", "discard": "Discard"}
_TOLD: Final = {
    "trigger": "A run is made now, beside those of the schedule.",
    "pause": "Nothing starts by the schedule until somebody resumes it.",
    "resume": "The schedule goes on. What was missed is left out; a one-time job whose time has passed runs now.",
    "cancel": "A run that waits ends at once; one that runs is asked to stop, and then made to.",
    "redrive": "Each dead letter gets all its attempts anew.",
    "discard": "Each dead letter is given up: it goes to the history and is not run again.",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One action on what was chosen. `count`: how many it is about; `typed`: whether that number has to be typed."""

    do: str
    chosen: tuple[str, ...]  # names of jobs, ids of runs
    filters: tuple[tuple[str, str], ...]  # of dead letters, instead of a choice
    count: int

    @property
    def title(self) -> str:
        """`Pause 3 jobs?`."""
        noun = "job" if self.do in _JOBS else "dead letter" if self.do in _LETTERS else "run"
        word = {**_JOBS, **_LETTERS, "cancel": "Cancel"}[self.do]
        return f"{word}: {self.chosen[0] if len(self.chosen) == 1 else counted(self.count, noun)}"

    @property
    def told(self) -> str:
        """What it will do."""
        return _TOLD[self.do]

    @property
    def typed(self) -> bool:
        """Is a typed number wanted?"""
        return self.do in _LETTERS or self.count > 1

    @property
    def fields(self) -> list[tuple[str, str]]:
        """For the form, and what its token is bound to."""
        return [("do", self.do), *(("chosen", value) for value in self.chosen), *self.filters, ("count", str(self.count))]


def _chosen(given: Mapping[str, list[str]], name: str) -> tuple[str, ...]:
    values = tuple(dict.fromkeys(v for v in given.get(name, ()) if v))
    if len(values) > _CHOSEN_MAX:
        raise InvalidArgumentError(f"{name}: at most {_CHOSEN_MAX} can be chosen at a time; a filter takes more")
    for value in values:
        parameters.text({name: value}, name)
    return values


async def asked(reader: Reader, given: Mapping[str, list[str]]) -> Asked:
    """What a page asks for, counted by the server where a filter chooses. InvalidArgumentError; the errors of the server."""
    do, chosen, filters = _parsed(given)
    return Asked(do, chosen, filters, len(chosen) if chosen else await _count(reader, do, dict(filters)))


def confirmed(form: Mapping[str, list[str]]) -> Asked:
    """What a form asks for, counted as it was when the form was shown. InvalidArgumentError."""
    count = form.get("count", [""])[0]
    if not count.isascii() or not count.isdigit() or len(count) > 9:
        raise InvalidArgumentError("this is no form of the dashboard")
    return Asked(*_parsed(form), int(count))


def _parsed(given: Mapping[str, list[str]]) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """What to do, with what was chosen, or with what fits the filters."""
    first = {name: values[0] for name, values in given.items() if values}
    do = parameters.choice(first, "do", (*_JOBS, "cancel", *_LETTERS))
    if do is None:
        raise InvalidArgumentError("do: what is to be done?")
    chosen = _chosen(given, "chosen")
    if do in _LETTERS and not chosen:
        filters = {name: value for name in _FILTERS if (value := parameters.text(first, name)) is not None}
        if "match" in filters:
            filters["match"] = parameters.glob(first, "match") or "*"
        return do, (), tuple(filters.items()) or (("match", "*"),)
    if not chosen:
        raise InvalidArgumentError("nothing was chosen")
    if do == "cancel" and len(chosen) > 1:
        raise InvalidArgumentError("chosen: one run at a time")
    return do, chosen, ()


async def _count(reader: Reader, do: str, filters: dict[str, str]) -> int:
    """How many dead letters fit now."""
    verb = reader.client.redrive if do == "redrive" else reader.client.discard
    return await reader.ask(verb(**filters, dry_run=True, timeout="5s"))  # type: ignore[arg-type]  # names of filters


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done, and what was refused."""

    text: str
    refused: tuple[str, ...]
    back: str


async def carry_out(reader: Reader, what: Asked, form: Mapping[str, list[str]], once: str) -> Outcome:
    """Do it. InvalidArgumentError when what was typed is not the number; the errors of the server when nothing was done."""
    first = {name: values[0] for name, values in form.items() if values}
    if what.typed and first.get("typed", "").replace(",", "").strip() != str(what.count):
        raise InvalidArgumentError(f"the number that was typed is not {number(what.count)}: nothing was done")
    client = reader.client
    if what.do in _LETTERS:
        verb = client.redrive if what.do == "redrive" else client.discard
        n = await verb(ids=what.chosen) if what.chosen else await verb(**dict(what.filters), limit=what.count)  # type: ignore[arg-type]
        return Outcome(f"{counted(n, 'dead letter')} {'sent back' if what.do == 'redrive' else 'discarded'}", (), "/dead")
    if what.do == "cancel":
        run = await client.cancel(what.chosen[0])
        return Outcome(f"the run is {run.state}" + ("" if run.final else ", and is asked to stop"), (), f"/run?id={run.id}")
    note, refused, done = parameters.text(first, "note", NOTE_MAX) or "", [], 0
    for name in what.chosen:
        try:
            if what.do == "trigger":
                await client.trigger(name, key=f"web:{once}")
            elif what.do == "pause":
                await client.pause(name, note)
            else:
                await client.resume(name)
        except WheelschedError as e:
            if len(what.chosen) == 1:
                raise
            refused.append(f"{name}: {e.message}")
        else:
            done += 1
    words = {"trigger": "started", "pause": "paused", "resume": "resumed"}
    return Outcome(f"{counted(done, 'job')} {words[what.do]}", tuple(refused), "/jobs")


# Who may ask


def same_origin(request: Request) -> None:
    """A POST of a page of this dashboard. PermissionDeniedError for one of elsewhere, and for one that doesn't say where from."""
    site, origin, host = (request.headers.get(name) for name in ("sec-fetch-site", "origin", "host"))
    if site is None and origin is None:
        raise PermissionDeniedError("this request does not say where it comes from: nothing was done")
    foreign = origin is not None and (
        urlsplit(origin).scheme not in ("http", "https") or urlsplit(origin).netloc.lower() != (host or "").lower()
    )
    if site not in (None, "same-origin") or foreign:
        raise PermissionDeniedError("this request comes from another site: nothing was done")


async def form_of(request: Request) -> dict[str, list[str]]:
    """The fields of a form. InvalidArgumentError for another kind of body, and for one too large."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise InvalidArgumentError("a form is wanted")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MAX:
            raise InvalidArgumentError(f"a form may have {BODY_MAX} bytes")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, strict_parsing=True, max_num_fields=_FIELDS_MAX)
    except (ValueError, UnicodeDecodeError):
        raise InvalidArgumentError("this is no form") from None


class Tokens:
    """Ties a form to the browser that was shown it: each is good once, for an hour, for just what it showed."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._used: OrderedDict[str, None] = OrderedDict()

    def make(self, browser: str, what: Asked) -> tuple[str, str]:
        """(once, token) for the form."""
        once = f"{int(time.monotonic())}-{secrets.token_hex(16)}"
        return once, self._sign(browser, once, what)

    def _sign(self, browser: str, once: str, what: Asked) -> str:
        parts = [browser, once, *(f"{name}={value}" for name, value in what.fields)]
        return hmac.new(self._secret, "\x00".join(parts).encode(), "sha256").hexdigest()

    def check(self, browser: str | None, form: Mapping[str, list[str]], what: Asked) -> str:
        """The form's `once`, used up with this. PermissionDeniedError."""
        once, token = (form.get(name, [""])[0] for name in ("once", "token"))
        if not browser or not hmac.compare_digest(token.encode(), self._sign(browser, once, what).encode()):
            raise PermissionDeniedError(
                "this form was not made for you, or by a dashboard that has ended since: go back, and ask anew; nothing was done"
            )
        if time.monotonic() - int(once.partition("-")[0]) > _TOKEN_S:
            raise PermissionDeniedError("this form is over an hour old: go back, and ask anew; nothing was done")
        if once in self._used:
            raise PermissionDeniedError("this form was sent already, and was carried out once")
        self._used[once] = None
        while len(self._used) > _USED_MAX:
            self._used.popitem(last=False)
        return once
