"""The foreign worker with the tasks of the crash test: it writes the same history, and also how its reports were answered."""

import argparse
import json
import os
import random
import time
from datetime import timedelta
from pathlib import Path

from tests.rigs.foreign import foreign_worker
from tests.rigs.foreign.foreign_worker import EPOCH, SUCCEEDED, Run, Stopped, Worker

SHORT = {"crash.quick": 0, "crash.slow": 0.02, "crash.flaky": 0}


class History:
    """One file of events; one write an event."""

    def __init__(self, folder):
        self.src = f"w{os.getpid()}"
        self.fd = os.open(Path(folder) / f"worker-{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def event(self, kind, run, **fields):
        at = EPOCH + timedelta(microseconds=run.scheduled_us)
        event = {
            "type": kind, "wall": time.time(), "mono": time.monotonic(), "src": self.src, "worker": self.src, "job": run.job.removeprefix("default/"),
            "scheduled_at": at.isoformat(), "run_id": run.id.hex(), "attempt": run.attempt, "token": run.token, **fields,
        }
        os.write(self.fd, (json.dumps(event) + "\n").encode())


def tasks(history):
    """The functions by name."""

    def body(run, seconds, fail):
        history.event("start", run)
        if run.stop.wait(seconds):
            history.event("end", run, outcome="killed")
            raise Stopped
        failed = random.random() < fail
        history.event("end", run, outcome="error" if failed else "ok")
        if failed:
            raise ValueError("this attempt fails on purpose")

    def short(run):
        body(run, SHORT[run.task], 0.3 if run.task == "crash.flaky" else 0)

    return dict.fromkeys(SHORT, short) | {"crash.long": lambda run, seconds: body(run, seconds, 0)}


class Recorded(Worker):
    """A worker that notes the answer to each report."""

    history: History

    def send_unanswered(self, entries):
        for run, _, _ in entries:
            run.sent = time.monotonic()
        super().send_unanswered(entries)

    def on_finish(self, sent, answer):
        for (run, outcome, _), verdict in zip(sent, answer["verdict"], strict=True):
            if run.started_us:
                outcome_word = "success" if outcome == SUCCEEDED else "failure"
                self.history.event("complete", run, outcome=outcome_word, accepted=verdict == 1, sent_mono=run.sent)
        super().on_finish(sent, answer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("history")
    args = parser.parse_args()
    Recorded.history = History(args.history)
    Run.sent = 0.0
    foreign_worker.TASKS = tasks(Recorded.history)
    Recorded(args.socket, [], 4, 2).work()


if __name__ == "__main__":
    main()
