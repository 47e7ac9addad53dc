"""Ends of spans are written alike in Python and on the command line."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta

import pytest

from tests.rigs.cli import Scripted, wire_job, wire_run
from tests.rigs.client import FakeServer
from wheelsched import Call, Every, InvalidArgumentError
from wheelsched.client.bounds import bound, coming
from wheelsched.simulator.simulator import Simulator

NOW = datetime(2026, 3, 2, 10, 30, tzinfo=UTC)


def now_us():
    return round(NOW.timestamp() * 1e6)


@pytest.mark.parametrize(("value", "begin", "end"), [
    ("1h", NOW - timedelta(hours=1), NOW - timedelta(hours=1)), ("1d2h", NOW - timedelta(hours=26), NOW - timedelta(hours=26)),
    (timedelta(minutes=5), NOW - timedelta(minutes=5), NOW - timedelta(minutes=5)),
    ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)), (date(2026, 3, 1), datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)),
    (None, None, None), (NOW, NOW, NOW), ("2026-03-01T00:00:00Z", "2026-03-01T00:00:00Z", "2026-03-01T00:00:00Z"), ("soon", "soon", "soon"),
])
def test_n_b20_what_an_end_may_be(value, begin, end):
    assert bound(value, "since", now_us) == begin
    assert bound(value, "until", now_us, end=True) == end
    if isinstance(value, timedelta):
        assert coming(value, "at", now_us) == NOW + value


def test_n_b20_the_clients_take_them():
    with Simulator("2026-03-02T00:00:00Z", tasks={"t": int}) as sim:
        ws = sim.client
        ws.put("j", Call("t"), Every("1h"))
        sim.advance("5h30m")
        assert [run.scheduled_at.hour for run in ws.runs("j", since="2h")] == [4, 5]
        assert [run.scheduled_at.hour for run in ws.runs("j", since=timedelta(hours=4), until="2h")] == [2, 3]
        assert len(list(ws.runs("j", since="2026-03-02", until="2026-03-02"))) == 5
        assert list(ws.runs("j", until="2026-03-01")) == []
        assert list(ws.dead(since="1h", until="2026-03-02")) == []
        assert ws.enqueue(Call("t"), at="90m").scheduled_at == datetime(2026, 3, 2, 7, tzinfo=UTC)
        for wrong in ("soon", "2026-13-01", 5):
            with pytest.raises(InvalidArgumentError):
                list(ws.runs(since=wrong))

        async def use():
            return [run.scheduled_at.hour for run in await sim.async_client.runs("j", since="2h")]

        assert asyncio.run(use()) == [4, 5]


def test_n_b20_an_instant_on_the_clock_of_a_zone(short_tmp):
    server = Scripted(short_tmp)
    server.answers |= {"put": wire_job(), "enqueue": wire_run("scheduled")}
    with FakeServer(server.path, server.handle):
        for at, tz, want in (("2026-12-01 03:00", "Europe/Berlin", "2026-12-01T02:00:00+00:00"), ("2026-12-01 03:00", None, "2026-12-01T03:00:00+00:00"),
                             ("2026-12-01T03:00:00Z", None, "2026-12-01T03:00:00+00:00"), ("2026-12-01", "Asia/Tokyo", "2026-11-30T15:00:00+00:00")):
            zone = ["--tz", tz] if tz else []
            us = round(datetime.fromisoformat(want).timestamp() * 1e6)
            assert server("job", "put", "a", "t", "--at", at, *zone).exit_code == 0
            assert server.args("put")["param_us"] == us
            assert server("enqueue", "t", "--at", at, *zone).exit_code == 0
            assert server.args("enqueue")["at_us"] == us
        assert server("job", "put", "a", "t", "--at", "2026-03-29 02:30", "--tz", "Europe/Berlin").exit_code == 2, "there is no such time"
        assert server("job", "put", "a", "t", "--at", "2026-12-01", "--tz", "No/Where").exit_code == 2
        assert server("job", "put", "a", "t", "--every", "1h", "--tz", "UTC").exit_code == 2
