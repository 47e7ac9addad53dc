"""Single runs on an idle server, end to end: `wheelsched bench latency` as rows."""

from __future__ import annotations

from typing import Any

from wheelsched.cli.bench.latency import latency

NAME = "latency"
DESCRIPTION = "start lag of single one-time runs at random sub-second times on an idle server with two workers"


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    n = 20 if smoke else 1_000
    r = latency(n, 2)
    rows = [
        {"name": f"{lag} lag {q}", "value": r[f"{lag}_lag_ms"][q], "unit": "ms", "n": n}
        for lag in ("queued", "start", "done") for q in ("p50", "p99", "max")
    ]
    return [*rows, {"name": "duplicates + lost", "value": float(r["duplicates"] + r["lost"]), "unit": "runs", "n": n}]
