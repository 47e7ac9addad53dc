"""`wheelsched forecast`: the picture, the tables, JSON and files, of answers that a simulator made."""

from __future__ import annotations

import importlib.util
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from tests.rigs.client import FakeServer
from wheelsched import Call, Cron, Job
from wheelsched.cli.forecast import WIDTH, picture
from wheelsched.cli.root import cli
from wheelsched.model import errors
from wheelsched.reads.forecast import forecast_now
from wheelsched.simulator.simulator import Simulator

BUSY = "2026-11-29T12:00:30Z"


@pytest.fixture
def told(short_tmp):
    """Runs the command line against a server whose forecasts come from a simulator; gives the result and what was asked."""
    with Simulator(start=BUSY, tasks={"slow": lambda: sim.advance(2)}) as sim:
        asked = []

        def handle(peer, _number):
            peer.hello()
            while (request := peer.read()) is not None:
                asked.append(request.args)
                try:
                    peer.ok(request, forecast_now(sim.engine, request.args, sim.now_us))
                except errors.WheelschedError as e:
                    peer.error(request, e)

        server = FakeServer(short_tmp / "s", handle)

        def run(*args):
            done = CliRunner().invoke(cli, ["forecast", "--socket", server.path, *args], catch_exceptions=False)
            return done, asked

        run.sim = sim
        yield run
        server.close()


def fill(sim):
    sim.client.put_many([Job(f"billing/{i}", Call("slow"), Cron("0 3 * * *"), queue="money") for i in range(60)])
    sim.client.put_many([Job(f"web/{i}", Call("slow"), Cron(f"{i} * * * *", tz="Europe/Berlin")) for i in range(60)])
    sim.client.put("web/held", Call("slow"), Cron("* * * * *"), paused=True)
    sim.client.put("one", Call("slow"), Cron("0 3 * * *"))
    sim.client.enqueue(Call("slow"), delay="1h", key="later")
    sim.client.enqueue(Call("slow"))
    sim.advance(5)


def test_a_picture_for_people(told):
    fill(told.sim)
    done, asked = told()
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert asked == [{"for_us": 86_400_000_000, "bucket_us": 60_000_000, "queue": None}]
    assert "\x1b" not in done.stdout, "no colour when stdout is no terminal"
    assert max(map(len, lines)) <= WIDTH
    assert lines[:3] == [
        "1,502 starts of 121 jobs until 2026-11-30 12:01:00Z", "among them 1 run already scheduled", "1 job is paused and not counted",
    ]
    mark = next(line for line in lines if line.strip() == "\N{BLACK DOWN-POINTING TRIANGLE}").index("\N{BLACK DOWN-POINTING TRIANGLE}")
    top = next(line for line in lines if line.startswith("62 |"))
    assert top[mark] == "\N{FULL BLOCK}"
    assert top.count("\N{FULL BLOCK}") == 1
    text = done.stdout
    assert "peak         62 starts at 2026-11-30 03:00:00Z, in 1m" in text
    assert "drained      2m 8s after it, by 1 worker and 1 measured run" in text
    assert "on the hour  85 starts of cron jobs" in text
    assert re.search(r"H as minute  -\d\d %: about \d starts at \S+ \S+Z \(H 0 \* \* \*\)", text)
    assert "money        60    60  2026-11-30 03:00:00Z" in text
    assert "billing/*           0 3 * * *                    60    60" in text
    assert "one                 0 3 * * *" in text
    assert "web/0               0 * * * * Europe/Berlin" in text


def test_spreading_that_does_not_help_is_not_recommended(told):
    told.sim.client.put("a", Call("slow"), Cron("* * * * * *"))
    done, _ = told()
    assert "peak" in done.stdout
    for word in ("on the hour", "H as minute", "jitter"):
        assert word not in done.stdout, done.stdout


def test_json_for_machines(told):
    fill(told.sim)
    done, asked = told("--for", "2h", "--bucket", "1s", "--queue", "d*", "-o", "json")
    assert asked[0] == {"for_us": 7_200_000_000, "bucket_us": 1_000_000, "queue": "d*"}
    found = json.loads(done.stdout)
    assert (found["starts"], found["bucket_s"], len(found["counts"])) == (121, 1.0, 7_200)
    assert sum(found["counts"]) == found["starts"] == sum(q["starts"] for q in found["queues"])
    assert [q["name"] for q in found["queues"]] == ["default"]
    assert found["peak"] == {"at": "2026-11-29T12:01:00.000000Z", "starts": 1}
    assert (found["held"], found["paused"], found["delayed"], found["retries"]) == (False, 1, 1, 0)
    assert found["drain"]["measured"] == 1
    lines = told("-o", "jsonl")[0].stdout.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["starts"] == 1_502


def test_nothing_to_show(told):
    done, _ = told()
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "0 starts of 0 jobs until 2026-11-30 12:01:00Z"


def test_bad_words(told, tmp_path):
    for args, code, text in (
        (("--for", "40d"), 2, "the span is whole seconds from 1s to 31d, not 40d"), (("--bucket", "0.5s"), 2, "the bucket is whole seconds"),
        (("--bucket", "soon"), 2, "soon"), (("--for", "1m", "--bucket", "1h"), 2, "longer than the span"), (("--plot", "x.pdf"), 2, ".svg"),
    ):
        done, _ = told(*args)
        assert (done.exit_code, text in done.stderr) == (code, True), (args, done.stderr)
    if importlib.util.find_spec("matplotlib") is None:
        done, asked = told("--plot", str(tmp_path / "x.png"))
        assert (done.exit_code, "pip install matplotlib" in done.stderr) == (1, True), done.stderr


def test_files(told, tmp_path):
    pytest.importorskip("matplotlib")
    fill(told.sim)
    for name, begin in (("x.png", b"\x89PNG"), ("x.SVG", b"<?xml")):
        done, _ = told("--plot", str(tmp_path / name))
        assert done.exit_code == 0, done.stderr
        assert name in done.stderr
        assert (tmp_path / name).read_bytes().startswith(begin)
    done, _ = told("--plot", str(tmp_path / "not" / "there.png"))
    assert done.exit_code == 1
    assert "there.png" in done.stderr


@pytest.mark.parametrize(("counts", "bucket"), [
    ([5], 60), ([0, 1], 1), ([1] * 76, 60), ([0] * 75 + [3, 0], 60), (list(range(1_441)), 60), ([0] * 99_999 + [10**12], 1),
])
def test_pictures_fit_and_mark_the_peak(counts, bucket):
    start = datetime(2026, 11, 29, 23, 30, tzinfo=UTC)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in picture(counts, start, timedelta(seconds=bucket), local=False)]
    assert max(map(len, lines)) <= WIDTH
    mark = len(lines[1]) - 1
    bars = [line[mark : mark + 1] for line in lines[2:10]]
    assert bars == ["\N{FULL BLOCK}"] * 8
    assert lines[2].startswith(f"{max(counts):,} |")
    shown = {len(line) for line in lines[2:10]}
    assert shown
    assert lines[11].split()[0].startswith("23:30") or "11-29 23:30" in lines[11]


def test_a_small_count_is_seen_beside_a_high_one():
    start = datetime(2026, 11, 29, tzinfo=UTC)
    lines = list(picture([1, 0, 1_000_000], start, timedelta(seconds=60), local=False))
    width = (WIDTH - 9 - 3) // 3
    assert lines[9].startswith("          |" + "\N{LOWER ONE EIGHTH BLOCK}" * width + " " * width)
