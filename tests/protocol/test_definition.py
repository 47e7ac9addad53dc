"""Policies from the API to the wire, the server's check, and the resolved definition."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

import wheelsched
from wheelsched.model.errors import InvalidArgumentError, ScheduleError, UnimplementedError, WheelschedError
from wheelsched.model.nouns import ATTEMPTS_MAX, HOOKS, INSTANT_MAX_US, KEY_MAX, NEVER, OVERLAPS, US, Call
from wheelsched.model.policies import Catchup, Overlap, Retry
from wheelsched.protocol.checks import CHECKS, check_instant, check_param_us
from wheelsched.protocol.definition import POLICIES, check_announced, check_given, given_from_api, resolve
from wheelsched.schedules.schedule import At, Cron, Every, Manual

T0 = datetime(2026, 11, 29, tzinfo=UTC)
T0_US = int(T0.timestamp()) * US
CALL = Call("t")
HOUSE = {
    "task": "t",
    "schedule": {"kind": "manual"},
    "queue": "default",
    "priority": 5,
    "timeout_us": 3_600 * US,
    "retry": {"attempts": 3, "backoff_us": 10 * US, "factor": 2.0, "cap_us": 3_600 * US, "not_on": []},
    "overlap": {"policy": "skip", "max": None},
    "catchup": {"policy": "latest", "window_us": None, "max": None},
    "start_us": None,
    "end_us": None,
    "max_runs": None,
    "expires_after_us": None,
    "concurrency_key": None,
}


def asked(**policies):
    return given_from_api(CALL, Manual(), policies)[0]


EVERY = Every("1h")


def asked_of(schedule, **policies):
    return given_from_api(CALL, schedule, policies)[0]


def test_nothing_asked_is_the_house_default():
    given = asked()
    assert given == {"task": "t", "schedule": {"kind": "manual"}}
    assert resolve(check_given(given), None) == HOUSE


def test_nobody_can_change_the_house_defaults():
    spec = resolve({"task": "t"}, None)
    spec["retry"]["not_on"].append("ValueError")
    spec["retry"]["attempts"] = 9
    spec["overlap"]["policy"] = "allow"
    assert resolve(check_given(asked()), None) == HOUSE


@pytest.mark.parametrize(
    ("policies", "key", "value"),
    [
        ({"queue": "q"}, "queue", "q"),
        ({"priority": 0}, "priority", 0),
        ({"priority": 9}, "priority", 9),
        ({"timeout": "5m"}, "timeout_us", 300 * US),
        ({"timeout": 1.5}, "timeout_us", 1_500_000),
        ({"timeout": timedelta(seconds=2)}, "timeout_us", 2 * US),
        (
            {"retry": Retry(attempts=5, backoff="30s", factor=3, cap="2h", not_on=("ValueError",))},
            "retry",
            {"attempts": 5, "backoff_us": 30 * US, "factor": 3.0, "cap_us": 7_200 * US, "not_on": ["ValueError"]},
        ),
        ({"retry": 1}, "retry", {**HOUSE["retry"], "attempts": 1}),
        ({"overlap": "allow"}, "overlap", {"policy": "allow", "max": None}),
        ({"overlap": "buffer_all"}, "overlap", {"policy": "buffer_all", "max": 100}),
        ({"overlap": Overlap("buffer_all", max=7)}, "overlap", {"policy": "buffer_all", "max": 7}),
        ({"catchup": "all"}, "catchup", {"policy": "all", "window_us": 86_400 * US, "max": 1_000}),
        ({"catchup": Catchup("latest", window="24h")}, "catchup", {"policy": "latest", "window_us": 86_400 * US, "max": None}),
        ({"catchup": Catchup("all", "1h", 3)}, "catchup", {"policy": "all", "window_us": 3_600 * US, "max": 3}),
        ({"start": T0}, "start_us", T0_US),
        ({"end": "2026-11-29T01:00:00+01:00"}, "end_us", T0_US),
        ({"max_runs": 1}, "max_runs", 1),
        ({"expires_after": "1h30m"}, "expires_after_us", 5_400 * US),
        ({"concurrency_key": "eu"}, "concurrency_key", "eu"),
        ({"concurrency": 2}, "concurrency", 2),
    ],
)
def test_short_and_long_forms(policies, key, value):
    given = asked(**policies)
    assert given[key] == value
    assert resolve(given, {"queue": "other", "priority": 1})[key] == value


def test_an_argument_beats_the_decorator_which_beats_what_was_announced():
    call = CALL.with_options({"queue": "mine", "timeout": "1m", "priority": None, "retry": None})
    given, _ = given_from_api(call, Manual(), {"queue": "argument", "timeout": None})
    assert given == {"task": "t", "schedule": {"kind": "manual"}, "queue": "argument", "timeout_us": 60 * US}
    announced = check_announced({"queue": "announced", "timeout_us": 9 * US, "priority": 7, "retry": None})
    spec = resolve(check_given(given), announced)
    assert (spec["queue"], spec["timeout_us"], spec["priority"], spec["retry"]) == ("argument", 60 * US, 7, HOUSE["retry"])


def test_schedules_keep_what_differs_from_job_to_job_apart():
    assert given_from_api(CALL, At(T0), {}) == ({"task": "t", "schedule": {"kind": "at"}}, T0_US)
    assert given_from_api(CALL, Every("1s", anchor=T0), {})[1] == T0_US
    assert given_from_api(CALL, Every("1s"), {})[1] == NEVER
    given, param_us = given_from_api(CALL, Cron("0 0 * * *", tz="Europe/Berlin"), {})
    assert (given["schedule"]["tz"], param_us) == ("Europe/Berlin", NEVER)
    assert given_from_api(CALL, None, {}) == ({"task": "t"}, NEVER)
    assert resolve({"task": "t"}, None)["schedule"] == {"kind": "at"}


@pytest.mark.parametrize(("name", "near"), [("overlpa", "overlap"), ("timout", "timeout"), ("retries", "retry"), ("max_run", "max_runs")])
def test_an_unknown_policy_gets_the_nearest_name(name, near):
    with pytest.raises(InvalidArgumentError, match=f"did you mean '{near}'"):
        asked(**{name: 1})


@pytest.mark.parametrize(
    "policies",
    [
        {"zzz": 1},
        {"note": "n"},
        {"queue": "a b"},
        {"queue": 3},
        {"priority": 10},
        {"priority": -1},
        {"priority": True},
        {"priority": 5.0},
        {"timeout": 0},
        {"timeout": "soon"},
        {"timeout": True},
        {"timeout": float("nan")},
        {"timeout": "101000d"},
        {"retry": 0},
        {"retry": ATTEMPTS_MAX + 1},
        {"retry": True},
        {"retry": "3"},
        {"retry": Retry(not_on="ValueError")},
        {"retry": Retry(not_on=(ValueError,))},
        lambda: {"retry": Retry(factor=0.5)},
        lambda: {"retry": Retry(factor=float("nan"))},
        {"overlap": "maybe"},
        {"overlap": 3},
        {"overlap": Overlap("skip", max=3)},
        lambda: {"overlap": Overlap("allow", max=0)},
        {"catchup": "sometimes"},
        {"catchup": None, "overlap": ""},
        {"catchup": Catchup("latest", max=3)},
        lambda: {"catchup": Catchup("all", max=0)},
        {"start": T0.replace(tzinfo=None)},
        {"start": 5},
        {"start": T0, "end": T0},
        {"max_runs": 0},
        {"max_runs": 2**31},
        {"expires_after": "-1s"},
        {"concurrency": 0},
        {"concurrency": "2"},
        {"concurrency": 1_000_001},
        {"concurrency_key": ""},
        {"concurrency_key": "k" * (KEY_MAX + 1)},
        {"jitter": "x%"},
        {"jitter": "101%"},
    ],
)
def test_what_can_not_be_right_is_refused(policies):
    with pytest.raises(InvalidArgumentError):
        asked(**(policies() if callable(policies) else policies))


def test_a_policy_for_recurring_jobs_is_refused_by_enqueue():
    for name, value in (
        ("overlap", "skip"),
        ("catchup", "all"),
        ("start", T0),
        ("end", T0),
        ("max_runs", 2),
        ("jitter", 1),
        ("calendar", "holidays"),
        ("pause_after", 3),
        ("late_after", "1m"),
        ("on_missed", "ops/alarm"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"{name} goes with put"):
            given_from_api(CALL, None, {name: value})
        with pytest.raises(InvalidArgumentError, match=f"{name} goes with put"):
            check_given({k: v for k, v in asked_of(EVERY, **{name: value}).items() if k != "schedule"})


def test_heartbeat_timeout_is_a_policy_of_the_decorator_too():
    assert resolve(check_given(asked(heartbeat_timeout="1m")), None)["heartbeat_timeout_us"] == 60_000_000
    announced = check_announced({"heartbeat_timeout_us": 5_000_000})
    assert resolve(check_given(asked()), announced)["heartbeat_timeout_us"] == 5_000_000
    assert resolve(check_given(asked(heartbeat_timeout="1m")), announced)["heartbeat_timeout_us"] == 60_000_000
    assert "heartbeat_timeout_us" not in resolve(check_given(asked()), None)
    given, _ = given_from_api(CALL.with_options({"heartbeat_timeout": "2s"}), None, {})
    assert given["heartbeat_timeout_us"] == 2_000_000


@pytest.mark.parametrize("task", ["command", "http"])
def test_what_has_no_heartbeats_is_told_to_take_a_timeout(task):
    with pytest.raises(InvalidArgumentError, match=f"{task} has no heartbeats; give a timeout"):
        given_from_api(Call(task), None, {"heartbeat_timeout": "1m"})


def test_every_overlap_is_carried_out():
    for policy in OVERLAPS:
        given = asked(overlap=policy)
        assert check_given(given) == given
        assert resolve(given, None)["overlap"]["policy"] == policy


@pytest.mark.parametrize(
    ("policies", "key", "value"),
    [
        ({"jitter": "10%"}, "jitter", {"percent": 10.0}),
        ({"jitter": "30s"}, "jitter", {"us": 30 * US}),
        ({"jitter": timedelta(seconds=1)}, "jitter", {"us": US}),
        ({"calendar": "holidays"}, "calendar", ["holidays"]),
        ({"calendar": ["b", "a", "b"]}, "calendar", ["a", "b"]),
        ({"calendar": [f"c{i}" for i in range(10)]}, "calendar", [f"c{i}" for i in range(10)]),
        ({"pause_after": 1}, "pause_after", 1),
        ({"pause_after": 255}, "pause_after", 255),
        ({"late_after": "5m"}, "late_after_us", 300 * US),
        ({"on_missed": "ops/alarm"}, "on_missed", "ops/alarm"),
        ({"on_missed": "alarm"}, "on_missed", "default/alarm"),
    ],
)
def test_what_a_spec_has_only_when_it_was_given(policies, key, value):
    given = asked_of(EVERY, **policies)
    assert check_given(given) == given
    spec = resolve(given, None)
    assert (given[key], spec[key]) == (value, value)
    assert {k: v for k, v in spec.items() if k != key} == {**HOUSE, "schedule": EVERY.to_wire()}
    if isinstance(value, list | dict):
        assert spec[key] is not given[key]


def test_no_jitter_is_none_of_it():
    for none in (0, "0s", "0%"):
        assert resolve(check_given(asked(jitter=none)), None) == HOUSE


@pytest.mark.parametrize(
    ("schedule", "policies", "said"),
    [
        (EVERY, {"calendar": []}, "1 to 10 calendars"),
        (EVERY, {"calendar": [f"c{i}" for i in range(11)]}, "1 to 10 calendars"),
        (EVERY, {"calendar": 3}, "a name or a list of names"),
        (EVERY, {"calendar": ["a b"]}, "calendar 'a b'"),
        (EVERY, {"pause_after": 0}, "1 to 255"),
        (EVERY, {"pause_after": 256}, "1 to 255"),
        (EVERY, {"late_after": 0}, "late_after"),
        (EVERY, {"late_after": "soon"}, "late_after"),
        (EVERY, {"on_missed": "a b"}, "job name"),
        (EVERY, {"on_missed": 3}, "job name"),
        (EVERY, {"on_missed": "default/~t"}, "reserved"),
        (Manual(), {"jitter": "30s"}, "only when triggered"),
        (Manual(), {"jitter": "5%"}, "only when triggered"),
        (Manual(), {"calendar": "holidays"}, "only when triggered"),
        (At(T0), {"jitter": "5%"}, "a one-time run has none"),
        (At(T0), {"start": "2026-11-29T00:00:00.001Z"}, "before start, so it could never fire"),
        (At(T0), {"end": "2026-11-28T23:59:59Z"}, "after end, so it could never fire"),
        (Every("1h", after_completion=True), {"jitter": "5%"}, "after_completion has none"),
        (Every("1h", after_completion=True), {"catchup": "all"}, "never more than one"),
        (EVERY, {"start": T0, "end": T0 - timedelta(seconds=1)}, "later than start"),
    ],
)
def test_what_contradicts_itself_is_told(schedule, policies, said):
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        asked_of(schedule, **policies)


def test_what_makes_sense_together_is_taken():
    for schedule, policies in [
        (At(T0), {"jitter": "30s", "overlap": "buffer_one", "max_runs": 7, "start": T0, "calendar": "c"}),
        (At(T0), {"end": T0}),
        (Every("1h", after_completion=True), {"jitter": "30s", "catchup": "earliest", "calendar": "c"}),
        (Manual(), {"max_runs": 3, "pause_after": 2, "late_after": "1m", "on_missed": "ops/alarm", "catchup": "all"}),
        ([EVERY, At(T0), Cron("0 0 * * *")], {"jitter": "5%", "start": T0}),
    ]:
        given = asked_of(schedule, **policies)
        assert check_given(given) == given


@pytest.mark.parametrize(
    ("schedules", "said"),
    [
        ([], "an empty list never fires"),
        ([EVERY], "a list of one schedule is no union"),
        ([EVERY] * 101, "101 schedules in one list; at most 100"),
        ([EVERY] * 10_000, "10000 schedules in one list; at most 100"),
        ([EVERY, [EVERY, At(T0)]], "number 2 of the list is a list in a list"),
        ([EVERY, Manual()], "member 2 of a union: manual"),
        ([Every("1s", after_completion=True), EVERY], "member 1 of a union: after_completion"),
        ([EVERY, "0 0 * * *"], "not str"),
        ([EVERY, None], "not NoneType"),
    ],
)
def test_a_union_that_can_not_be(schedules, said):
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        asked_of(schedules)


def test_a_union_on_the_wire():
    given, param_us = given_from_api(CALL, [EVERY, At(T0), Every("2h", anchor=T0)], {})
    parts = given["schedule"]["of"]
    assert [p["param_us"] for p in parts] == [NEVER, T0_US, T0_US]
    assert (given["schedule"]["kind"], parts[1]["schedule"], param_us) == ("union", {"kind": "at"}, NEVER)
    assert check_given(given) == given
    wire = {"schedule": EVERY.to_wire(), "param_us": NEVER}
    for of in ([], [wire], [wire] * 101, [wire, {"schedule": {"kind": "union", "of": [wire, wire]}, "param_us": NEVER}], [wire, 3]):
        with pytest.raises(InvalidArgumentError):
            check_given({"task": "t", "schedule": {"kind": "union", "of": of}})


def test_an_instant_outside_of_the_bounds_is_found_by_the_server_too():
    given = check_given({"task": "t", "schedule": {"kind": "at"}, "start_us": 5, "end_us": 9})
    for at_us in (5, 9, NEVER):
        check_instant(given, at_us)
    for at_us in (4, 10):
        with pytest.raises(ScheduleError, match="could never fire"):
            check_instant(given, at_us)
    check_instant({"task": "t", "start_us": 5}, 4)


def test_every_policy_of_the_face_is_known():
    wanted = "queue priority timeout retry overlap catchup start end max_runs expires_after concurrency concurrency_key jitter calendar"
    assert set(POLICIES) == {*wanted.split(), "heartbeat_timeout", "pause_after", "late_after", "on_missed", "redact", *HOOKS}


# the server's side


GOOD = {
    "task": "t",
    "schedule": {"kind": "every", "every_us": US},
    "queue": "q",
    "priority": 1,
    "timeout_us": US,
    "retry": {"attempts": 1, "backoff_us": 0, "factor": 1.0, "cap_us": 0, "not_on": []},
    "overlap": {"policy": "allow", "max": 3},
    "catchup": {"policy": "all", "window_us": 0, "max": 1},
    "start_us": 0,
    "end_us": INSTANT_MAX_US,
    "max_runs": 1,
}


def test_the_servers_check_gives_a_canonical_copy():
    checked = check_given(GOOD)
    assert checked == GOOD
    assert checked["retry"] is not GOOD["retry"]
    assert check_given({**GOOD, "queue": None, "jitter": None}) == {k: v for k, v in GOOD.items() if k != "queue"}
    assert check_given(checked) == checked
    assert check_given({"task": "t", "catchup": {"policy": "all"}, "schedule": {"kind": "at"}})["catchup"]["max"] == 1_000


BAD = [
    None,
    True,
    -1,
    2**63,
    2**64 - 1,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x" * 10_000,
    b"b",
    [],
    {},
    [1],
    {"a": 1},
    {1: 2},
    [[]],
    {"policy": []},
]


@pytest.mark.parametrize("key", sorted(GOOD))
def test_the_servers_check_trusts_no_value(key):
    for bad in BAD:
        if bad is None and key != "task":
            continue
        with pytest.raises((InvalidArgumentError, UnimplementedError)):
            check_given({**GOOD, key: bad})
    if isinstance(GOOD[key], dict):
        for inner in GOOD[key]:
            for bad in BAD[1:]:
                if key == "retry" and inner == "not_on" and bad == []:
                    continue
                if key == "retry" and inner == "factor" and bad == 2**63:
                    continue
                with pytest.raises(InvalidArgumentError):
                    check_given({**GOOD, key: {**GOOD[key], inner: bad}})
        with pytest.raises(InvalidArgumentError):
            check_given({**GOOD, key: {**GOOD[key], "more": 1}})


@pytest.mark.parametrize(
    "given", [None, 3, [], "x", {}, {"task": None}, {"task": "t", "zzz": 1}, {"task": "t", 3: 1}, {"task": "t", b"queue": "q"}]
)
def test_the_servers_check_trusts_no_shape(given):
    with pytest.raises(InvalidArgumentError):
        check_given(given)


@pytest.mark.parametrize(
    "wire",
    [
        {"kind": "cron", "expr": "0 0 31 2 *", "tz": "UTC", "dst_gap": None, "dst_overlap": None, "day_or": True, "seconds": "first"},
        {"kind": "every", "every_us": 1},
        {"kind": "zzz"},
        {"kind": []},
        {},
        {"kind": "union", "of": []},
        {"kind": "union", "of": 3},
        {"kind": "union", "of": [{"schedule": {"kind": "union", "of": []}, "param_us": 1}]},
    ],
)
def test_schedules_are_checked_again(wire):
    with pytest.raises(InvalidArgumentError):
        check_given({"task": "t", "schedule": wire})


def test_the_parameter_of_a_schedule():
    every, at, manual = {"kind": "every", "every_us": US}, {"kind": "at"}, {"kind": "manual"}
    assert check_param_us(at, 1) == 1_000  # rounded up to 1 ms
    assert check_param_us(at, INSTANT_MAX_US) == INSTANT_MAX_US
    assert check_param_us(every, None) == check_param_us(every, NEVER) == check_param_us(manual, NEVER) == NEVER
    for schedule, bad in (
        (at, None),
        (at, NEVER),
        (at, -1),
        (at, True),
        (every, INSTANT_MAX_US + 1),
        (every, "1"),
        (every, 1.0),
        (manual, 5),
    ):
        with pytest.raises(InvalidArgumentError):
            check_param_us(schedule, bad)


@pytest.mark.parametrize("options", [None, [], {"overlap": "skip"}, {"queue": 3}, {"retry": 3}, {"timeout_us": 0}, {1: 2}])
def test_what_a_worker_announces_is_checked(options):
    with pytest.raises(InvalidArgumentError):
        check_announced(options)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "policy", "max", "attempts", "of", "schedule", "every_us", "expr", "tz"]) | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@pytest.mark.slow
@examples(st.dictionaries(st.sampled_from(sorted(GOOD)) | st.text(max_size=3), JUNK, max_size=4))
def test_rubbish_gets_an_error_of_ours_or_a_canonical_copy(junk):
    try:
        checked = check_given({"task": "t", **junk})
    except (InvalidArgumentError, UnimplementedError) as e:
        assert isinstance(e, WheelschedError)
    else:
        assert check_given(checked) == checked
        assert set(resolve(checked, None)) == set(HOUSE)


def test_a_schedule_error_stays_one():
    with pytest.raises(ScheduleError):
        check_given({"task": "t", "schedule": {"kind": "every", "every_us": 1}})


def test_the_specification_of_the_wire_lists_the_keys():
    text = Path(wheelsched.__file__).with_name("manual").joinpath("protocol.md").read_text(encoding="utf-8")
    listed = re.search(r"and only that: \{(.*?)\}", text, re.DOTALL)
    assert set(re.findall(r"\w+", listed.group(1))) == {*CHECKS}
