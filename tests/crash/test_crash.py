"""kill -9 under load. WHEELSCHED_KILLS sets how many (default 5); `python -m tests.crash` is the long form."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("lmdb")

from tests.crash import server_kills as crash


@pytest.mark.slow
def test_kill_9_under_load_loses_nothing_and_doubles_nothing(tmp_path):
    kills = int(os.environ.get("WHEELSCHED_KILLS", "5"))
    seed = int(os.environ.get("WHEELSCHED_SEED", "1"))
    h = crash.run(tmp_path, kills, seed)
    findings, counts = crash.judge(h.history)
    assert not findings, (seed, findings[:10])
    assert counts["starts"] > kills, (seed, counts)
    assert h.counts["acked"] > kills, (seed, h.counts)
    result = subprocess.run(
        [sys.executable, crash.CHECKER, str(h.history), "--min", f"starts={kills}", "--min", f"faults={kills}"],
        capture_output=True, text=True, check=False,
    )
    assert result.returncode == 0, f"seed {seed}\n{result.stdout[-5_000:]}"
