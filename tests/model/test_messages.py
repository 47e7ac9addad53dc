"""What is told about values that can't be: in the words and units of who wrote them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from wheelsched import Catchup, Overlap, Retry
from wheelsched.client.verbs import checked_run_id
from wheelsched.model.errors import InvalidArgumentError, NotFoundError, ScheduleError
from wheelsched.model.nouns import Call, counted, format_duration, parse_duration
from wheelsched.protocol.definition import check_given, given_from_api
from wheelsched.schedules.schedule import At, Cron


def test_messages_about_durations_are_in_durations():
    with pytest.raises(InvalidArgumentError, match="late_after: 1ms to 100 years are allowed, not 0s"):
        given_from_api(Call("t"), Cron("* * * * *"), {"late_after": 0})
    with pytest.raises(InvalidArgumentError, match=r"timeout: a whole number of microseconds is wanted, not 1\.5"):
        check_given({"task": "t", "timeout_us": 1.5})
    with pytest.raises(InvalidArgumentError, match="retry backoff: 0s to 100 years are allowed, not -1 µs"):
        check_given({"task": "t", "retry": {"attempts": 1, "backoff_us": -1, "factor": 1, "cap_us": 0, "not_on": []}})


@pytest.mark.parametrize("offset", ["+99:00", "+24:00", "-12:60"])
def test_an_offset_that_is_none(offset):
    with pytest.raises(ScheduleError, match="is not RFC 3339; write it like 2026-11-29T08:30:00Z"):
        At("2026-01-01T00:00:00" + offset)


def test_an_expression_is_told_as_it_was_given():
    for expr in ("CRON_TZ=Europe/Berlin 0 0 * * *", "@Fortnightly", "A B", "0 0 * * \u00c4"):
        with pytest.raises(ScheduleError, match=re.escape(repr(expr))):
            Cron(expr)


@examples(st.integers(0, 3_162_240_000_000_000))
def test_a_duration_is_read_back_as_it_was_written(us):
    assert parse_duration(format_duration(us)) == us


def test_n_c6_one_is_no_plural():
    assert [counted(n, "run") for n in (0, 1, 2, 1_000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]


@pytest.mark.parametrize("make", [
    lambda: Retry(0), lambda: Retry(attempts=True), lambda: Retry(factor=0.5), lambda: Retry(backoff="soon"), lambda: Retry(cap="-1s"),
    lambda: Retry(errors=[("A", 1)]), lambda: Retry(errors={"A": 0}), lambda: Overlap("skipp"), lambda: Overlap("allow", max=0),
    lambda: Catchup("last"), lambda: Catchup("all", max=0), lambda: Catchup("all", window="x"),
])
def test_n_c17_what_can_not_be_is_refused_when_it_is_built(make):
    with pytest.raises(InvalidArgumentError):
        make()


def test_n_c16_no_run_has_a_malformed_id():
    for text in ("12", "", "Z" * 32, "A" * 32, "0" * 33):
        with pytest.raises(NotFoundError, match="32 hexadecimal digits"):
            checked_run_id(text)
    with pytest.raises(InvalidArgumentError):
        checked_run_id(7)

