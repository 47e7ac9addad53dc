"""protocol/returned.py: a run that has returned is never tried again for what it returned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgpack
import pytest
import user_tasks
from click.testing import CliRunner

from tests.rigs.attempts import end
from tests.rigs.engine import CALL
from tests.rigs.executor import Scripted, value
from tests.rigs.places import TASK_MODULES
from wheelsched import Call, Every, Ext, Manual, NotKept, ResultNotKept, Retry, WheelschedError, current_run
from wheelsched.cli.root import cli
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.model.nouns import ERROR_TEXT_MAX, OUTPUT_MAX, Outcome
from wheelsched.model.payloads import Exts
from wheelsched.simulator.simulator import Simulator
from wheelsched.tasks.returned import returned

MARKS = {
    "object": ("user_tasks.Order", None, "Order can't be stored"), "set": ("set", None, "set can't be stored"),
    "decimal": ("decimal.Decimal", None, "Decimal can't be stored"), "nested": ("dict", None, "return value.a[0]: Decimal"),
    "hostile": ("user_tasks.Hostile", None, ""), "rows": ("user_tasks.Rows", None, ""), "generator": ("range_iterator", None, "range_iterator"),
    "key": ("dict", None, "keys must be text"), "long": ("str", 70_005, "at most 65,536 are kept"), "surrogate": ("str", None, "surrogates"),
    "huge": ("int", None, "int64"),
}
MODES = [("process", 1), ("thread", 3), ("async", 3)]


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(mode="process", concurrency=1):
        made.append(Scripted(tmp_path, ["user_tasks"], mode=mode, concurrency=concurrency))
        return made[-1]

    yield start
    for one in made:
        one.close()


def check_mark(mark, kind):
    name, size, why = MARKS[kind]
    assert (mark["type"], mark["bytes"]) == (name, size)
    assert why in mark["why"]


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
@pytest.mark.parametrize("task", ["u.value", "u.value_async", "u.batch", "u.batch_async"])
def test_n_a1_what_can_not_be_kept_costs_no_run(make, tmp_path, mode, concurrency, task):
    end, notes = make(mode, concurrency), str(tmp_path / "notes")
    kinds = (*MARKS, "fits", "none")
    ended = dict(zip(kinds, end.ended_for_good(*[(task, kind, notes) for kind in kinds]), strict=True))
    for kind in MARKS:
        outcome, _, _, result = ended[kind]
        assert outcome == Outcome.SUCCEEDED, (kind, result)
        assert result.keys() == {"left_out"}, "and no value, error or traceback"
        check_mark(result["left_out"], kind)
    assert value(ended["fits"]) == "y" * 65_000
    assert not ended["none"][3]
    assert sorted((tmp_path / "notes").read_text().split()) == sorted(kinds)
    assert not end.gone


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
@pytest.mark.parametrize("kind", ["none", "short", "generator", "text"])
def test_f5_a_batch_handler_that_returned_something_else_is_not_called_again(make, tmp_path, mode, concurrency, kind):
    end = make(mode, concurrency)
    for outcome, _, _, result in end.ended_for_good(*[("u.batch_wrong", kind, str(tmp_path / "notes"))] * 3):
        assert (outcome, result["type"], result["retry"]) == (Outcome.FAILED, "wheelsched.NotRetried", False)
        assert "a batch handler returns a list with one outcome for each of its" in result["message"]


def test_s7_a_run_is_done_once_whatever_it_returns(serving, short_tmp, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    server = serving("--tasks", "user_tasks")
    ws, notes = server.client(), str(short_tmp / "notes")
    retry = Retry(3, backoff="1ms", cap="1ms")
    for kind in ("long", "decimal"):
        run = ws.enqueue(Call("u.value", kind, notes), retry=retry)
        with pytest.raises(ResultNotKept, match=f"succeeded, but a value of type {MARKS[kind][0]}.* is not kept: ") as raised:
            run.result(timeout=30)
        assert isinstance(raised.value, WheelschedError)
        assert (raised.value.type, raised.value.bytes, raised.value.code) == (*MARKS[kind][:2], "failed_precondition")
        assert isinstance(run.output, NotKept)
        assert (run.output.type, run.output.bytes) == MARKS[kind][:2]
        assert (run.state, [a.outcome for a in run.attempts], run.attempts[0].output) == ("succeeded", ["succeeded"], run.output)
        assert run.to_dict()["output"] == {"not_kept": run.output.why, "type": run.output.type, "bytes": run.output.bytes}
        dead = ws.enqueue(Call("u.batch_wrong", "none", notes), retry=retry)
        with pytest.raises(WheelschedError, match="1 attempt: wheelsched"):
            dead.result(timeout=30)
    assert Path(notes).read_text().split("\n") == ["long", "1 runs", "decimal", "1 runs", ""]
    for verb in (["enqueue", "u.value", "--args", json.dumps(["long", notes]), "--wait"], ["run", "wait", run.id]):
        done = CliRunner().invoke(cli, ["--socket", server.socket, *verb])
        assert (done.exit_code, done.stdout) == (0, "")
        assert "succeeded, but a value of type" in done.stderr
    shown = CliRunner().invoke(cli, ["--socket", server.socket, "run", "get", run.id])
    assert re.search(r"^value +a value of type decimal\.Decimal is not kept: return value: Decimal can't be stored", shown.stdout, re.MULTILINE)
    shown = CliRunner().invoke(cli, ["--socket", server.socket, "-o", "json", "run", "get", run.id])
    assert json.loads(shown.stdout)["output"]["type"] == "decimal.Decimal"


@pytest.mark.parametrize("kind", [*MARKS, "fits"])
@pytest.mark.parametrize("task", [user_tasks.value, user_tasks.value_async, user_tasks.batch])
def test_n_a1_the_simulator_does_the_same(tmp_path, kind, task):
    with Simulator(tasks=[task]) as sim:
        run = sim.client.enqueue(task.__wheelsched_task__.call(kind, str(tmp_path / "notes")), retry=3)
        if kind == "fits":
            assert run.result() == "y" * 65_000
        else:
            with pytest.raises(ResultNotKept, match="is not kept"):
                run.result()
            check_mark({"type": run.output.type, "bytes": run.output.bytes, "why": run.output.why}, kind)
        assert (run.state, run.attempt) == ("succeeded", 1)


def test_f5_the_simulator_ends_a_batch_handler_that_returned_something_else(tmp_path):
    with Simulator(tasks=[user_tasks.batch_wrong]) as sim:
        run = sim.client.enqueue(Call("u.batch_wrong", "short", str(tmp_path / "notes")), retry=3)
        sim.advance("1h")
        assert (run.refresh().state, run.attempt, run.error.type) == ("dead", 1, "wheelsched.NotRetried")


def test_n_a1_chains_and_the_next_run_get_none():
    seen, values = [], ["kept", {1, 2}, "x" * 70_000, 5]

    def told():
        cause = current_run().cause
        seen.append((cause["output"], cause.get("output_left_out", "-")))

    with Simulator(tasks={"a": lambda: values.pop(0), "b": told}) as sim:
        sim.client.put("b", Call("b"), Manual())
        sim.client.put("a", Call("a"), Every("1m"), on_success="b")
        lasts = []
        for _ in range(4):
            sim.advance("1m")
            lasts.append(bool(sim.engine.state.lasts.of))
    assert seen == [("kept", "-"), (None, None), (None, 70_005), (5, "-")]
    assert lasts == [True, False, False, True]


def test_f5_code_of_a_users_type_that_raises_costs_no_run():
    def refuses(_):
        raise SystemExit(3)

    mark = returned(user_tasks.Order(), Exts([Ext(1, user_tasks.Order, refuses, refuses)]))["left_out"]
    assert (mark["type"], mark["bytes"], mark["why"]) == ("user_tasks.Order", None, "3")


@pytest.mark.parametrize(("data", "kind", "why"), [
    (msgpack.packb("x" * 300_000), "str", "at most 212,9"), (msgpack.packb(bytes(900_000)), "bytes", "at most 212,9"),
    (msgpack.packb({1: 2}), "dict", "not allowed for map key"), (b"\xa1\xff", "str", "utf-8"), (b"\xc7\x0c\xff" + bytes(6) + b"\x10" + bytes(5), "Timestamp", ""),
])
def test_f5_what_a_worker_in_another_language_returned_costs_no_run(b, data, kind, why):
    run = b.client.enqueue(CALL, retry=3)
    assert end(b, b.lease(), Outcome.SUCCEEDED, {"value": data, "stdout": b"said"}) == [1]
    run.refresh()
    assert (run.state, run.output.type, run.output.bytes, run.stdout) == ("succeeded", kind, len(data), b"said")
    assert why in run.output.why


def test_f5_a_value_of_another_language_has_the_room_that_is_left(b):
    for size, out, kept in ((70_000, b"", True), (200_000, b"", True), (70_000, b"o" * 99_000, True), (200_000, b"o" * 99_000, False)):
        run = b.client.enqueue(CALL)
        assert end(b, b.lease(), Outcome.SUCCEEDED, {"value": msgpack.packb("x" * size), "stdout": out}) == [1]
        assert (run.refresh().output == "x" * size, run.state) == (kept, "succeeded")
    for size in range(212_920, 212_990):
        run = b.client.enqueue(CALL)
        assert end(b, b.lease(), Outcome.SUCCEEDED, {"value": msgpack.packb(bytes(size))}) == [1]


def test_f5_what_a_worker_in_another_language_printed_is_cut(b):
    run = b.client.enqueue(CALL, retry=3)
    out, error = b"a" * 100_000 + b"end", "m" * 10_000
    assert end(b, b.lease(), Outcome.FAILED, {"type": "E" * 900, "message": error, "traceback": error + "!", "stdout": out, "stderr": out * 2}) == [1]
    error = run.refresh().attempts[0].error
    assert (len(error.type), len(error.message), error.traceback[-2:]) == (200, ERROR_TEXT_MAX, "m!")
    for data, cut, size in ((run.stdout, run.stdout_cut, len(out)), (run.stderr, run.stderr_cut, 2 * len(out))):
        assert len(data) <= OUTPUT_MAX
        assert data.endswith(b"aend")
        assert cut == size - len(data.replace(f"\n[... {cut} bytes left out ...]\n".encode(), b""))


def test_f5_a_worker_in_another_language_says_itself_what_it_leaves_out(b):
    run = b.client.enqueue(CALL, retry=3)
    leases = b.lease()
    for wrong in (5, {"type": 5}, {"bytes": -1}, {"bytes": True}, {"bytes": "x"}):
        with pytest.raises(InvalidArgumentError, match="left_out"):
            end(b, leases, Outcome.SUCCEEDED, {"left_out": wrong})
    assert end(b, leases, Outcome.SUCCEEDED, {"left_out": {"type": "java.util.Map", "bytes": 10**9}}) == [1]
    assert run.refresh().output == NotKept("java.util.Map", 10**9)
