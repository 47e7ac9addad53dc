"""tasks/tasks.py: marks, calls, options, the collection of tasks, and what a run sees of itself."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from datetime import UTC, datetime, timedelta

import msgpack
import numpy as np
import pytest

from wheelsched.executor.builtin import NOOP, builtin_tasks
from wheelsched.model.errors import FailedPreconditionError, InvalidArgumentError, PayloadError
from wheelsched.model.policies import Retry
from wheelsched.process.contract import Allowed
from wheelsched.protocol import frames
from wheelsched.protocol.definition import check_announced, given_from_api
from wheelsched.simulator.simulator import Simulator
from wheelsched.tasks.tasks import Batch, RunContext, current_run, enter_run, load_tasks, task


@task("mail.send", queue="mail", timeout="10m", retry=Retry(attempts=5, backoff="30s"), priority=0)
def send(region, *, full=False):
    return region, full


@task("mail.bare")
def bare():
    return 1


def test_a_task_stays_a_plain_function():
    assert send("eu", full=True) == ("eu", True)
    assert send.__name__ == "send"


def test_call_carries_the_options_as_given():
    call = send.call("eu", full=True)
    assert (call.task, call.args, call.kwargs) == ("mail.send", ("eu",), {"full": True})
    assert call.options == {"queue": "mail", "timeout": "10m", "retry": Retry(attempts=5, backoff="30s"), "priority": 0}
    assert bare.call().options == {}
    given, _ = given_from_api(call, None, {"queue": "other"})
    assert given["queue"] == "other"
    assert given["timeout_us"] == 600_000_000
    assert given["priority"] == 0


def test_the_announced_options_are_what_the_server_takes():
    wire = send.__wheelsched_task__.wire()
    assert check_announced(wire) == wire
    assert set(wire) == {"queue", "timeout_us", "retry", "priority"}
    assert bare.__wheelsched_task__.wire() == {}


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("eu", "us"), {}), (("eu",), {"ful": 1})])
def test_call_refuses_what_the_function_can_not_take(args, kwargs):
    with pytest.raises(PayloadError, match=r"mail\.send: "):
        send.call(*args, **kwargs)


@pytest.mark.parametrize(
    "options",
    [{"priority": 10}, {"priority": True}, {"priority": -1}, {"timeout": "soon"}, {"retry": "3"}, {"retry": True}, {"queue": "a b"},
     {"retry": 0}],
)
def test_wrong_options_are_errors_at_the_decorator(options):
    with pytest.raises(InvalidArgumentError):
        task("a.b", **options)(lambda: None)


def test_a_wrong_name_is_an_error():
    with pytest.raises(InvalidArgumentError):
        task("a b")(lambda: None)


def module(tmp_path, monkeypatch, name, text):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / f"{name}.py").write_text(text)
    return name


def test_load_tasks_collects_marked_functions_only(tmp_path, monkeypatch):
    head = "from wheelsched import task\n"
    text = "@task('a.x')\ndef x(): pass\n@task('a.y')\ndef y(): pass\nz = 5\ndef plain(): pass\n"
    one = module(tmp_path, monkeypatch, "ws_one", head + text)
    again = module(tmp_path, monkeypatch, "ws_again", "from ws_one import x\n")
    assert sorted(load_tasks([one])) == ["a.x", "a.y"]
    assert sorted(load_tasks([one, again])) == ["a.x", "a.y"]  # the same function under two roofs is one task
    other = module(tmp_path, monkeypatch, "ws_other", head + "@task('a.x')\ndef x2(): pass\n")
    with pytest.raises(InvalidArgumentError, match=r"a\.x.*ws_one\.x.*ws_other\.x2"):
        load_tasks([one, other])


def test_built_in_tasks_are_off_until_allowed():
    assert set(builtin_tasks(None, Allowed())) == {NOOP}
    assert set(builtin_tasks(None, Allowed(commands=True, http=True))) == {NOOP, "command", "http"}


def reply(jobs=("default/a", "team/b"), payloads=(([1], {}), ([], {"k": b"v"}))):
    packed = [msgpack.packb(p) for p in payloads]
    names = [j.encode() for j in jobs]
    return {
        "n": 2, "id": bytes(range(32)), "token": np.array([(7 << 32) + 1, (7 << 32) + 2], np.int64).tobytes(),
        "attempt": np.array([1, 2], np.uint32).tobytes(), "scheduled_us": np.array([0, 1_500_000], np.int64).tobytes(),
        "missed": np.array([0, 4], np.uint32).tobytes(), "spec": np.array([0, 0], np.uint32).tobytes(),
        "specs": [{"task": "t", "timeout_us": 5_000_000, "queue": "q"}], "job": b"".join(names),
        "job_end": np.cumsum([len(n) for n in names]).astype(np.uint32).tobytes(), "payload": b"".join(packed),
        "payload_end": np.cumsum([len(p) for p in packed]).astype(np.uint32).tobytes(),
        "last_result": [[1, frames.encode_value("before")]],
    }


def test_a_run_reads_its_row():
    batch = Batch(reply())
    first, second = RunContext(batch, 0), RunContext(batch, 1)
    assert first.id == bytes(range(16)).hex()
    assert second.id == bytes(range(16, 32)).hex()
    assert (first.job, second.job) == ("a", "team/b")
    assert (first.args, first.kwargs, second.args, second.kwargs) == ([1], {}, [], {"k": b"v"})
    assert second.scheduled_at == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=1.5)
    assert (second.token, second.attempt, second.missed, second.task, second.timeout_us) == ((7 << 32) + 2, 2, 4, "t", 5_000_000)
    assert (first.last_result, second.last_result) == (None, "before")
    assert not second.cancelled
    assert (first.cause, second.cause) == (None, None)


def test_a_run_knows_its_cause():
    cause = {"job": "default/a", "reason": "late", "from_us": 5, "until_us": 5, "count": 1}
    batch = Batch(reply(payloads=(([1], {}, {"cause": cause}), ([], {}, {"other": 1}))))
    first, second = RunContext(batch, 0), RunContext(batch, 1)
    moment = datetime(1970, 1, 1, microsecond=5, tzinfo=UTC)
    assert (first.args, second.cause) == ([1], None)
    assert first.cause == {"job": "default/a", "reason": "late", "from": moment, "until": moment, "count": 1}


def test_columns_of_different_length_are_refused():
    broken = reply()
    broken["job_end"] = broken["job_end"][:4]
    with pytest.raises(AssertionError):
        Batch(broken)


def test_current_run_is_there_inside_a_run_only():
    with pytest.raises(FailedPreconditionError):
        current_run()
    enter_run((Batch(reply()), 1))
    try:
        assert current_run().job == "team/b"
    finally:
        enter_run(None)
    with pytest.raises(FailedPreconditionError):
        current_run()


def loud(function, told):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        told.append("called")
        return function(*args, **kwargs)

    return wrapper


def module_of(monkeypatch, **names):
    module = types.ModuleType("made_tasks")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "made_tasks", module)
    return ["made_tasks"]


class Counting:
    """A decorator that is a class."""

    def __init__(self, function, told):
        functools.update_wrapper(self, function)
        self._function, self._told = function, told

    def __call__(self, *args):
        self._told.append("called")
        return self._function(*args)


@pytest.mark.parametrize("kind", [loud, Counting])
@pytest.mark.parametrize("depth", [1, 2])
def test_f10_a_decorator_above_the_mark_is_called(monkeypatch, kind, depth):
    told = []
    inner = outer = task("made.inner", queue="q", redact="x")(lambda x: x)
    for _ in range(depth):
        outer = kind(outer, told)
    found = load_tasks(module_of(monkeypatch, outer=outer, again=outer))["made.inner"]
    assert found.function is outer
    assert found.wire() == inner.__wheelsched_task__.wire()
    assert found.function(3) == 3
    assert told == ["called"] * depth
    assert outer.call(3).args == (3,)
    with Simulator(tasks=[outer]) as sim:
        assert sim.client.enqueue(outer.call(4)).result() == 4
    assert told == ["called"] * 2 * depth


def test_f10_a_coroutine_function_may_be_around_a_plain_one(monkeypatch):
    inner = task("made.inner")(lambda: 1)

    @functools.wraps(inner)
    async def outer():
        return inner()

    assert inspect.iscoroutinefunction(load_tasks(module_of(monkeypatch, outer=outer))["made.inner"].function)


def test_f10_a_marked_function_beside_its_wrapper_is_refused(monkeypatch):
    inner = task("made.inner")(lambda: 1)
    with pytest.raises(InvalidArgumentError, match=r"a marked function and a wrapper of it.*write @task above the other decorator"):
        load_tasks(module_of(monkeypatch, inner=inner, outer=loud(inner, [])))


def generator():
    yield 1


async def async_generator():
    yield 1


class Generates:
    def __call__(self):
        yield 1


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("function", [
    generator, async_generator, functools.partial(generator), functools.partial(async_generator), Generates(), Generates().__call__,
], ids=["plain", "async", "partial", "async partial", "object", "method"])
def test_w8_a_generator_function_is_no_task(function, batch):
    with pytest.raises(InvalidArgumentError, match="is a generator function, and calling it runs none of its code: return a list"):
        task("made.rows", batch=batch)(function)
    with pytest.raises(InvalidArgumentError, match="generator function"):
        Simulator(tasks={"made.rows": function})


def test_w8_nor_is_one_that_a_decorator_has_made(monkeypatch):
    inner = task("made.inner")(lambda: 1)

    @functools.wraps(inner)
    def outer():
        yield inner()

    with pytest.raises(InvalidArgumentError, match="generator function"):
        load_tasks(module_of(monkeypatch, outer=outer))
