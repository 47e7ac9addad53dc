"""Next times of a real mix of cron expressions and zones, in bulk and one by one, beside croniter and cronsim."""
from __future__ import annotations

import random
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from croniter import croniter
from cronsim import CronSim, CronSimError

from wheelsched.cron import Zones, parse
from wheelsched.errors import ScheduleError
from wheelsched.schedule import Cron, ScheduleTable
from wheelsched.zonedata import load_zone

NAME = "cron"
DESCRIPTION = "next occurrence per call over the corpus of real expressions and six zones; parse; croniter and cronsim"

CORPUS = Path(__file__).with_name("crontab_corpus.txt")
ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Sydney", "America/Sao_Paulo")
SEED = 20261129
ROUNDS = 5


def corpus() -> tuple[list[str], list[int], int]:
    """Expressions that are ours to run, how often each is seen in real files, and how many are refused."""
    texts, weights, refused = [], [], 0
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        seen, _, text = line.split("\t")
        if seen == "0":
            continue
        try:
            Cron(text, hash_id="bench")
        except ScheduleError:
            refused += 1
            continue
        texts.append(text)
        weights.append(int(seen))
    return texts, weights, refused


def timed(function: Any, n: int, rounds: int = ROUNDS) -> float:
    """Microseconds per call: the median of some rounds of n calls each."""
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        took.append((time.perf_counter() - start) / n * 1e6)
    return statistics.median(took)


def bulk(texts: list[str], weights: list[int], n: int, rng: random.Random) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Our rows, and the draw that the peers repeat."""
    table = ScheduleTable(Zones(load_zone))
    draw = [(text, rng.choice(ZONES)) for text in rng.choices(texts, weights, k=n)]
    held = {}
    for text, tz in set(draw):
        held[text, tz] = table.compile(Cron(text, tz).to_wire() if "H" not in text else Cron(text, tz, hash_id="x").to_wire(), "x")
    kind = np.ones(n, np.uint8)
    a = np.array([held[d][1] for d in draw], np.int64)
    index = a.astype(np.uint32)
    anchor, out = np.zeros(n, np.int64), np.empty(n, np.int64)
    now = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 1_000_000
    spread = np.array([now + rng.randrange(365 * 86_400) * 1_000_000 for _ in range(n)], np.int64)
    same = np.full(n, now, np.int64)
    cron_table = table._table
    rows = [
        {"name": "next_many, one instant", "value": timed(lambda: cron_table.next_many(index, same, out), n), "unit": "µs/call", "n": n},
        {"name": "next_many, random instants", "value": timed(lambda: cron_table.next_many(index, spread, out), n), "unit": "µs/call", "n": n},
        {"name": "prev_many, random instants", "value": timed(lambda: cron_table.prev_many(index, spread, out), n), "unit": "µs/call", "n": n},
        {"name": "ScheduleTable.next_many, one instant", "value": timed(lambda: table.next_many(kind, a, anchor, same, out), n),
         "unit": "µs/call", "n": n},
    ]
    one = [int(i) for i in index[: min(n, 100_000)]]
    rows.append({"name": "next_one", "value": timed(lambda: [cron_table.next_one(i, now) for i in one], len(one)), "unit": "µs/call", "n": len(one)})
    return rows, draw


def peers(draw: list[tuple[str, str]], n: int) -> list[dict[str, Any]]:
    """croniter and cronsim on the same draw, where they take the expression."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    ours, theirs = [], []
    for text, tz in draw:
        at = start.astimezone(ZoneInfo(tz))
        if "H" not in text and len(text.split()) == 5:
            theirs.append(croniter(text, at))
            try:
                ours.append(CronSim(text, at))
            except CronSimError:
                continue
        if len(theirs) >= n:
            break
    rows = [
        {"name": "croniter get_next", "value": timed(lambda: [c.get_next(datetime) for c in theirs], len(theirs), 3), "unit": "µs/call",
         "n": len(theirs)},
        {"name": "cronsim next", "value": timed(lambda: [next(c) for c in ours], len(ours), 3), "unit": "µs/call", "n": len(ours)},
    ]
    sample = sorted({text for text, _ in draw if "H" not in text and len(text.split()) == 5})[:n]
    rows.append({"name": "croniter parse", "value": timed(lambda: [croniter(t, start) for t in sample], len(sample), 3), "unit": "µs/call",
                 "n": len(sample)})
    return rows


def parsing(texts: list[str], rounds: int) -> list[dict[str, Any]]:
    """Distinct expressions, nothing cached; and a new Cron of a text seen before."""
    def cold() -> None:
        parse.cache_clear()
        for text in texts:
            parse(text, "first", True, "x")

    return [
        {"name": "parse, distinct expressions", "value": timed(cold, len(texts), rounds), "unit": "µs/call", "n": len(texts)},
        {"name": "Cron() of a known text", "value": timed(lambda: [Cron(t, "Europe/Berlin", hash_id="x") for t in texts], len(texts), rounds),
         "unit": "µs/call", "n": len(texts)},
    ]


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    rng = random.Random(SEED)
    texts, weights, refused = corpus()
    rows, draw = bulk(texts, weights, 2_000 if smoke else 1_000_000, rng)
    rows += parsing(texts, 1 if smoke else ROUNDS)
    beside = peers(draw, 50 if smoke else 2_000)
    rows += beside
    rows.append({"name": "croniter / next_many", "value": beside[0]["value"] / rows[0]["value"], "unit": "ratio", "n": 1})
    rows.append({"name": "cronsim / next_many", "value": beside[1]["value"] / rows[0]["value"], "unit": "ratio", "n": 1})
    rows.append({"name": "corpus expressions refused", "value": float(refused), "unit": "expressions", "n": len(texts) + refused})
    return rows
