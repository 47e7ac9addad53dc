"""`wheelsched queue`: list, set, pause, resume, purge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..client.times import Times
from ..client.words import number
from ..model.nouns import counted
from .output import show_many, show_one
from .shell import Verbs, say, shell

if TYPE_CHECKING:
    from ..client.views_queues import QueueInfo

_WORDS = {
    "concurrency": "concurrency", "rate": "rate", "burst": "burst", "key_concurrency": "key concurrency", "key_rate": "key rate",
}
_WEIGHTS_SHOWN = 5


@click.group(cls=Verbs)
def queue() -> None:
    """List queues and what waits in them, set their limits, pause, resume and purge them."""


@queue.command("list")
def list_() -> None:
    """List the queues."""
    sh = shell()
    times = Times("utc")

    def cells(q: QueueInfo) -> list[str]:
        oldest = "" if q.oldest is None else times.show(q.oldest)
        return [q.name, "paused" if q.paused else "active", number(q.queued), number(q.leased), oldest, limits(q)]

    heads = ["QUEUE", "STATE", "QUEUED#", "LEASED#", "OLDEST", "LIMITS"]
    show_many(sh, sh.client.queues(), lambda q: q.to_dict(), heads, cells, empty="no queues")


def limits(q: QueueInfo) -> str:
    """Its limits in words."""
    told = [f"{word} {q.settings[key]}" for key, word in _WORDS.items() if key in q.settings]
    weights = q.settings.get("weights", {})
    told += [f"weight {name} {weight}" for name, weight in list(weights.items())[:_WEIGHTS_SHOWN]]
    return ", ".join([*told, f"{len(weights) - _WEIGHTS_SHOWN} weights more"] if len(weights) > _WEIGHTS_SHOWN else told) or "none"


def _limit(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """A whole number; `none` takes the limit away."""
    if value is None or value == "none":
        return value
    if not (value.isascii() and value.isdecimal()) or int(value) < 1:
        raise click.BadParameter(f"{value!r}: a whole number from 1 on is wanted, or none", ctx, param)
    return int(value)


def _weights(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, int] | str | None:
    """NAMESPACE=N, more than once; `none` takes all away."""
    if not value or value == ("none",):
        return value[0] if value else None
    found: dict[str, int] = {}
    for text in value:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isascii() and number.isdecimal()):
            raise click.BadParameter(f"{text!r}: NAMESPACE=N is wanted, such as billing=3, or none", ctx, param)
        if name in found:
            raise click.BadParameter(f"{name}: its weight is given twice", ctx, param)
        found[name] = int(number)
    return found


@queue.command("set", epilog="wheelsched queue set mail --concurrency 20 --rate 100/s --key-concurrency 2")
@click.argument("name")
@click.option("--concurrency", callback=_limit, metavar="N", help="Runs that are leased at once.")
@click.option("--rate", metavar="N/D", help="Leases in time: 100/s, 5/m, 10/30s.")
@click.option("--burst", callback=_limit, metavar="N", help="Leases at once within the rate (a tenth of a second's, at least 1).")
@click.option("--key-concurrency", callback=_limit, metavar="N", help="Runs of one concurrency key that are leased at once (1).")
@click.option("--key-rate", metavar="N/D", help="Leases of one concurrency key in time.")
@click.option("--weight", "weights", callback=_weights, multiple=True, metavar="NAMESPACE=N",
              help="Share of a namespace, 1 to 1000 (others: 1); repeat it, all at once.")
def set_(name: str, **flags: Any) -> None:
    """Set limits of a queue; `none` takes one away, those not given stay as they are."""
    settings = {key: None if value == "none" else value for key, value in flags.items() if value is not None}
    if not settings:
        raise click.UsageError("say which: --concurrency, --rate, --burst, --key-concurrency, --key-rate or --weight")
    _show(shell().client.queue(name, **settings))


def _show(q: QueueInfo) -> None:
    state, waiting = "paused" if q.paused else "active", f"{number(q.queued)} queued, {number(q.leased)} leased"
    show_one(shell(), q.to_dict(), lambda: [f"{q.name}: {state}, limits: {limits(q)}; {waiting}"])


def _known(name: str) -> None:
    """Say it when nobody has named the queue yet: it may be a slip."""
    if name not in [q.name for q in shell().client.queues()]:
        say(f"there was no queue {name} until now: nothing was set for it and no definition names it")


@queue.command()
@click.argument("name")
def pause(name: str) -> None:
    """Let no worker have a run of it until it is resumed; what is leased goes on."""
    _known(name)
    _show(shell().client.queue_pause(name))


@queue.command()
@click.argument("name")
def resume(name: str) -> None:
    """Go on with it."""
    _known(name)
    _show(shell().client.queue_resume(name))


@queue.command()
@click.argument("name")
def purge(name: str) -> None:
    """Cancel all its runs that wait, also for an instant or a retry; what is leased goes on."""
    count = shell().client.queue_purge(name)
    show_one(shell(), {"count": count}, lambda: [f"{name}: {counted(count, 'run')} cancelled"])
