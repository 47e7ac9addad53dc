"""Dead letters that are sent back, and identities, in the simulated world: what draws them, and the rules of the judge about them. Every
fourth seed has more of them, drawn from a source of their own, so that the others stay as they were.
"""

from __future__ import annotations

import random

from wheelsched import Call, Retry
from wheelsched.model.nouns import RunFlag, RunState, Trigger
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.state.nouns import IDENTITY


class TurnDraws:
    """Runs that die and are sent back; enqueues of few identities."""

    def __init__(self, seed, tasks):
        self.rng = random.Random(f"turns of {seed}")
        self.on = seed % 4 == 1
        self.tasks = tasks

    def retry(self):
        """Policies of a job whose runs die soon."""
        return {"retry": Retry(1)} if self.on and self.rng.random() < 0.8 else {}

    def dies(self):
        """Whether a worker fails at all that it has."""
        return self.on and self.rng.random() < 0.6

    def enqueues(self):
        """Arguments of enqueues with an identity: there are two."""
        for _ in range(self.rng.randint(1, 3) if self.on else 0):
            given, _ = given_from_api(Call(self.tasks[0]), None, {"retry": Retry(1)})
            yield {"given": given, "payload": encode_payload((self.rng.randint(0, 1),), {}), "namespace": "default", "unique": ["args"],
                   "key": None}

    def redrives(self, world):
        """Arguments of redrives: of some by their ids, or all, perhaps at a rate."""
        if not self.on or self.rng.random() < 0.2:
            return
        runs = world.engine.state.runs
        ids = [runs.text_id(row) for row in runs.peek(2, 100).tolist()]
        rate = self.rng.choice([None, None, "1/10s"])
        if ids and self.rng.random() < 0.5:
            yield {"ids": self.rng.sample(ids, self.rng.randint(1, len(ids))), "rate": rate}
        else:
            yield {"match": "*", "ids": None, "rate": rate}


def sent_back(fields):
    """Which runs of jobs a person has sent back."""
    return (fields["flags"] & RunFlag.SENT_BACK > 0) & (fields["trigger"] != Trigger.ENQUEUE)


def makes_up(fields):
    """Which runs make up for the past by a person's will."""
    return (fields["trigger"] == Trigger.BACKFILL) | sent_back(fields)


def apart(fields):
    """Which runs go by a limit of their own."""
    return makes_up(fields) & (fields["count"] // 2 > 0)


class TurnRules:
    """What must hold of runs that are sent back, and of identities. Mixed into `sim_judge.Judge`."""

    def __init__(self):
        super().__init__()
        self.identities = {}  # name -> ids of all runs that were made with it

    def _redrive(self, f, _):
        for r, due in zip(self.state.runs.gather(f["run"]), f["due"].tolist(), strict=True):
            self.redrives[self.id_of(r)] += 1
            assert r["trigger"] == Trigger.ENQUEUE, f"{self.names[int(r['job'])]}: a run is sent back past its turn"
            assert r["state"] == (RunState.RETRY_WAIT if due > f["at"] else RunState.QUEUED)

    def _send_back(self, f, _):
        for r in self.state.runs.gather(f["run"]):
            self.redrives[self.id_of(r)] += 1
            assert r["state"] == RunState.SCHEDULED
            assert r["trigger"] != Trigger.ENQUEUE, "an enqueued run waits for nobody"

    def _before_supersede(self, f):
        """Who was sent back is never dropped."""
        for r in self.state.runs.gather(f["run"]):
            assert not sent_back(r), f"{self.names[int(r['job'])]}: {int(r['nominal_us'])} was sent back, and gives its place to another"

    def _before_enqueue(self, f):
        """No run is made while an open one has its identity."""
        for i, key in f["key"]:
            if not key.startswith(IDENTITY):
                continue
            mine = self.identities.setdefault(key, set())
            rows = self.state.runs.find(b"".join(sorted(mine)))
            states = self.state.runs.gather(rows[rows != 2**32 - 1])["state"]
            assert (states > RunState.RETRY_WAIT).all(), f"a run is made beside an open one that has its identity, of {len(mine)}"
            mine.add(f["id"][16 * i : 16 * i + 16])
