"""Draws definitions of jobs and calendars for the simulated world."""

from __future__ import annotations

from tests.sim.chains import ChainDraws
from tests.sim.turns import TurnDraws
from wheelsched import Call, Catchup, Cron, Every, Overlap, Retry
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.model.nouns import US, to_datetime
from wheelsched.protocol.definition import given_from_api
from wheelsched.schedules.schedule import At, Manual

NAMES = ("default/a", "default/b", "default/c", "default/d", "team/e", "team/f")
CALENDARS = ("x", "y")
TASKS = ("t.a", "t.b")
ATTEMPTS_MAX = 3
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
NIGHTLY = ("30 2 * * *", "*/20 2 * * *", "15,45 1-3 * * *", "*/10 * * * *", "0 0 * * *", "5,35 1,2,3 * * *", "*/15 */2 * * *", "0 * * * *")


class Definitions:
    """One seed's definitions. `world` tells the time."""

    def __init__(self, world):
        self.world = world
        self.rng = world.rng
        self.turns = TurnDraws(world.seed, TASKS)
        self.chains = ChainDraws(world.seed, NAMES, TASKS, ATTEMPTS_MAX)
        features = ("jitter", "pause_after", "late", "after", "union", "calendar", "zones", "wide", "max_runs")
        self.features = {f for f in features if self.rng.random() < 0.5}
        if world.change_us is not None:
            self.features.add("zones")

    def given(self, name):
        """(given, param_us) that a client accepts."""
        while True:
            try:
                return given_from_api(Call(self.rng.choice(TASKS)), self.schedule(), self.policies(name))
            except InvalidArgumentError:
                continue  # such as an instant before the start

    def policies(self, name):
        r, now, have = self.rng, self.world.wall_us, self.features
        p = {"retry": Retry(r.randint(1, ATTEMPTS_MAX), r.choice([0, "1s", "30s"])), "priority": r.choice([5, 5, 9])}
        if r.random() < 0.6:
            p["overlap"] = r.choice(["skip", "allow", "buffer_one", Overlap("buffer_all", 2), Overlap("allow", 2), "buffer_latest",
                                     "cancel_other", "kill_other"])
        if r.random() < 0.6:
            p["catchup"] = r.choice(["latest", "earliest", "skip", "all", Catchup("all", "2m", 3), Catchup("latest", "1m")])
        if "max_runs" in have and r.random() < 0.25:
            p["max_runs"] = r.randint(1, 4)
        if r.random() < 0.1:
            p["start"] = to_datetime(now + r.randint(-100, 100) * US)
        if r.random() < 0.1:
            p["end"] = to_datetime(now + r.randint(200, 1_000) * US)
        if "jitter" in have and r.random() < 0.5:
            p["jitter"] = r.choice(["1s", "30s", "5m", "10%", "50%", "100%"])
        if "pause_after" in have and r.random() < 0.6:
            p["pause_after"] = r.randint(1, 3)
            p["retry"] = Retry(1)
        if "late" in have and r.random() < 0.6:
            p["late_after"] = r.choice(["1s", "10s", "60s"])
        if "late" in have and r.random() < 0.5:
            p["on_missed"] = r.choice([n for n in NAMES if n != name])
        if "calendar" in have and self.calendars() and r.random() < 0.6:
            known = self.calendars()
            p["calendar"] = r.sample(known, r.randint(1, len(known)))
        return p | self.chains.hooks(name, self.jobs()) | self.turns.retry()

    def jobs(self):
        """Names of jobs that are there, as far as anybody knows."""
        state = self.world.engine.state
        return [name for name in NAMES if state.find_job(name.encode()) is not None]

    def calendars(self):
        """Names of calendars that are there, as far as anybody knows."""
        return sorted(self.world.engine.state.calendars)

    def schedule(self):
        r = self.rng
        if "union" in self.features and r.random() < 0.25:
            parts = [self.single() for _ in range(r.randint(1, 3))]
            return [p for p in parts if not isinstance(p, Manual)] or [Every("20s")]
        if "after" in self.features and r.random() < 0.3:
            return Every(r.choice(["5s", "60s"]), after_completion=True)
        return self.single()

    def single(self):
        r, now = self.rng, self.world.wall_us
        if "zones" in self.features and r.random() < 0.6:
            gap, overlap = r.choice([None, None, "run_after", "shift", "skip"]), r.choice([None, None, "first", "second", "both"])
            return Cron(r.choice(NIGHTLY), tz=r.choice(ZONES), dst_gap=gap, dst_overlap=overlap)
        return r.choice([
            Every("7s"), Every("10s"), Every("60s"), Every(r.randint(5, 100)), Cron("* * * * *"), Cron("*/2 * * * *"),
            Cron("*/15 * * * * *"), Cron("H * * * *"), At(to_datetime(now + r.randint(-20, 200) * US)), Manual(),
        ])

    def calendar(self):
        """A calendar of the wire that has something to say soon."""
        r, now = self.rng, self.world.wall_us
        local = to_datetime(now)
        begin = now + r.randint(-300, 300) * US
        hour = f"{(local.hour + r.choice([-1, 0, 1])) % 24:02}"
        parts = {
            "windows": [{"from_us": begin, "to_us": begin + r.choice([20, 120, 3_600]) * US}],
            "daily": [r.choice([
                {"from": f"{hour}:{local.minute:02}", "to": f"{hour}:59"}, {"from": f"{hour}:00", "to": f"{(int(hour) + 1) % 24:02}:30"},
                {"from": "22:00", "to": "02:30", "weekdays": ["sat", "sun"]}, {"from": "02:00", "to": "03:00"},
            ])],
            "weekdays": [r.choice(["sat", "sun", "mon"])], "dates": [local.date().isoformat()], "yearly": [local.strftime("%m-%d")],
        }
        chosen = r.sample(sorted(parts), r.choice([1, 1, 2]))
        if any(d["from"] == d["to"] for d in parts["daily"]):
            chosen = ["windows"]
        return {"mode": r.choice(["exclude", "exclude", "include"]), "tz": r.choice(["UTC", *ZONES]), **{c: parts[c] for c in chosen}}
