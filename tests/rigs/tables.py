"""Tables of jobs and runs by themselves, without a state: what the tests of `wheelsched/tables` do to them."""

import numpy as np

from wheelsched.model.ids import job_key
from wheelsched.model.nouns import NEVER, Event, JobState, RunState
from wheelsched.state.state import _moves
from wheelsched.tables._jobs import JobTable
from wheelsched.tables._runs import RunTable


def new_tables():
    """(jobs, runs, a ready line): empty, with one definition of three attempts."""
    jobs = JobTable()
    runs = RunTable(jobs, _moves())
    line = runs.new_list(runs.new_queue())
    runs.set_spec(0, line, line, 3)
    return jobs, runs, line


def u32(*values):
    """A column."""
    return np.array(values, np.uint32)


def i64(*values):
    """A column."""
    return np.array(values, np.int64)


def u8(*values):
    """A column."""
    return np.array(values, np.uint8)


def put(jobs, *names, at=5):
    """Jobs of these names, active: their rows."""
    n = len(names)
    raw = [x.encode() for x in names]
    return jobs.put(
        raw, b"".join(job_key(x) for x in raw), [b"payload of " + x for x in raw], np.zeros(n, np.uint32), np.full(n, NEVER),
        np.full(n, 1_000_000), np.full(n, -1), np.full(n, JobState.ACTIVE, np.uint8), at,
    )


def due(runs, job, nominal, state=RunState.QUEUED):
    """One occurrence: its row."""
    one = np.zeros(1, np.int64)
    return int(runs.due(u32(job), i64(nominal), u8(state), u8(1), u8(0), one, u32(0), u32(0), nominal + 7)[0])


def reload(jobs, runs, line, worker_list=None):
    """(jobs, runs) as a snapshot brings them back."""
    other = JobTable()
    for chunk in range(jobs.chunk_total):
        other.load(chunk, jobs.dump(chunk))
    loaded = RunTable(other, _moves())
    assert loaded.new_list(loaded.new_queue()) == line
    lists = {1: loaded.new_list()} if worker_list is not None else {}
    loaded.set_spec(0, line, line, 3)
    for chunk in range(runs.chunk_total):
        loaded.load(chunk, runs.dump(chunk))
    loaded.order = runs.order
    loaded.rebuild(lists)
    return other, loaded


def apply_event(runs, s, event, worker_list, token=1):
    """Send one run through a transition."""
    one = np.zeros(1, np.int64)
    if event == Event.GRANT:
        runs.grant(u32(s), 1, worker_list, token, 0)
    elif event == Event.GIVE_BACK:
        runs.give_back(u32(s))
    elif event == Event.DUE:
        runs.wake(u32(s), 9)
    elif event == Event.SEND_BACK:
        runs.send_back(u32(s), i64(-1), u32(0), 0)
    elif event in (Event.REDRIVE, Event.REDRIVE_AT):
        runs.redrive(u32(s), i64(event == Event.REDRIVE_AT), 0)
    elif event in (Event.SUCCEED, Event.RETRY, Event.EXHAUST, Event.SPARE):
        runs.finish(u32(s), u8(event), u8(1), one, one, one, {}, {})
    else:
        runs.change(u32(s), event, 0)
