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

from wheelsched.model.errors import ScheduleError
from wheelsched.schedules.expressions import Zones, parse
from wheelsched.schedules.schedule import Cron, Every
from wheelsched.schedules.table import ScheduleTable
from wheelsched.schedules.zonedata import load_zone

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


def row(name: str, value: float, n: int, unit: str = "µs/call") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "n": n}


def bulk(
    texts: list[str], weights: list[int], n: int, rng: random.Random
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Our rows, and the draw that the peers repeat."""
    table = ScheduleTable(Zones(load_zone))
    draw = [(text, rng.choice(ZONES)) for text in rng.choices(texts, weights, k=n)]
    held = {}
    for text, tz in set(draw):
        held[text, tz] = table.compile(Cron(text, tz, hash_id="x").to_wire(), "x")
    kind = np.ones(n, np.uint8)
    a = np.array([held[d][1] for d in draw], np.int64)
    index = a.astype(np.uint32)
    anchor, out = np.zeros(n, np.int64), np.empty(n, np.int64)
    now = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 1_000_000
    spread = np.array([now + rng.randrange(365 * 86_400) * 1_000_000 for _ in range(n)], np.int64)
    same = np.full(n, now, np.int64)
    cron_table = table._table
    one = [int(i) for i in index[: min(n, 100_000)]]
    rows = [
        row("next_many, one instant", timed(lambda: cron_table.next_many(index, same, out), n), n),
        row("next_many, random instants", timed(lambda: cron_table.next_many(index, spread, out), n), n),
        row("prev_many, random instants", timed(lambda: cron_table.prev_many(index, spread, out), n), n),
        row("ScheduleTable.next_many", timed(lambda: table.next_many(kind, a, anchor, same, out), n), n),
        row("next_one", timed(lambda: [cron_table.next_one(i, now) for i in one], len(one)), len(one)),
    ]
    return rows, draw


def counting(rounds: int) -> list[dict[str, Any]]:
    """Counting what a long outage missed, and what the due path asks about changes of the clock."""
    table = ScheduleTable(Zones(load_zone))
    until = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 1_000_000
    after = until - 100_000_000 * 1_000_000
    second = table.compile(Cron("* * * * * *", "Europe/Berlin").to_wire(), "x")
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    members = [Cron("* * * * * *", "Europe/Berlin"), Cron("0 9 * * *", "America/New_York"), Every("1500ms", begin)]
    of = [{"schedule": member.to_wire(), "param_us": member.param_us()} for member in members]
    union = table.compile({"kind": "union", "of": of}, "x")
    daily = table.compile(Cron("30 2 * * *", "Europe/Berlin").to_wire(), "x")
    many, day_us = range(1_000), 86_400_000_000
    return [
        row("count 100M occurrences", timed(lambda: table.count_between(*second, 0, after, until, 2**32 - 1), 1, rounds), 1),
        row("count 100M of a union of three", timed(lambda: table.count_between(*union, 0, after, until, 2**32 - 1), 1, rounds), 1),
        row("quiet", timed(lambda: [table.quiet(*daily, until) for _ in many], len(many), rounds), len(many)),
        row("dropped, one day", timed(lambda: [table.dropped(*daily, 0, until - day_us, until) for _ in many], 1_000, rounds), 1_000),
    ]


def peers(draw: list[tuple[str, str]], n: int) -> list[dict[str, Any]]:
    """croniter and cronsim on the same draw, where they take the expression."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    peers_cronsim, peers_croniter = [], []
    for text, tz in draw:
        at = start.astimezone(ZoneInfo(tz))
        if "H" not in text and len(text.split()) == 5:
            peers_croniter.append(croniter(text, at))
            try:
                peers_cronsim.append(CronSim(text, at))
            except CronSimError:
                continue
        if len(peers_croniter) >= n:
            break
    n_croniter, n_cronsim = len(peers_croniter), len(peers_cronsim)
    sample = sorted({text for text, _ in draw if "H" not in text and len(text.split()) == 5})[:n]
    return [
        row("croniter get_next", timed(lambda: [c.get_next(datetime) for c in peers_croniter], n_croniter, 3), n_croniter),
        row("cronsim next", timed(lambda: [next(c) for c in peers_cronsim], n_cronsim, 3), n_cronsim),
        row("croniter parse", timed(lambda: [croniter(t, start) for t in sample], len(sample), 3), len(sample)),
    ]


def parsing(texts: list[str], rounds: int) -> list[dict[str, Any]]:
    """Distinct expressions, nothing cached; and a new Cron of a text seen before."""
    def cold() -> None:
        parse.cache_clear()
        for text in texts:
            parse(text, "first", True, "x")

    n = len(texts)
    return [
        row("parse, distinct expressions", timed(cold, n, rounds), n),
        row("Cron() of a known text", timed(lambda: [Cron(t, "Europe/Berlin", hash_id="x") for t in texts], n, rounds), n),
    ]


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    rng = random.Random(SEED)
    texts, weights, refused = corpus()
    rows, draw = bulk(texts, weights, 2_000 if smoke else 1_000_000, rng)
    rows += parsing(texts, 1 if smoke else ROUNDS)
    rows += counting(1 if smoke else ROUNDS)
    beside = peers(draw, 50 if smoke else 2_000)
    rows += beside
    rows.append(row("croniter / next_many", beside[0]["value"] / rows[0]["value"], 1, "ratio"))
    rows.append(row("cronsim / next_many", beside[1]["value"] / rows[0]["value"], 1, "ratio"))
    rows.append(row("corpus expressions refused", float(refused), len(texts) + refused, "expressions"))
    return rows
