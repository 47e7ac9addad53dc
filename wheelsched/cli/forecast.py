"""`wheelsched forecast`: how many runs start when, the peak and who makes it."""

from __future__ import annotations

import sys
from datetime import UTC, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..client.times import Times, span
from ..client.words import cut, number
from ..model.nouns import US, counted, format_duration
from .output import pairs, show_one
from .shell import EXIT_FAILED, Failed, Verb, say, shell
from .tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from ..client.views_forecast import Forecast, Peak

WIDTH: Final = 80
_HEIGHT: Final = 8  # lines of the picture
_BLOCKS: Final = " " + "".join(map(chr, range(0x2581, 0x2589)))  # lower one eighth block to full block
_PLAIN: Final = "    ####"  # a terminal without these characters
_MARK: Final = "\N{BLACK DOWN-POINTING TRIANGLE}"
_TICK: Final = 12  # columns from one time to the next
_QUEUES: Final = 10
_PLOTTED: Final = 8  # queues with a colour of their own


def _plot_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if Path(value).suffix.lower() not in (".png", ".svg"):
        raise click.BadParameter("a name that ends with .png or .svg is wanted", ctx, param)
    if find_spec("matplotlib") is None:
        raise Failed("--plot draws with matplotlib, which is not installed: pip install matplotlib", EXIT_FAILED)
    return value


@click.command(cls=Verb)
@click.option("--for", "span_", default="24h", show_default=True, metavar="D", help="How far to look; at most 31d.")
@click.option("--bucket", default="1m", show_default=True, metavar="D", help="Starts are counted for each; whole seconds.")
@click.option("--queue", metavar="GLOB", help="Only queues that match.")
@click.option("--plot", callback=_plot_file, metavar="FILE", help="Draw it into a .png or .svg file as well (needs the extra `plot`).")
def forecast(span_: str, bucket: str, queue: str | None, plot: str | None) -> None:
    """Show how many runs will start when, exactly, and what makes the peak.

    Counted from the schedules of all active jobs, with delayed runs and retries that wait. How long runs take is known only from those that
    were measured since the server's start.
    """
    sh = shell()
    found = sh.client.forecast(span_, bucket, queue)
    times = Times(sh.times)
    show_one(sh, found.to_dict(), lambda: _page(found, times, local=sh.times == "local"))
    if sh.table:
        _tables(found, times)
    if plot is not None:
        _draw(found, plot)


def _page(f: Forecast, times: Times, *, local: bool) -> Iterator[str]:
    yield f"{counted(f.starts, 'start')} of {counted(f.jobs, 'job')} until {times.show(f.end)}"
    among = [f"{counted(f.delayed, 'run')} already scheduled"] if f.delayed else []
    among += [f"{number(f.retries)} waiting for a retry"] if f.retries else []
    if among:
        yield "among them " + " and ".join(among)
    if f.paused:
        yield f"{counted(f.paused, 'job')} {'is' if f.paused == 1 else 'are'} paused and not counted"
    if f.held:
        yield "HELD: nothing starts before `wheelsched admin release`"
    yield ""
    if f.peak is None:
        return
    yield from picture(f.counts, f.start, f.bucket, local=local)
    yield ""
    never = ", ".join(f.drain.unmeasured) if f.drain.measured else ""
    yield from pairs([
        ("peak", f"{_peak(f.peak, times)}, in {_duration(f.bucket)}"), ("drained", drained(f)), ("unmeasured", cut(never, WIDTH - 13)),
        *_spread(f, times),
    ])


