"""The midnight spike, end to end: `wheelsched bench midnight` as rows."""

from __future__ import annotations

from typing import Any

from wheelsched.cli.bench.midnight import midnight

NAME = "midnight"
DESCRIPTION = "N runs due at one instant: ingest, lags, drain, memory and journal bytes, with durable trigger, lease and completion"


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    rows = []
    for mix in ("oneshot", "real"):
        n = 500 if smoke else 1_000_000
        r = midnight(n, mix, 2)
        rows += [{"name": f"{mix}: ingest", "value": n / r["ingest_s"], "unit": "jobs/s", "n": n}]
        for lag in ("queued", "start", "done"):
            rows += [{"name": f"{mix}: {lag} lag {q}", "value": r[f"{lag}_lag_ms"][q], "unit": "ms", "n": n} for q in ("p50", "p99", "max")]
        rows += [
            {"name": f"{mix}: drain", "value": float(r["runs_per_s"] or 0), "unit": "runs/s", "n": n},
            {"name": f"{mix}: memory", "value": r["rss_bytes_per_job"], "unit": "B/job", "n": n},
            {"name": f"{mix}: journal", "value": r["journal_bytes"] / n, "unit": "B/run", "n": n},
            {"name": f"{mix}: syncs", "value": float(r["fsyncs"]), "unit": "syncs", "n": n},
            {"name": f"{mix}: duplicates + lost", "value": float(r["duplicates"] + r["lost"]), "unit": "runs", "n": n},
        ]
    return rows
