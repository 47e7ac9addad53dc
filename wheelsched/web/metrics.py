"""What Prometheus scrapes: counters that the server keeps anyway, in base units. No job's name is in a label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import exposition as text_format
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.openmetrics import exposition as open_format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from ..client.views_forecast import Forecast
    from ..client.views_queues import QueueInfo
    from .reader import Reader

__all__ = ["QUEUES_MAX", "exposition"]

QUEUES_MAX: Final = 500
_OTHERS: Final = "(others)"
_RESULTS: Final = ("succeeded", "dead", "cancelled", "skipped", "expired")
_OUTCOMES: Final = {"succeeded": ("succeeded",), "failed": ("retried", "dead"), "snoozed": ("snoozed",), "interrupted": ("given_back",)}


class _Once:
    """A registry of what was collected already."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found


async def exposition(reader: Reader, accept: str) -> tuple[bytes, str]:
    """The text, in OpenMetrics where that is asked for, and its type. Errors of the client."""
    shot = await reader.snapshot()
    queues = await reader.ask(reader.client.queues(timeout="5s"))
    found: Any = _Once(
        [*_server(shot.stats), *_lags(shot.stats), *_queues(queues, shot.now.timestamp()), *_coming(await reader.forecast())]
    )
    if "application/openmetrics-text" in accept:
        body: bytes = open_format.generate_latest(found)  # type: ignore[no-untyped-call]  # of prometheus-client
        return body, open_format.CONTENT_TYPE_LATEST
    return text_format.generate_latest(found), text_format.CONTENT_TYPE_LATEST


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(f"wheelsched_{name}", told, value=value)


def _counts(name: str, told: str, label: str, values: dict[str, float]) -> Metric:
    family = CounterMetricFamily(f"wheelsched_{name}", told, labels=[label])
    for value, n in values.items():
        family.add_metric([value], n)
    return family


def _gauges(name: str, told: str, labels: list[str], rows: list[tuple[list[str], float]]) -> Metric:
    family = GaugeMetricFamily(f"wheelsched_{name}", told, labels=labels)
    for values, n in rows:
        family.add_metric(values, n)
    return family


def _server(s: dict[str, Any]) -> Iterator[Metric]:
    counters = s["counters"]
    yield InfoMetricFamily("wheelsched_build", "The server's version.", value={"version": _version(s)})
    yield InfoMetricFamily("wheelsched_tzdata", "The zone data in use.", value={"version": str(s.get("zone_version") or "")})
    yield _gauge("jobs", "Jobs, deleted ones that are remembered included.", s["jobs"])
    yield _counts(
        "runs", "Runs that ended, since the server's start.", "result", {name: counters[name] for name in _RESULTS if name in counters}
    )
    yield _counts(
        "attempts",
        "Attempts that ended, since the server's start.",
        "outcome",
        {word: sum(counters.get(name, 0) for name in names) for word, names in _OUTCOMES.items()},
    )
    yield _gauge("dead_letters", "Runs out of attempts that wait for a person.", s["dead_letters"])
    workers: dict[tuple[str, str], int] = {}
    for w in s["workers"]:
        key = str(w["kind"]), "ready" if w["ready"] else "starting"
        workers[key] = workers.get(key, 0) + 1
    yield _gauges("workers", "Worker processes.", ["kind", "state"], [(list(key), n) for key, n in sorted(workers.items())])
    if "connections" in s:
        yield _gauge("connections", "Open connections of clients and workers.", s["connections"])
    store, used = s.get("storage"), s["bytes"]
    kinds = {f"memory_{name}": n for name, n in used.items()}
    if store is not None:
        kinds |= {"used": store["used_bytes"], "free": store["free_bytes"]}
    yield _gauges(
        "store_bytes", "Bytes on disk (used, free) and of tables in memory.", ["kind"], [([k], n) for k, n in sorted(kinds.items())]
    )


def _lags(s: dict[str, Any]) -> Iterator[Metric]:
    """Behind the scheduled time: until the run was queued, until user code began, until the end was durable."""
    told = {"queued": "until it was queued", "start": "until user code began", "done": "until its success was durable"}
    for name, lag in s.get("lag_histograms", {}).items():
        count = s["lag_ms"][name]["count"]
        buckets = [*((f"{float(edge):g}", n) for edge, n in lag["le"]), ("+Inf", count)]
        text = f"How long a run lagged behind its scheduled time {told.get(name, name)}, since the server's start."
        yield HistogramMetricFamily(f"wheelsched_{name}_lag_seconds", text, buckets=buckets, sum_value=lag["sum_s"])


def _version(s: dict[str, Any]) -> str:
    return str(s.get("server") or "").rpartition(" ")[2]


def _queues(queues: list[QueueInfo], now: float) -> Iterator[Metric]:
    most = sorted(queues, key=lambda q: -q.queued - q.leased)
    shown, rest = most[:QUEUES_MAX], most[QUEUES_MAX:]
    depth = [([q.name, state], float(n)) for q in shown for state, n in (("queued", q.queued), ("leased", q.leased))]
    if rest:
        depth += [([_OTHERS, "queued"], sum(q.queued for q in rest)), ([_OTHERS, "leased"], sum(q.leased for q in rest))]
    ages = [([q.name], max(0.0, now - q.oldest.timestamp()) if q.oldest else 0.0) for q in shown]
    yield _gauges("queue_depth", "Runs that wait in a queue, and those of it that workers have.", ["queue", "state"], depth)
    yield _gauges("queue_oldest_age_seconds", "How long the run waits that waits longest.", ["queue"], ages)
    yield _gauges("queue_paused", "1 for a paused queue.", ["queue"], [([q.name], float(q.paused)) for q in shown])


def _coming(f: Forecast | None) -> Iterator[Metric]:
    """Of the last forecast, up to a minute old."""
    if f is None:
        return
    yield _gauges("upcoming_fires", "Starts that will come, as of the last minute.", ["window"], [(["1h"], f.starts)])
    yield _gauge("upcoming_peak_fires", "The most starts within a minute of the next hour.", f.peak.starts if f.peak else 0)