def _duration(value: timedelta) -> str:
    us = round(value / timedelta(microseconds=1))
    return format_duration(us // US * US) if us >= US else span(us / US)


def _peak(peak: Peak, times: Times) -> str:
    return f"{counted(peak.starts, 'start')} at {times.show(peak.at)}"


def drained(f: Forecast) -> str:
    """When the workers are through with the peak."""
    drain = f.drain
    if drain.after is None:
        return f"unknown: {drain.why}"
    after = "" if drain.inside else " (beyond the span)"
    by = f"by {counted(drain.workers, 'worker')} and {counted(drain.measured, 'measured run')}"
    return f"{span(drain.after.total_seconds())} after it{after}, {by}"


def _spread(f: Forecast, times: Times) -> Iterator[tuple[str, str]]:
    """What spreading the starts on the hour would do; nothing when the peak would stay as it is."""
    spread = f.what_if
    if spread is None or not spread.moved or f.peak is None:
        return
    ways = (
        ("H as minute", spread.h_peak, " (H 0 * * *)"), (f"jitter {_duration(spread.jitter)}", spread.jitter_peak, ""),
    )
    helps = [(name, peak, how) for name, peak, how in ways if peak is not None and peak.starts < f.peak.starts]
    if helps:
        yield "on the hour", f"{counted(spread.moved, 'start')} of cron jobs without H or jitter"
    for name, peak, how in helps:
        change = round(100 * (peak.starts - f.peak.starts) / f.peak.starts)
        yield name, f"{change:+d} %: about {_peak(peak, times)}{how}"


def picture(counts: Sequence[int], start: datetime, bucket: timedelta, *, local: bool) -> Iterator[str]:
    """Bars of at most 80 columns, the peak marked; a column is as high as its busiest bucket."""
    high = max(counts)
    label = len(number(high))
    blocks = _BLOCKS if _can_show(_BLOCKS + _MARK) else _PLAIN
    room = WIDTH - label - 3
    each = -(-len(counts) // room)
    columns = [max(counts[i : i + each]) for i in range(0, len(counts), each)]
    wide = max(1, room // len(columns))
    top = columns.index(high)
    yield f"starts in the busiest {_duration(bucket)} of each column ({_duration(each * bucket)}), {'local time' if local else 'UTC'}"
    yield " " * (label + 2 + top * wide) + click.style(_MARK if blocks is _BLOCKS else "v", fg="red")
    steps = len(blocks) - 1
    filled = [max(1, round(n * _HEIGHT * steps / high)) if n else 0 for n in columns]
    for line in range(_HEIGHT - 1, -1, -1):
        cells = [blocks[min(max(n - line * steps, 0), steps)] * wide for n in filled]
        text = "".join(cells[:top]) + click.style(cells[top], fg="red") + "".join(cells[top + 1 :]).rstrip()
        yield f"{number(high) if line == _HEIGHT - 1 else '':>{label}} |{text}"
    yield f"{0:>{label}} +" + "-" * (wide * len(columns))
    yield " " * (label + 2) + _ticks(len(columns) * wide, start, bucket * each / wide, local=local)


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _ticks(width: int, start: datetime, column: timedelta, *, local: bool) -> str:
    """Times below a picture: of day, or dates when it is longer than two days."""
    form = "%m-%d %H:%M" if column * width > timedelta(days=2) else "%H:%M" if column >= timedelta(seconds=10) else "%H:%M:%S"
    out = ""
    for at in range(0, width, _TICK):
        moment = start + at * column
        text = (moment.astimezone() if local else moment.astimezone(UTC)).strftime(form)
        if at + len(text) <= width:
            out = out.ljust(at) + text
    return out


def _tables(f: Forecast, times: Times) -> None:
    if f.peak is None:
        return
    click.echo("")
    most = sorted(f.queues, key=lambda q: -q.starts)
    table(("queue", "starts#", "peak#", "at"), (
        (cut(q.name, 30), number(q.starts), number(q.peak.starts), times.show(q.peak.at)) for q in most[:_QUEUES] if q.peak is not None
    ))
    if len(most) > _QUEUES:
        click.echo(f"and {counted(len(most) - _QUEUES, 'more queue')}: see -o json")
    click.echo("")
    table(("who makes the peak", "schedule", "starts#", "jobs#"), (
        (cut(c.job or f"{c.namespace}/*", 28), cut(f"{c.schedule} {c.tz if c.tz != 'UTC' else ''}", 30), number(c.starts), number(c.jobs))
        for c in f.contributors
    ))


def _draw(f: Forecast, path: str) -> None:
    """The histogram as a picture in a file, a colour for each of the largest queues."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(12, 5), layout="constrained")
    axes: Any = figure.add_subplot()
    most = sorted(f.queues, key=lambda q: -q.starts)
    layers = [(q.name, q.counts) for q in most[:_PLOTTED]]
    if len(most) > _PLOTTED:
        layers.append(("others", tuple(map(sum, zip(*(q.counts for q in most[_PLOTTED:]), strict=True)))))
    edges = [f.start + i * f.bucket for i in range(len(f.counts) + 1)]
    below = [0] * len(f.counts)
    for name, counts in layers:
        above = [a + b for a, b in zip(below, counts, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, label=name)
        below = above
    if f.peak is not None:
        middle = f.peak.at + f.bucket / 2
        late = middle - f.start > (f.end - f.start) / 2
        axes.plot([middle], [f.peak.starts * 1.02], marker="v", color="tab:red")
        axes.annotate(f"{number(f.peak.starts)} at {f.peak.at:%Y-%m-%d %H:%M:%S}Z", (middle, f.peak.starts * 1.02), (-8 if late else 8, 2),
                      textcoords="offset points", ha="right" if late else "left", color="tab:red")
        figure.legend(title="queue", loc="outside right upper")
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(1, *f.counts) * 1.12)
    axes.set_ylabel(f"starts each {_duration(f.bucket)}")
    axes.set_xlabel("UTC")
    try:
        figure.savefig(path)
    except OSError as e:
        raise Failed(f"{path}: {e.strerror or e}", EXIT_FAILED) from e
    say(f"drawn into {path}")
