"""Charts as SVG, made here: the browser draws, and no script is needed. Pure.

Each is an image with a text for who can't see it; the numbers stand in a table or a sentence beside it, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bars", "strip", "timeline"]

_W: Final = 600
_H: Final = 80


def _svg(label: str, width: float, height: float, inner: list[str], kind: str) -> Markup:
    box = f'viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none"'
    opened = f'<svg class="chart {escape(kind)}" role="img" aria-label="{escape(label)}" {box}>'
    return Markup(opened + f"<title>{escape(label)}</title>" + "".join(inner) + "</svg>")  # noqa: S704 - each text in it is escaped


def _rect(kind: str, x: float, y: float, w: float, h: float, title: str = "") -> str:
    told = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect class="{escape(kind)}" x="{x:.2f}" y="{y:.2f}" width="{max(w, 0.3):.2f}" height="{h:.2f}">{told}</rect>'


def bars(values: Sequence[float | None], label: str, titles: Sequence[str] = (), mark: int | None = None, kind: str = "bars") -> Markup:
    """A bar for each value, the highest as high as the chart; None: nothing is known of that time. `mark`: one that stands out."""
    top = max((v for v in values if v is not None), default=0) or 1
    step = _W / max(len(values), 1)
    inner = []
    for i, value in enumerate(values):
        if value is None:
            inner.append(_rect("unknown", i * step, _H - 1, step, 1))
        elif value > 0:
            high = max(1.5, _H * value / top)
            inner.append(_rect("mark" if i == mark else "bar", i * step, _H - high, step * 0.86, high, titles[i] if titles else ""))
    return _svg(label, _W, _H, [f'<line class="axis" x1="0" y1="{_H}" x2="{_W}" y2="{_H}"/>', *inner], kind)


def strip(runs: Sequence[tuple[str, float | None, str]], label: str) -> Markup:
    """(state, seconds, title) of each run, oldest first: a bar as high as the logarithm of its duration."""
    known = [s for _, s, _ in runs if s]
    low, high = math.log(max(min(known, default=0.001), 0.001)), math.log(max(*known, 0.002, 0.001))
    room = max(high - low, 1.0)
    step = _W / max(len(runs), 24)
    inner = []
    for i, (state, seconds, title) in enumerate(runs, max(0, 24 - len(runs))):
        share = 0.12 if not seconds else 0.2 + 0.8 * (math.log(max(seconds, 0.001)) - low) / room
        inner.append(_rect(f"s-{state}", i * step, _H * (1 - share), step * 0.8, _H * share, title))
    return _svg(label, _W, _H, inner, "strip")


def timeline(spans: Sequence[tuple[str, float, float, str]], total: float, label: str) -> Markup:
    """(kind, from, to, title) in seconds, a row for each."""
    row = 14
    total = total or 1
    inner = [_rect(kind, _W * a / total, i * row + 2, _W * (b - a) / total, row - 4, title) for i, (kind, a, b, title) in enumerate(spans)]
    return _svg(label, _W, row * max(len(spans), 1), inner, "timeline")
