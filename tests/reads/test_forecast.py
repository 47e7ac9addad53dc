"""Forecasts against a dumb twin that asks each schedule for each of its times."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

import numpy as np
import pytest

from tests.rigs.server import wait_for
from wheelsched import AsyncClient, At, Call, Cron, Every, Job, Manual, Retry
from wheelsched.cli.bench.midnight import corpus
from wheelsched.model.errors import InvalidArgumentError, ScheduleError, UnavailableError
from wheelsched.model.nouns import NEVER, US, parse_job_name
from wheelsched.protocol.frames import Request, encode_request, parse_reply
from wheelsched.reads._forecast import Lines, count_at, count_every
from wheelsched.reads.forecast import BUCKETS_MAX, CELLS_MAX, OTHERS, Forecast, forecast_now
from wheelsched.reads.forecast_answer import drain_us, what_if
from wheelsched.reads.forecast_walk import UNLIMITED, WALK, Walk
from wheelsched.server.forecasts import Forecasts
from wheelsched.simulator.simulator import Simulator

START = "2026-10-24T21:58:31.250Z"  # 25 hours before Berlin's clock goes back
HOUR = 3_600 * US
CORPUS = [expr for _, expr in corpus()]


def expressions(chooser, n):
    """So many of the corpus that are ours, with a zone."""
    found = []
    while len(found) < n:
        try:
            found.append(Cron(chooser.choice(CORPUS), tz=chooser.choice(["UTC", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe"])))
        except ScheduleError:
            continue
    return found


def times(job, span_end, now):
    """Coming times of one job, asked one by one."""
    if job.state != "active":
        return []
    policies, schedule = job.spec, job.schedule
    if isinstance(schedule, Cron):
        schedule = replace(schedule, hash_id=parse_job_name(job.name))
    first = now if policies["start_us"] is None else max(now, datetime.fromtimestamp(0, UTC) + timedelta(microseconds=policies["start_us"]))
    end = span_end if policies["end_us"] is None else min(span_end, datetime.fromtimestamp(0, UTC) + timedelta(microseconds=policies["end_us"] + 1))
    found, after = [], first - timedelta(microseconds=1)
    while len(found) < (policies["max_runs"] or math.inf):
        some = schedule.next(after, 500)
        found += [t.astimezone(UTC) for t in some if t < end]
        if len(some) < 500 or some[-1] >= end:
            break
        after = some[-1]
    return found[: policies["max_runs"]]


def dumb(client, forecast, queue="*"):
    """queue -> bucket -> starts, from what the client sees of jobs and runs."""
    counts = {}
    due = [(job.spec["queue"], t) for job in client.jobs(state="active") for t in times(job, forecast.end, forecast.now)]
    due += [(run.queue, max(run.next_at, forecast.now)) for run in client.runs() if run.next_at is not None and run.next_at < forecast.end]
    for name, t in due:
        if fnmatchcase(name, queue):
            counts.setdefault(name, Counter())[(t - forecast.start) // forecast.bucket] += 1
    return counts


def as_counter(counts):
    return Counter({i: n for i, n in enumerate(counts) if n})


def random_jobs(chooser, n):
    jobs = []
    for i, cron in enumerate(expressions(chooser, n)):
        kind = chooser.random()
        period = chooser.choice([0.1, 0.25, 1, 7, 7.001, 30, 45, 59.999, 60, 61, 90, 3600, 5400, 86400, 90000]) + chooser.choice([0, 0, 0.013])
        if kind < 0.5:
            schedule = cron
        elif kind < 0.8:
            schedule = Every(f"{round(period * 1000)}ms", anchor=chooser.choice([None, "2026-10-01T00:00:00.123Z", "2026-10-25T03:00:00Z"]))
        elif kind < 0.95:
            schedule = At(datetime(2026, 10, 24, 22, tzinfo=UTC) + timedelta(milliseconds=chooser.randrange(90_000_000)))
        else:
            schedule = Manual()
        policies = {"queue": chooser.choice(["default", "mail", "mail.slow", "reports"])}
        if not isinstance(schedule, At | Manual):
            policies |= chooser.choice([{}, {}, {"max_runs": chooser.randrange(1, 200)}, {"end": "2026-10-25T04:00:00Z"}, {
                "start": "2026-10-25T01:30:00.5Z"}, {"start": "2026-10-24T23:00:00Z", "end": "2026-10-25T22:00:00Z", "max_runs": 50}])
        jobs.append(Job(f"{chooser.choice(['a', 'b'])}/{i}", Call(chooser.choice(["t", "u"])), schedule, **policies))
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.nightly), 1, pytest.param(2, marks=pytest.mark.nightly), 3, 4, 5, 6, 7])
def test_counts_are_those_of_the_schedules(seed):
    chooser = random.Random(seed)
    span, bucket, queue = chooser.choice([("24h", "1m", None), ("5h", "1s", "mail*"), ("3h", "7m", None), ("26h", "1h", "*"), ("90s", "1s", None)])
    with Simulator(start=START) as sim:
        sim.client.put_many(random_jobs(chooser, 60))
        for k in range(5):
            sim.client.enqueue(Call("t"), delay=f"{chooser.randrange(1, 80_000)}s", queue="mail", key=str(k))
        found = sim.client.forecast(span, bucket, queue)
        wanted = dumb(sim.client, found, queue or "*")
        told = f"seed {seed}: {span} {bucket} {queue}"
        assert {q.name: as_counter(q.counts) for q in found.queues} == wanted, told
        total = sum(wanted.values(), Counter())
        assert as_counter(found.counts) == total, told
        assert found.starts == total.total(), told
        if total:
            high = max(total.values())
            assert found.peak.starts == high, told
            assert found.peak.at == found.start + min(i for i, n in total.items() if n == high) * found.bucket, told
            if len(found.contributors) < 10:
                assert sum(c.starts for c in found.contributors) == high, told
        assert found.start <= found.now < found.start + found.bucket
        assert found.end >= found.now + timedelta(seconds=1)


@pytest.mark.slow
def test_many_jobs_alike_and_apart():
    """More lines than one block, hours that many share, and each its own grid."""
    with Simulator(start=START) as sim:
        sim.client.put_many(
            [Job(f"own/{i}", Call("t"), Cron(f"{i % 60} {i // 60 % 24} * * *"), max_runs=1 + i) for i in range(5_000)]
            + [Job(f"same/{i}", Call("t"), Cron("*/10 * * * *")) for i in range(3_000)]
            + [Job(f"grid/{i}", Call("t"), Every("90s", anchor=datetime(2026, 10, 24, tzinfo=UTC) + timedelta(milliseconds=i))) for i in range(3_000)]
        )
        found = sim.client.forecast("24h", "1m")
        assert found.jobs == 11_000
        assert found.starts == 5_000 + 3_000 * 144 + sum(
            (found.end - first + timedelta(seconds=89, microseconds=999_999)) // timedelta(seconds=90)
            for first in (sim.client.next(f"grid/{i}")[0] for i in range(3_000))
        )
        shares = {(c.namespace, c.schedule): (c.starts, c.jobs) for c in found.contributors}
        assert shares["same", "*/10 * * * *"] == (3_000, 3_000)
        assert found.contributors[0].job is None


def test_pauses_waits_and_overdue_starts():
    with Simulator(start="2026-11-29T12:00:30Z", tasks={"bad": lambda: 1 / 0}) as sim:
        ws = sim.client
        ws.put("held", Call("t"), Cron("* * * * *"), paused=True)
        ws.put("gone", Call("t"), Cron("* * * * *"))
        ws.delete("gone")
        ws.put("after", Call("t"), At("2026-11-29T12:05:00Z"))
        ws.enqueue(Call("t"), delay="10m")
        ws.enqueue(Call("t"), delay="2d")
        ws.enqueue(Call("bad"), retry=Retry(attempts=2, backoff="20m"))
        sim.advance(1)
        found = ws.forecast()
        assert (found.paused, found.jobs, found.delayed, found.retries, found.starts) == (1, 1, 1, 1, 3)
        [retry] = [run.next_at for run in ws.runs() if run.state == "retry_wait"]
        assert as_counter(found.counts) == {5: 1, 10: 1, (retry - found.start) // found.bucket: 1}
        [top] = found.contributors
        assert (found.peak.starts, top.job, top.schedule) == (1, "after", "once")
        engine = sim.engine
        late = forecast_now(engine, {"for_us": HOUR, "bucket_us": 60 * US, "queue": None}, sim.now_us + 1_800 * US)
        assert as_counter(np.frombuffer(late["counts"], "<i8").tolist()) == {0: 3}, "what is overdue starts at once"
        ws.put("few", Call("t"), Every("10m"), max_runs=3, queue="few")
        late = forecast_now(engine, {"for_us": HOUR, "bucket_us": 60 * US, "queue": "few"}, sim.now_us + 605 * US)
        assert as_counter(np.frombuffer(late["counts"], "<i8").tolist()) == {0: 1, 10: 1, 20: 1}


def queued(client, forecast):
    """queue -> bucket -> runs that came in the span, as they came."""
    counts = {}
    for run in client.runs():
        if run.queued_at is not None and forecast.now <= run.queued_at < forecast.end:
            counts.setdefault(run.queue, Counter())[(run.queued_at - forecast.start) // forecast.bucket] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 3, 4)), 1, 2, 5])
def test_a_forecast_comes_true(seed):
    """Jitter, calendars, unions, skipped and moved occurrences: as the engine then does it."""
    chooser = random.Random(1_000 + seed)
    with Simulator(start=START, tasks={"t": lambda: None, "u": lambda: None}) as sim:
        day = sim.now_us // (24 * HOUR) * 24 * HOUR
        for name, begin, end in (("dusk", day + 22 * HOUR, day + 23 * HOUR), ("late", day + 25 * HOUR + 60 * US, day + 60 * HOUR)):
            windows = [{"from_us": begin, "to_us": end}]
            sim.ask("calendar_put", {"rid": name.encode().ljust(16), "name": name, "calendar": {"mode": "exclude", "tz": "UTC", "windows": windows}})
        for i, cron in enumerate(expressions(chooser, 25)):
            if len(cron.expr.split()) > 5:
                continue  # each second is slow to simulate
            schedule = chooser.choice([
                cron, cron, Every(chooser.choice(["61s", "5m", "17m30s"])), [cron, Every("13m"), Cron("*/20 * * * *")],
                At(datetime(2026, 10, 24, 22, tzinfo=UTC) + timedelta(seconds=chooser.randrange(15_000))),
            ])
            policies = {"queue": chooser.choice(["a", "b"]), "overlap": "allow"}
            policies |= chooser.choice([{}, {"jitter": chooser.choice(["40s", "20m"])}, {"jitter": "30s", "calendar": "dusk"}])
            if not isinstance(schedule, At):
                policies |= chooser.choice([{}, {"jitter": "50%"}, {"calendar": ["dusk", "late"]}, {"max_runs": 7}, {"max_runs": 7, "calendar": "dusk"}])
            sim.client.put(f"n/{i}", Call(chooser.choice(["t", "u"])), schedule, **policies)
        for i in range(3):
            sim.client.put(f"n/x{i}", Call("t"), Every("10m"), queue="x", overlap="allow", **chooser.choice([{}, {"max_runs": 9}, {"jitter": "5m"}]))
            times = sim.client.next(f"n/x{i}", 6)
            sim.client.skip(f"n/x{i}", times[2])
            sim.client.move(f"n/x{i}", times[4], times[0] + timedelta(seconds=77))
        found = sim.client.forecast("4h", chooser.choice(["1m", "1s", "7m"]))
        sim.advance(to=found.end)
        assert {q.name: as_counter(q.counts) for q in found.queues} == queued(sim.client, found), f"seed {seed}"
        assert not found.peak or len(found.contributors) == 10 or sum(c.starts for c in found.contributors) == found.peak.starts


def test_nothing_at_all():
    with Simulator() as sim:
        found = sim.client.forecast("1h", "1s")
        assert (found.starts, found.peak, found.queues, found.what_if, found.drain.why) == (0, None, (), None, "nothing starts")
        assert len(found.counts) == 3_600
        assert found.to_dict()["counts"] == [0] * 3_600


def test_the_drain_needs_measured_runs():
    with Simulator(start="2026-11-29T12:00:00Z", tasks={"slow": lambda: sim.advance(10)}) as sim:
        for i in range(6):
            sim.client.put(f"j{i}", Call("slow"), Cron("0 13 * * *"))
        assert sim.client.forecast().drain.why == "no run measured yet"
        sim.client.enqueue(Call("slow"))
        sim.advance(30)
        drain = sim.client.forecast().drain
        assert (drain.after, drain.inside, drain.measured, drain.workers, drain.unmeasured) == (timedelta(seconds=60), True, 1, 1, ())
        sim.client.put("other", Call("never.ran"), Cron("0 13 * * *"))
        drain = sim.client.forecast().drain
        assert (drain.after, drain.unmeasured) == (timedelta(seconds=70), ("never.ran",))


def test_drain_by_hand():
    work = np.array([0, 100, 30, 0, 0], np.float64) * US
    assert drain_us(work, 1, 60 * US, 1, 0.0) == (130 * US, True)
    assert drain_us(work, 1, 60 * US, 2, 0.0) == (50 * US, True)
    assert drain_us(work, 1, 60 * US, 1, 80.0 * US) == (150 * US, True), "what waits already goes first"
    assert drain_us(work, 1, 10 * US, 1, 0.0) == (130 * US, False)


def test_what_spreading_would_change():
    with Simulator(start="2026-11-29T12:00:00Z") as sim:
        sim.client.put_many([Job(f"h{i}", Call("t"), Cron("0 3 * * *")) for i in range(600)])
        sim.client.put_many([Job(f"x{i}", Call("t"), Cron("H 3 * * *")) for i in range(30)])
        sim.client.put("m", Call("t"), Cron("1 3 * * *"))
        found = sim.client.forecast()
        spread = found.what_if
        assert found.peak.at == datetime(2026, 11, 30, 3, tzinfo=UTC)
        assert spread.moved == 600, "H is spread already"
        own = Counter((sim.client.next(f"x{i}")[0].minute) for i in range(30)) + Counter({1: 1})
        assert spread.h_peak.starts == 10 + max(own.values())
        assert spread.jitter_peak.starts == 120 + max(own[minute] for minute in range(5))
        fine = sim.client.forecast("24h", "1s").what_if
        assert fine.h_peak.starts == 10 + max(own.values())
        assert fine.jitter_peak.starts == 2 + max(own[minute] for minute in range(5))


def test_spreading_keeps_the_number_of_starts():
    chooser = np.random.default_rng(5)
    for bucket_us in (US, 60 * US, 420 * US, HOUR, 2 * HOUR):
        n = 26 * HOUR // bucket_us
        hours = np.concatenate((chooser.integers(0, 50, 24), np.zeros(3, np.int64)))
        total = np.zeros(n, np.int64)
        np.add.at(total, np.arange(27)[:26] * HOUR // bucket_us, hours[:26])
        answer = what_if(total, hours, 0, bucket_us)
        assert answer["moved"] == hours.sum()
        assert answer["h"]["starts"] <= total.max()
        assert answer["jitter"]["starts"] <= total.max()


def test_bad_questions():
    with Simulator() as sim:
        ask = sim.client.forecast
        for span, bucket in (("0s", "1s"), ("32d", "1h"), ("1h", "0s"), ("1h", "500ms"), ("1500ms", "1s"), ("1m", "2m"), ("31d", "25h")):
            with pytest.raises(InvalidArgumentError):
                ask(span, bucket)
        with pytest.raises(InvalidArgumentError, match=f"at most {BUCKETS_MAX:,}"):
            ask("31d", "1s")
        with pytest.raises(InvalidArgumentError, match="queue"):
            ask(queue=7)
        for args in ({}, {"for_us": True, "bucket_us": US}, {"for_us": "1", "bucket_us": US}, {"for_us": HOUR, "bucket_us": US, "queue": b"x"}):
            with pytest.raises(InvalidArgumentError):
                forecast_now(sim.engine, args, sim.now_us)
        assert len(ask("99999s", "1s").counts) in (99_999, BUCKETS_MAX)


def test_too_many_queues_are_told_as_one():
    with Simulator(start="2026-11-29T12:00:00Z") as sim:
        sim.client.put_many([Job(f"j{i}", Call("t"), At("2026-11-29T13:00:00Z"), queue=f"q{i}") for i in range(30)])
        found = sim.client.forecast("24h", "1s")
        rows = CELLS_MAX // len(found.counts)
        assert len(found.queues) == rows < 30
        assert {q.name: q.starts for q in found.queues}[OTHERS] == 31 - rows
        assert found.starts == 30


def test_pieces_are_small_and_the_table_may_change_meanwhile():
    with Simulator(start=START) as sim:
        sim.client.put_many([Job(f"j{i}", Call("t"), Cron(f"{i % 60} * * * *")) for i in range(6_000)])
        pieces = Forecast(sim.engine, {"for_us": 24 * HOUR, "bucket_us": 60 * US, "queue": None}, sim.now_us).pieces()
        next(pieces)
        for i in range(5_000, 5_100):
            sim.client.delete(f"j{i}")
        sim.client.put_many([Job(f"new/{i}", Call("v"), Cron("30 5 * * *"), queue="fresh") for i in range(3_000)])
        steps = 0
        while True:
            try:
                next(pieces)
            except StopIteration as done:
                assert done.value["starts"] == 5_900 * 24 + 3_000
                break
            steps += 1
        assert steps >= 10


# The parts


def table():
    with Simulator() as sim:
        return sim.engine.specs.schedules


def test_walks_meet_every_occurrence_once():
    """Lanes and rounds against one walk a line, with limits."""
    chooser = random.Random(3)
    schedules = table()
    lines = np.zeros(40, WALK)
    begin, end = 1_793_000_000 * US, 1_793_000_000 * US + 2 * HOUR
    for i in range(40):
        lines["kind"][i], lines["a"][i] = 2, chooser.choice([700_000, US, 60 * US, HOUR])
        lines["anchor"][i] = begin - chooser.randrange(1, HOUR)
        lines["left"][i] = chooser.choice([UNLIMITED, UNLIMITED, 1, 300])
        lines["until"][i] = end - chooser.randrange(HOUR)
        lines["at"][i] = schedules.next_one(2, int(lines["a"][i]), int(lines["anchor"][i]), begin)
    lines["line"] = np.arange(40)
    wanted = [
        min(int(r["left"]), (int(r["until"]) - int(r["at"])) // int(r["a"]) + 1 if r["at"] <= r["until"] else 0) for r in lines
    ]
    lines["left"][0], lines["a"][0] = UNLIMITED, US
    lines["until"][0] = lines["at"][0] + 64 * US + 64 * 50 * US  # the ends of 64 lanes fall on occurrences
    wanted[0] = 65 + 64 * 50
    for size, chosen in ((64, slice(0, 1)), (64, slice(None)), (4_096, slice(None))):
        seen = set()

        def step(rows, after):
            out = np.empty(len(rows), np.int64)
            schedules.next_many(*(np.ascontiguousarray(rows[name]) for name in ("kind", "a", "anchor")), after, out)
            return out

        def sink(rows, following, seen=seen):
            for line, at in zip(rows["line"].tolist(), rows["at"].tolist(), strict=True):
                assert (line, at) not in seen
                seen.add((line, at))
            return True

        walk = Walk(step, sink, size)
        for _ in walk.feed(lines[chosen].copy()):
            pass
        for _ in walk.finish():
            pass
        counts = Counter(line for line, _ in seen)
        assert [counts[i] for i in range(40)[chosen]] == wanted[chosen]


def test_lines_are_counted_by_their_four_numbers():
    chooser = np.random.default_rng(9)
    lines, wanted, firsts = Lines(4), Counter(), {}
    for _ in range(30):
        spec = chooser.integers(0, 50, 500).astype(np.uint32)
        x, y, n = (chooser.integers(-3, high, 500) for high in (3, 20, 2))
        row = chooser.integers(0, 1_000_000, 500).astype(np.uint32)
        lines.add(spec, x, y, n, row)
        for key, first in zip(zip(*(c.tolist() for c in (spec, x, y, n)), strict=True), row.tolist(), strict=True):
            wanted[key] += 1
            firsts.setdefault(key, first)
    spec, x, y, n, weight, first = lines.slice(0, 10**6)
    assert len(lines) == len(spec) == len(wanted)
    keys = list(zip(*(c.tolist() for c in (spec, x, y, n)), strict=True))
    assert dict(zip(keys, weight.tolist(), strict=True)) == wanted
    assert dict(zip(keys, first.tolist(), strict=True)) == firsts
    assert [c.tolist() for c in lines.slice(5, 9)] == [c[5:9].tolist() for c in (spec, x, y, n, weight, first)]
    assert len(lines.slice(9, 5)[0]) == 0
    with pytest.raises(ValueError, match="length"):
        lines.add(spec, x, y, n, first[1:])


def test_counting_refuses_what_does_not_fit():
    starts, work, hours = np.zeros((1, 10), np.int64), np.zeros(10), np.zeros(1, np.int64)
    one, cost, flag = np.ones(1, np.int64), np.ones(1), np.ones(1, np.uint8)
    row = np.zeros(1, np.uint32)
    for at in (-1, 9 * US, 10 * US, NEVER):
        count_at(starts, work, hours, 0, US, np.array([at]), row, one, cost, flag)
    assert starts.tolist() == [[0] * 9 + [1]]
    count_every(starts, work, one * 3, one * 2, one * 1, one * 100, row, one, cost)
    assert starts.tolist() == [[1, 0, 1, 1, 0, 1, 1, 0, 1, 2]]
    with pytest.raises(IndexError):
        count_at(starts, work, hours, 0, US, one, row + 1, one, cost, flag)
    with pytest.raises(ValueError, match="length"):
        count_at(starts, work[1:], hours, 0, US, one, row, one, cost, flag)
    with pytest.raises(ValueError, match="positive"):
        count_every(starts, work, one * 0, one, one, one, row, one, cost)
    assert starts.sum() == 8


# The server


def test_forecasts_wait_for_each_other_and_go_with_their_connection():
    with Simulator(start=START) as sim:
        sim.client.put("a", Call("t"), Cron("0 * * * *"))
        logged = []
        line = Forecasts(sim.engine, lambda text, *_: logged.append(text))
        asked = {"for_us": HOUR, "bucket_us": 60 * US, "queue": None}

        def replies(refusal=None):
            return [(conn, parse_reply(frame[4:])) for conn, frame in line.piece(sim.now_us, refusal)]

        for conn, number in ((1, 10), (2, 20), (1, 11)):
            assert line.add(conn, Request(number, "forecast", asked)) is None
        assert isinstance(parse_reply(line.add(3, Request(30, "forecast", {}))[4:]).error, InvalidArgumentError)
        assert replies() == [], "one piece is not all"
        line.drop(1)
        assert len(line) == 1
        found = []
        while line:
            found += replies()
        assert [(conn, reply.id, type(reply.error)) for conn, reply in found] == [(2, 20, type(None))]
        assert found[0][1].result["starts"] == 1
        for number in range(4):
            line.add(4, Request(number + 1, "forecast", asked))
        refused = replies(UnavailableError("the end"))
        assert (len(refused), {reply.error.code for _, reply in refused}, len(line)) == (4, {"unavailable"}, 0)
        sim.engine.state.meta = None
        line.add(5, Request(1, "forecast", asked))
        found = []
        while line:
            found += replies()
        assert [reply.error.code for _, reply in found] == ["internal"]
        assert len(logged) == 1


def test_the_async_client_asks_too(serving):
    server = serving(workers=0)
    server.client().put("a", Call("t.echo", 1), Cron("0 0 * * *"))

    async def ask():
        async with AsyncClient(server.socket) as ws:
            return await ws.forecast("24h", "1h")

    found = asyncio.run(ask())
    assert (found.starts, found.contributors[0].job) == (1, "a")


def test_a_server_answers_while_it_triggers(serving):
    server = serving()
    ws = server.client()
    ws.put_many([Job(f"j{i}", Call("t.echo", i), Cron(f"{i % 60} */2 * * *"), queue=f"q{i % 3}") for i in range(5_000)])
    ws.put_many([Job(f"e{i}", Call("t.echo", i), Every("7s")) for i in range(100)])
    impatient = server.connect()
    impatient.sendall(encode_request(1, "hello", {"version": 1, "role": "client", "name": "x"}))
    impatient.sendall(b"".join(encode_request(2 + i, "forecast", {"for_us": 24 * HOUR, "bucket_us": US, "queue": None}) for i in range(20)))
    found = ws.forecast("24h", "1m")
    impatient.close()
    assert found.jobs == 5_100
    assert {q.name for q in found.queues} == {"q0", "q1", "q2", "default"}
    assert found.queues[0].starts == 12 * sum(1 for i in range(5_000) if i % 3 == 0)
    with pytest.raises(InvalidArgumentError):
        ws.forecast("40d")
    run = ws.enqueue(Call("t.echo", 5))
    assert run.result(timeout=20) == 5
    wait_for(lambda: ws.forecast().drain.measured > 0)
    assert ws.forecast("2h", "1s", "q1").queues[0].name == "q1"
    assert server.end() == 0
