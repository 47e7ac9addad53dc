"""A data directory as a former version left it, killed: it opens, and what was there is there.

`golden/directory_0` was made by a server of the last version whose modules stood in one flat folder: jobs of each kind, a dead letter, a
key, a unique run that is due in 2099, a queue with limits, a deleted job; then the server was killed.
"""

import json
import subprocess
import sys
import tarfile

import pytest

from tests.rigs.places import TESTS
from wheelsched import At, Call

GOLDEN = TESTS / "golden"


@pytest.fixture
def folder(short_tmp):
    with tarfile.open(GOLDEN / "directory_0.tar.xz") as archive:
        archive.extractall(short_tmp, filter="data")
    for path in [short_tmp / "data", *(short_tmp / "data").rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return short_tmp


def test_a_directory_of_a_former_version_opens(folder, serving):
    known = json.loads((GOLDEN / "directory_0.json").read_text())
    ws = serving("--hold").client()
    assert sorted([job.name, job.state] for job in ws.jobs()) == known["jobs"]
    runs = {run.id: [run.id, run.job, run.state] for run in ws.runs()}
    assert [runs.get(run[0]) for run in known["runs"]] == known["runs"]
    assert {queue.name: queue.settings for queue in ws.queues()}["slow"] == {"concurrency": 2, "rate": "10/s"}
    assert ws.enqueue(Call("t.echo", {"k": [1, 2]}), key="order-7").existing, "the key is remembered"
    assert ws.put("a/once", Call("t.echo", "once"), At("2026-01-01T00:00:00Z")).result == "unchanged", "the name is remembered"


def test_it_verifies(folder):
    done = subprocess.run([sys.executable, "-m", "wheelsched", "admin", "verify", str(folder / "data")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
