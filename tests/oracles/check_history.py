#!/usr/bin/env python3
"""Independent black-box checker for a job scheduler's history.

It knows nothing of the product: it reads what test clients and test workers wrote down
(JSONL, see check_history.md), computes by itself which scheduled times had to fire, and says
whether the history keeps the promises I1..I9.

usage: check_history.py [options] HISTORY.jsonl [MORE.jsonl | DIR ...]

exit code: 0 every invariant holds, 1 at least one violation,
           2 the history cannot be judged (malformed, or it proves nothing)

Plain Python 3.9+, standard library only.
"""
import argparse
import bisect
import collections
import datetime as dt
import json
import math
import os
import sys
from zoneinfo import ZoneInfo

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
INF = math.inf

DEFAULTS = {
    "tol": 1.0,                # s: how late a run may be triggered with nothing wrong
    "early": 0.05,             # s: how early a start may be seen (clock reading noise)
    "cmd_eps": 0.05,           # s: a target this close to a command may go either way
    "recovery": 5.0,           # s: after an outage ends, before triggering is owed again
    "settle": 5.0,             # s: before the export, a run younger than this may be open
    "ambiguous_horizon": 60.0,  # s: an unanswered command may still take effect this long
    "match": "auto",           # id | time | auto: by scheduled_at, or Chronos-like by clock
    "epsilon": None,           # s: window of the time matching (default: tol)
    "allow_extra": False,      # time matching: executions that match no target are fine
    "attempt_per_token": True,  # every grant (token) is a new attempt number
    "delete_drops_runs": False,  # deleting a job may remove its run records
    "once_autodelete": True,   # a one-time or finished job may vanish from the listing
    "put_keeps_pause": False,  # put leaves an existing job's pause flag as it was
    "record_skips": False,     # a skipped target must have a record that says so
    "coalesce_to": "any",      # latest | earliest | any
    "dst_gap": "vixie",        # skip | shift | shift_wall | vixie
    "dst_fold": "vixie",       # first | second | both | vixie
    "day_mode": "or_vixie",    # or_vixie | or_strict | and
    "lag": {},                 # {"p50":s,"p99":s,"max":s}: bounds on the steady trigger lag
    "state_map": {},           # product's state name -> one of the names below
    "max_shown": 200,          # violations printed per invariant
}

SUCCESS = {"succeeded"}
DEAD = {"dead"}
SKIP = {"skipped", "missed"}
OTHER_FINAL = {"cancelled", "expired", "failed"}
TERMINAL = SUCCESS | DEAD | SKIP | OTHER_FINAL
OPEN = {"scheduled", "pending", "queued", "leased", "running", "retrying", "paused"}


class BadHistory(Exception):
    pass


# ------------------------------------------------------------------ time


def us(x):
    """Epoch seconds (number) or ISO-8601 with offset -> integer microseconds."""
    if x is None:
        return None
    if isinstance(x, bool):
        raise BadHistory("a time is true/false")
    if isinstance(x, int):
        return x * 1_000_000
    if isinstance(x, float):
        if not math.isfinite(x):
            raise BadHistory("a time is not finite")
        return round(x * 1e6)
    d = dt.datetime.fromisoformat(x.replace("Z", "+00:00"))
    if d.tzinfo is None:
        raise BadHistory("time without an offset: %r" % x)
    z = d - EPOCH
    return (z.days * 86400 + z.seconds) * 1_000_000 + z.microseconds


def iso(u):
    if u is None:
        return "?"
    return (EPOCH + dt.timedelta(microseconds=u)).isoformat().replace("+00:00", "Z")


def key_ms(u):
    return None if u is None else (u + 500) // 1000


class Clock:
    """Maps a wall time of the scheduler's nodes to the recorders' monotonic clock."""

    def __init__(self, base, steps):
        self.base = base                      # wall = mono + base (recorders, unstepped)
        self.nodes = [sorted(v) for v in steps.values()] or [[]]

    def mono(self, wall_us):
        return wall_us / 1e6 - self.base

    def wall(self, mono):
        return round((mono + self.base) * 1e6)

    def due(self, wall_us):
        """(earliest, latest) monotonic time at which a node's clock reaches wall_us."""
        t = wall_us / 1e6 - self.base
        if self.nodes == [[]]:
            return t, t
        out = []
        for steps in self.nodes:
            seg = [(-INF, 0.0)] + steps
            for i, (m, off) in enumerate(seg):
                nxt = seg[i + 1][0] if i + 1 < len(seg) else INF
                c = max(m, t - off)
                if c < nxt:
                    out.append(c)
                    break
        return min(out), max(out)


# ------------------------------------------------------------------ schedules


class Unsupported(Exception):
    pass


MONTHS = {n: i + 1 for i, n in enumerate(
    "jan feb mar apr may jun jul aug sep oct nov dec".split())}
DAYS = {n: i for i, n in enumerate("sun mon tue wed thu fri sat".split())}
ALIASES = {"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
           "@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
           "@hourly": "0 * * * *"}


def cron_field(text, lo, hi, names, dow=False):
    """-> (set of values, begins with a star, is exactly a star)."""
    text = text.lower()
    if text == "?":
        text = "*"
    vals = set()

    def one(s):
        if s in names:
            return names[s]
        if not s.isdigit():
            raise Unsupported("cron field %r" % text)
        return int(s)

    top = 7 if dow else hi
    for part in text.split(","):
        body, _, step = part.partition("/")
        if _ and (not step.isdigit() or int(step) < 1):
            raise Unsupported("cron step %r" % part)
        st = int(step) if step else 1
        if body == "*":
            a, b = lo, hi
        elif "-" in body:
            x, y = body.split("-", 1)
            a, b = one(x), one(y)
        else:
            a = one(body)
            b = hi if step else a
        if dow and a == 7 and b == 7:
            a = b = 0
        if not (lo <= a <= top and lo <= b <= top and a <= b):
            raise Unsupported("cron range %r" % part)
        vals |= set(range(a, b + 1, st))
    if dow and 7 in vals:
        vals.discard(7)
        vals.add(0)
    return vals, text.startswith("*"), text == "*"


class Cron:
    def __init__(self, sched, cfg):
        expr = ALIASES.get(sched["expr"].strip().lower(), sched["expr"])
        f = expr.split()
        sec = "0"
        where = sched.get("seconds")
        if len(f) == 6:
            where = where or "last"
            sec = f.pop(0) if where == "first" else f.pop()
        if len(f) != 5:
            raise Unsupported("cron expression %r" % expr)
        self.sec, _, _ = cron_field(sec, 0, 59, {})
        self.min, mstar, mexact = cron_field(f[0], 0, 59, {})
        self.hour, hstar, hexact = cron_field(f[1], 0, 23, {})
        self.dom, dstar, dexact = cron_field(f[2], 1, 31, {})
        self.mon, _, _ = cron_field(f[3], 1, 12, MONTHS)
        self.dow, wstar, wexact = cron_field(f[4], 0, 6, DAYS, dow=True)
        mode = sched.get("day_mode", cfg["day_mode"])
        free_d, free_w = (dstar, wstar) if mode == "or_vixie" else (dexact, wexact)
        self.day_or = mode != "and" and not free_d and not free_w
        self.wild = mstar or hstar            # vixie: such jobs follow real time over DST
        self.tz = ZoneInfo(sched.get("tz", "UTC"))
        self.gap = sched.get("dst_gap", cfg["dst_gap"])
        self.fold = sched.get("dst_fold", cfg["dst_fold"])

    def day_ok(self, d):
        if d.month not in self.mon:
            return False
        a, b = d.day in self.dom, (d.isoweekday() % 7) in self.dow
        return (a or b) if self.day_or else (a and b)

    def instants(self, naive):
        """Wall-clock reading -> the UTC instants at which this job fires for it."""
        out = []
        for fold in (0, 1):
            loc = naive.replace(tzinfo=self.tz, fold=fold)
            u = loc.astimezone(dt.timezone.utc)
            if u.astimezone(self.tz).replace(tzinfo=None) == naive and u not in out:
                out.append(u)
        if len(out) == 2:
            how = self.fold
            if how == "vixie":
                how = "both" if self.wild else "first"
            out = {"first": out[:1], "second": out[1:], "both": out}[how]
        elif not out:
            how = self.gap
            if how == "vixie":
                how = "skip" if self.wild else "shift"
            if how == "skip":
                return []
            before = naive.replace(tzinfo=self.tz, fold=0).utcoffset()
            after = naive.replace(tzinfo=self.tz, fold=1).utcoffset()
            if how == "shift_wall":           # 02:30 becomes 03:30
                out = [(naive - min(before, after)).replace(tzinfo=dt.timezone.utc)]
            else:                             # the first instant after the gap
                lo = (naive - max(before, after)).replace(tzinfo=dt.timezone.utc)
                hi = (naive - min(before, after)).replace(tzinfo=dt.timezone.utc)
                off = lo.astimezone(self.tz).utcoffset()
                lo -= dt.timedelta(hours=3)
                off = lo.astimezone(self.tz).utcoffset()
                while hi - lo > dt.timedelta(seconds=1):
                    mid = lo + (hi - lo) // 2
                    mid = mid.replace(microsecond=0)
                    if mid in (lo, hi):
                        break
                    if mid.astimezone(self.tz).utcoffset() == off:
                        lo = mid
                    else:
                        hi = mid
                out = [hi.replace(microsecond=0)]
        return out

    def between(self, a_us, b_us):
        a = EPOCH + dt.timedelta(microseconds=a_us)
        b = EPOCH + dt.timedelta(microseconds=b_us)
        pad = dt.timedelta(hours=4)
        la = (a.astimezone(self.tz) - pad).replace(tzinfo=None)
        lb = (b.astimezone(self.tz) + pad).replace(tzinfo=None)
        out = set()
        day = la.date()
        hours, mins, secs = sorted(self.hour), sorted(self.min), sorted(self.sec)
        while day <= lb.date():
            if self.day_ok(day):
                for h in hours:
                    h0 = dt.datetime(day.year, day.month, day.day, h)
                    if h0 + dt.timedelta(hours=1) <= la or h0 > lb:
                        continue
                    first = self.instants(h0)
                    last = self.instants(h0.replace(minute=59, second=59))
                    plain = len(first) == len(last) == 1 and \
                        last[0] - first[0] == dt.timedelta(seconds=3599)
                    for m in mins:
                        for s in secs:
                            if plain:         # no change of offset inside this hour
                                us_ = [first[0] + dt.timedelta(seconds=60 * m + s)]
                            else:
                                us_ = self.instants(h0.replace(minute=m, second=s))
                            for u in us_:
                                if a <= u <= b:
                                    z = u - EPOCH
                                    out.add((z.days * 86400 + z.seconds) * 1_000_000)
            day += dt.timedelta(days=1)
        return sorted(out)


_CRON_CACHE = {}


def targets(definition, a_us, b_us, cfg):
    """Every scheduled time of the definition in [a_us, b_us], in microseconds."""
    s = definition["schedule"]
    lo = a_us
    hi = b_us
    if definition.get("start_at") is not None:
        lo = max(lo, us(definition["start_at"]))
    if definition.get("end_at") is not None:
        hi = min(hi, us(definition["end_at"]))
    kind = s["kind"]
    if kind == "once":
        t = us(s["at"])
        return [t] if t <= hi else []         # `at` in the past: permitted, see Judge
    if hi < lo:
        return []
    if kind == "interval":
        every = round(float(s["every"]) * 1e6)
        if every <= 0:
            raise Unsupported("interval of 0")
        if s.get("anchor") is None:
            raise Unsupported("interval whose anchor nobody recorded")
        anchor = us(s["anchor"])
        first = 0 if s.get("first", "anchor") == "anchor" else 1
        k = max(first, -((anchor - lo) // every))
        last = (hi - anchor) // every
        if s.get("count") is not None:
            last = min(last, first + int(s["count"]) - 1)
        return [anchor + i * every for i in range(k, last + 1)]
    if kind == "cron":
        ck = json.dumps(s, sort_keys=True)
        cron = _CRON_CACHE.get(ck)
        if cron is None:
            cron = _CRON_CACHE[ck] = [Cron(s, cfg), {}]
        memo = cron[1]
        # widen to whole hours so that jobs put at different moments share one scan
        H = 3_600_000_000
        w = (lo // H, -(-hi // H))
        if w not in memo:
            memo[w] = cron[0].between(w[0] * H, w[1] * H)
        all_ = memo[w]
        return all_[bisect.bisect_left(all_, lo):bisect.bisect_right(all_, hi)]
    if kind == "manual":
        return []
    raise Unsupported("schedule kind %r" % kind)


# ------------------------------------------------------------------ history


class Op:
    __slots__ = ("id", "op", "job", "d", "key", "inv", "inv_wall", "fin", "done",
                 "done_wall", "resp", "line", "n")

    def __repr__(self):
        return "%s(%s)" % (self.op, self.id)


class History:
    def __init__(self):
        self.cfg = dict(DEFAULTS)
        self.ops = []
        self.byid = {}
        self.starts, self.ends, self.completes = [], [], []
        self.servers, self.faults, self.clock_events = [], [], []
        self.records = None
        self.jobs = None
        self.dead = None
        self.export_begin = self.export_end = None
        self.export = {}
        self.samples = []
        self.last = -INF
        self.lines = 0
        self.warnings = []
        self.errors = []
        self.over = {}

    # -- reading

    def feed_file(self, path):
        with open(path, "rb") as f:
            data = f.read()
        rows = data.split(b"\n")
        for i, raw in enumerate(rows):
            if not raw.strip():
                continue
            where = "%s:%d" % (os.path.basename(path), i + 1)
            try:
                e = json.loads(raw)
                if not isinstance(e, dict):
                    raise ValueError("not an object")
            except ValueError as x:
                if i == len(rows) - 1:        # no newline: the recorder was killed here
                    self.warnings.append("torn last line dropped at %s" % where)
                    continue
                self.errors.append("%s: not JSON: %s" % (where, x))
                continue
            self.lines += 1
            try:
                self.feed(e, where)
            except (KeyError, TypeError, ValueError, BadHistory) as x:
                self.errors.append("%s: %s: %s" % (where, type(x).__name__, x))

    def feed(self, e, where):
        k = e["type"]
        if k == "meta":
            for n, v in (e.get("config") or {}).items():
                if n not in DEFAULTS:
                    raise BadHistory("unknown config %r" % n)
                if n not in self.over:
                    self.cfg[n] = v
            return
        if k == "note":
            return
        if k in ("run", "job", "dead_letter"):
            getattr(self, "row_" + k)(e, where)
            return
        mono = float(e["mono"])
        if not math.isfinite(mono):
            raise BadHistory("mono is not finite")
        wall = us(e["wall"])
        self.samples.append(wall / 1e6 - mono)
        self.last = max(self.last, mono)
        e = dict(e, mono=mono, wall=wall, line=where)
        fn = getattr(self, "on_" + k, None)
        if fn is None:
            raise BadHistory("unknown type %r" % k)
        fn(e)

    def on_invoke(self, e):
        o = Op()
        o.id, o.op, o.job = str(e["id"]), e["op"], e.get("job")
        if o.op not in ("put", "delete", "pause", "resume", "trigger", "cancel", "get"):
            raise BadHistory("unknown op %r" % o.op)
        if o.job is None and o.op != "cancel":
            raise BadHistory("op without a job")
        if o.id in self.byid:
            raise BadHistory("id %r used twice" % o.id)
        o.d, o.key, o.inv, o.inv_wall = e.get("def"), e.get("key"), e["mono"], e["wall"]
        if o.op == "put" and not (isinstance(o.d, dict) and "schedule" in o.d):
            raise BadHistory("put without def.schedule")
        o.fin, o.done, o.done_wall, o.resp, o.line = None, None, None, dict(e), e["line"]
        self.byid[o.id] = o
        self.ops.append(o)

    def _fin(self, e, how):
        o = self.byid.get(str(e["id"]))
        if o is None:
            raise BadHistory("%s for an unknown id %r" % (how, e["id"]))
        if o.fin is not None:
            raise BadHistory("id %r finished twice" % e["id"])
        if e["mono"] < o.inv:
            raise BadHistory("id %r finished before it began" % e["id"])
        o.fin, o.done, o.done_wall = how, e["mono"], e["wall"]
        o.resp = {**o.resp, **{k: v for k, v in e.items() if k not in ("type", "id")}}
        if o.op == "put" and how == "ok" and isinstance(e.get("def"), dict):
            o.d = merge(o.d, e["def"])        # the resolved definition, e.g. an anchor

    def on_ok(self, e):
        self._fin(e, "ok")

    def on_fail(self, e):
        self._fin(e, "fail")

    def on_info(self, e):
        self._fin(e, "info")

    def _exec(self, e):
        if "job" not in e and "run_id" not in e:
            raise BadHistory("execution without job or run_id")
        for n in ("attempt", "token"):
            if e.get(n) is not None and (isinstance(e[n], bool) or not isinstance(e[n], int)):
                raise BadHistory("%s must be an integer" % n)
        e["T"] = us(e.get("scheduled_at"))
        if e.get("run_id") is not None:
            e["run_id"] = str(e["run_id"])
        return e

    def on_start(self, e):
        self.starts.append(self._exec(e))

    def on_end(self, e):
        if e.get("outcome") not in ("ok", "error", "killed"):
            raise BadHistory("end needs outcome ok|error|killed")
        self.ends.append(self._exec(e))

    def on_complete(self, e):
        if e.get("outcome") not in ("success", "failure"):
            raise BadHistory("complete needs outcome success|failure")
        if e.get("accepted", "x") not in (True, False, None):
            raise BadHistory("complete needs accepted true|false|null")
        e = self._exec(e)
        e["sent"] = float(e.get("sent_mono", e["mono"]))
        self.completes.append(e)

    def on_server(self, e):
        if e["event"] not in ("ready", "kill", "stop", "crash", "pause", "resume"):
            raise BadHistory("unknown server event %r" % e["event"])
        self.servers.append(e)

    def on_fault(self, e):
        if e["event"] not in ("begin", "end"):
            raise BadHistory("fault needs event begin|end")
        self.faults.append(e)

    def on_clock(self, e):
        e["offset"] = float(e["offset"])
        self.clock_events.append(e)

    def on_export(self, e):
        if e["phase"] == "begin":
            self.export_begin = e["mono"]
            self.records, self.jobs, self.dead = [], [], []
            self.export = e
        else:
            self.export_end = e["mono"]

    def row_run(self, e, where):
        if self.records is None:
            raise BadHistory("run row before export begin")
        st = self.cfg["state_map"].get(e["state"], e["state"])
        if st not in TERMINAL | OPEN:
            raise BadHistory("unknown run state %r (use config.state_map)" % e["state"])
        r = dict(e, state=st, T=us(e.get("scheduled_at")), line=where,
                 run_id=str(e["run_id"]), created=us(e.get("created_at")),
                 finished=us(e.get("finished_at")), next=us(e.get("next_at")))
        r["manual"] = e.get("trigger", "schedule") == "manual"
        if r["T"] is None and not r["manual"]:
            raise BadHistory("run row without scheduled_at")
        self.records.append(r)

    def row_job(self, e, where):
        if self.jobs is None:
            raise BadHistory("job row before export begin")
        self.jobs.append(dict(e, line=where))

    def row_dead_letter(self, e, where):
        if self.dead is None:
            raise BadHistory("dead_letter row before export begin")
        self.dead.append(dict(e, run_id=str(e["run_id"]), line=where))

    # -- after reading

    def finish(self):
        if not self.samples:
            raise BadHistory("no timed events")
        s = sorted(self.samples)
        base = s[len(s) // 2]
        spread = max(s[-1] - base, base - s[0])
        if spread > 0.5:
            self.warnings.append("recorders' wall and monotonic clocks disagree by %.3f s: "
                                 "run recorders without the clock shim" % spread)
        steps = collections.defaultdict(list)
        for c in self.clock_events:
            steps[c.get("node", "all")].append((c["mono"], c["offset"]))
        if self.clock_events:
            for n in {x["node"] for x in self.servers if "node" in x}:
                if n not in steps and "all" not in steps:
                    steps[n] = []
        self.clock = Clock(base, steps)
        if self.export_begin is not None and self.export_end is None:
            self.errors.append("the export has no end: its listing may be cut short")
        self.end = self.export_end if self.export_end is not None else self.last
        self.ops.sort(key=lambda o: (o.inv, o.id))
        for i, o in enumerate(self.ops):
            o.n = i
        for lst in (self.starts, self.ends, self.completes):
            lst.sort(key=lambda e: e["mono"])
        self.windows()

    def windows(self):
        """Intervals during which triggering could not be expected."""
        raw = []
        down = {}
        for e in sorted(self.servers, key=lambda e: e["mono"]):
            n = e.get("node", "server")
            if e["event"] in ("kill", "stop", "crash", "pause"):
                down.setdefault(n, (e["mono"], e.get("max_effect")))
            elif n in down:
                b, eff = down.pop(n)
                raw.append((b, min(e["mono"], b + eff) if eff is not None else e["mono"]))
        for b, eff in down.values():
            raw.append((b, b + eff if eff is not None else INF))
        open_ = {}
        for e in sorted(self.faults, key=lambda e: e["mono"]):
            if e.get("affects", "trigger") != "trigger":
                continue
            n = (e.get("kind"), e.get("node"), e.get("id"))
            if e["event"] == "begin":
                open_.setdefault(n, (e["mono"], e.get("max_effect")))
            elif n in open_:
                b, eff = open_.pop(n)
                raw.append((b, min(e["mono"], b + eff) if eff is not None else e["mono"]))
        for b, eff in open_.values():
            raw.append((b, b + eff if eff is not None else INF))
        for c in self.clock_events:           # a step is an instant of chaos
            raw.append((c["mono"], c["mono"]))
        self.raw_windows = merge_iv(raw)
        rec = self.cfg["recovery"]
        self.ext_windows = merge_iv([(b, e + rec) for b, e in raw])
        self.ext_starts = [b for b, _ in self.ext_windows]
        self.n_faults = len(raw)

    def overlaps_fault(self, a, b):
        i = bisect.bisect_right(self.ext_starts, b) - 1
        return i >= 0 and self.ext_windows[i][1] >= a

    def deadline(self, lo, hi, extra=0.0):
        """When the record of a target due in [lo, hi] must exist at the latest."""
        d = hi + self.cfg["tol"] + extra
        i = max(0, bisect.bisect_right(self.ext_starts, lo) - 1)
        excused = False
        while i < len(self.ext_windows):
            b, e = self.ext_windows[i]
            if b > d:
                break
            if e >= lo:
                excused = True
                d = max(d, e + self.cfg["tol"] + extra)
            i += 1
        return d, excused


def merge_iv(iv):
    out = []
    for b, e in sorted(iv):
        if out and b <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], e))
        else:
            out.append((b, e))
    return out


def merge(a, b):
    if isinstance(a, dict) and isinstance(b, dict):
        r = dict(a)
        for k, v in b.items():
            r[k] = merge(a[k], v) if k in a else v
        return r
    return b


# ------------------------------------------------------------------ possible states of one job


class Timeline:
    """All states a job may have been in, at every moment (Wing & Gong's configurations).

    A state is (version, paused): version is the Op of the put in force, None for no job.
    A command takes effect once, somewhere between its invocation and its answer; an
    unanswered one takes effect within ambiguous_horizon of its invocation, or never.
    What was read later (gets, the final listing) rules out states that cannot lead to it.
    """
    LIMIT = 4096

    def __init__(self, job, ops, cfg, final=None):
        self.job, self.cfg, self.final = job, cfg, final
        self.problems = []
        self.lost = False
        self.times, self.sets = [-INF], [frozenset([(None, False)])]
        self.run(ops)

    def apply(self, o, s):
        v, paused = s
        if o.op == "put":
            p = bool((o.d or {}).get("paused", False))
            if self.cfg["put_keeps_pause"] and v is not None:
                p = paused
            return (o, p)
        if o.op == "delete":
            return (None, False)
        if o.op == "pause":
            return (v, True) if v is not None else s
        if o.op == "resume":
            return (v, False) if v is not None else s
        if o.op == "get":
            return s if self.matches(o.resp, s) else None
        raise AssertionError(o.op)

    @staticmethod
    def matches(resp, s):
        v, paused = s
        if "exists" in resp and bool(resp["exists"]) != (v is not None):
            return False
        if v is None:
            return True
        if "paused" in resp and bool(resp["paused"]) != paused:
            return False
        if isinstance(resp.get("value"), dict) and diff(v.d, resp["value"]):
            return False
        return True

    def closure(self, confs):
        seen, todo = set(confs), list(confs)
        while todo:
            s, pend = todo.pop()
            for o in pend:
                n = self.apply(o, s)
                if n is None:
                    continue
                c = (n, pend - {o})
                if c not in seen:
                    seen.add(c)
                    todo.append(c)
                    if len(seen) > self.LIMIT:
                        self.lost = True
                        return seen
        return seen

    def run(self, ops):
        ev = []
        hz = self.cfg["ambiguous_horizon"]
        for o in ops:
            if o.op in ("trigger", "cancel") or (o.op == "get" and o.fin != "ok"):
                continue
            ev.append((o.inv, 0, o.n, "inv", o))
            if o.fin == "ok":
                ev.append((o.done, 1, o.n, "ok", o))
            elif o.fin == "fail":
                ev.append((o.done, 1, o.n, "fail", o))
            else:
                ev.append((o.inv + hz, 2, o.n, "gone", o))
        ev.sort(key=lambda x: x[:3])
        confs = {((None, False), frozenset())}
        layers, steps = [confs], []
        for t, _, _, what, o in ev:
            broken = False
            if what == "inv":
                confs = self.closure({(s, p | {o}) for s, p in confs})
            elif what == "ok":
                left = {c for c in confs if o not in c[1]}
                if not left:
                    self.problems.append((o, "the answer to %s fits no possible order of the "
                                          "acknowledged commands" % o))
                    left, broken = {(s, p - {o}) for s, p in confs}, True
                confs = left
            elif what == "fail":
                confs = {(s, p - {o}) for s, p in confs if o in p}
                if not confs:
                    confs, broken = {((None, False), frozenset())}, True
            else:
                confs = {(s, p - {o}) for s, p in confs}
            self.times.append(t)
            layers.append(confs)
            steps.append((what, o, broken))
            if self.lost:
                break
        if self.final is not None and not self.lost:
            end = {c for c in layers[-1] if self.final(c[0])}
            if end:                           # else: Judge.listing reports it
                layers[-1] = self.backward(layers[-1], end)
        if not self.lost:
            for i in range(len(steps) - 1, -1, -1):
                what, o, broken = steps[i]
                if broken:
                    break
                nxt = layers[i + 1]
                if what == "inv":
                    keep = {(s, p) for s, p in layers[i]
                            if not nxt.isdisjoint(self.closure({(s, p | {o})}))}
                elif what == "ok":
                    keep = layers[i] & nxt
                elif what == "fail":
                    keep = {(s, p) for s, p in layers[i] if o in p and (s, p - {o}) in nxt}
                else:
                    keep = {(s, p) for s, p in layers[i] if (s, p - {o}) in nxt}
                layers[i] = self.backward(layers[i], keep)
        self.sets = [frozenset(s for s, _ in x) for x in layers]

    def backward(self, layer, keep):
        """The configurations of a layer from which a kept one can be reached."""
        keep = set(keep)
        more = True
        while more:
            more = False
            for c in layer - keep:
                s, pend = c
                for o in pend:
                    n = self.apply(o, s)
                    if n is not None and (n, pend - {o}) in keep:
                        keep.add(c)
                        more = True
                        break
        return keep

    def during(self, a, b):
        """Union of the possible states over [a, b]."""
        i = bisect.bisect_right(self.times, a) - 1
        out = set(self.sets[max(i, 0)])
        i += 1
        while i < len(self.times) and self.times[i] <= b:
            out |= self.sets[i]
            i += 1
        return out

    def last_possible(self, version):
        for i in range(len(self.sets) - 1, -1, -1):
            if any(v is version for v, _ in self.sets[i]):
                return self.times[i + 1] if i + 1 < len(self.times) else INF
        return -INF


def diff(want, got, path=""):
    """First difference between a definition sent and the one found (got may add keys)."""
    if isinstance(want, dict) and isinstance(got, dict):
        for k, v in want.items():
            if k in got:
                d = diff(v, got[k], path + "." + k)
                if d:
                    return d
        return None
    if isinstance(want, (int, float)) and isinstance(got, (int, float)) \
            and not isinstance(want, bool) and not isinstance(got, bool):
        return None if abs(want - got) < 1e-6 else "%s: %r, found %r" % (path, want, got)
    if want == got:
        return None
    if path.endswith(("at", "anchor")):
        try:
            if key_ms(us(want)) == key_ms(us(got)):
                return None
        except Exception:
            pass
    return "%s: %r, found %r" % (path, want, got)


# ------------------------------------------------------------------ judging


def percentile(v, q):
    return v[min(len(v) - 1, max(0, math.ceil(q * len(v)) - 1))]


class Judge:
    def __init__(self, h):
        self.h, self.cfg = h, h.cfg
        self.violations = collections.defaultdict(list)
        self.warnings = list(h.warnings)
        self.c = collections.Counter()
        self.lag_steady, self.lag_fault = [], []

    def bad(self, inv, text, *lines):
        at = sorted({x for x in lines if x})
        self.violations[inv].append(text + (" [" + " ".join(at[:6]) + "]" if at else ""))

    # -- entry

    def judge(self):
        h = self.h
        self.index()
        self.counts()
        for job in self.all_jobs:
            self.one_job(job)
        self.runs()
        self.manual()
        self.listing()
        self.cluster()
        self.lags()
        return self

    def index(self):
        h = self.h
        self.ops_by_job = collections.defaultdict(list)
        for o in h.ops:
            if o.job is not None:
                self.ops_by_job[o.job].append(o)
        self.run_ids = {}                     # run_id -> record
        self.rec_by_job = collections.defaultdict(list)
        for r in h.records or ():
            if r["run_id"] in self.run_ids:
                q = self.run_ids[r["run_id"]]
                self.bad("I1", "run_id=%s is listed twice (%s/%s and %s/%s)" % (
                    r["run_id"], q["job"], iso(q["T"]), r["job"], iso(r["T"])),
                    q["line"], r["line"])
            else:
                self.run_ids[r["run_id"]] = r
            self.rec_by_job[r["job"]].append(r)
        self.ev = collections.defaultdict(lambda: {"start": [], "end": [], "complete": []})
        self.starts_by_job = collections.defaultdict(list)
        for kind, lst in (("start", h.starts), ("end", h.ends), ("complete", h.completes)):
            for e in lst:
                if e.get("run_id") is None:
                    if e.get("T") is None:    # nothing but a time: Chronos-like matching
                        e["rk"] = None
                    else:
                        e["rk"] = ("job", e["job"], key_ms(e["T"]))
                else:
                    e["rk"] = e["run_id"]
                if e["rk"] is not None:
                    self.ev[e["rk"]][kind].append(e)
                if kind == "start":
                    job = e.get("job")
                    if job is None and e["rk"] in self.run_ids:
                        job = self.run_ids[e["rk"]]["job"]
                    e["jobname"] = job
                    self.starts_by_job[job].append(e)
        # an `end` without a `complete` for the same token: the answer is unknown
        for rk, g in self.ev.items():
            have = {c.get("token") for c in g["complete"]}
            for e in g["end"]:
                if e.get("token") not in have and e["outcome"] in ("ok", "error"):
                    g["complete"].append(dict(
                        e, outcome="success" if e["outcome"] == "ok" else "failure",
                        accepted=None, sent=e["mono"], implied=True))
        self.all_jobs = sorted(set(self.ops_by_job) | set(self.rec_by_job) |
                               {j for j in self.starts_by_job if j is not None}, key=str)
        self.permit_cache = {}
        self.timelines = {}
        self.dead_ids = {d["run_id"] for d in h.dead or ()}
        for d in h.dead or ():
            if d["run_id"] not in self.run_ids:
                self.bad("I6", "dead letter of run=%s, which has no record" % d["run_id"],
                         d["line"])

    def counts(self):
        h, c = self.h, self.c
        c["commands"] = len(h.ops)
        for o in h.ops:
            c["acked" if o.fin == "ok" else "refused" if o.fin == "fail" else "ambiguous"] += 1
        c["starts"], c["completions"] = len(h.starts), len(h.completes)
        c["records"] = len(h.records or ())
        c["faults"] = h.n_faults
        c["jobs"] = len(self.all_jobs)

    # -- one job: targets (I1 I2 I3), commands (I4)

    def one_job(self, job):
        h, cfg = self.h, self.cfg
        ops = self.ops_by_job.get(job, [])
        tl = self.timelines[job] = Timeline(job, ops, cfg, self.listed(job))
        for o, text in tl.problems:
            self.bad("I4", "job=%s %s" % (job, text), o.line)
        if tl.lost:
            self.warnings.append("job=%s has too many concurrent ambiguous commands: its "
                                 "targets are not judged" % job)
        # the scheduled times of every version, while it may have been in force
        tmap = collections.defaultdict(list)  # ms key -> [(version, T)]
        blind = tl.lost
        for o in ops:
            if o.op != "put" or o.fin == "fail":
                continue
            until = min(tl.last_possible(o), h.end)
            if until == -INF:
                continue
            a = o.inv_wall - round(cfg["cmd_eps"] * 1e6)
            slack = max([0.0] + [off for c in self.h.clock.nodes for _, off in c])
            b = h.clock.wall(until) + round((slack + cfg["tol"]) * 1e6)
            try:
                d = self.resolved(o)
                for T in targets(d, a, b, cfg):
                    tmap[key_ms(T)].append((o, T))
            except Unsupported as x:
                blind = True
                self.warnings.append("job=%s: %s: its targets are not judged" % (job, x))
            except (KeyError, ValueError, TypeError, BadHistory) as x:
                blind = True
                self.warnings.append("job=%s: definition cannot be read (%s: %s): its targets "
                                     "are not judged" % (job, type(x).__name__, x))
        recs = collections.defaultdict(list)
        for r in self.rec_by_job.get(job, ()):
            if not r["manual"]:
                recs[key_ms(r["T"])].append(r)
        starts = self.starts_by_job.get(job, [])
        by_time = cfg["match"] == "time" or (
            cfg["match"] == "auto" and h.records is None and starts and
            all(e.get("T") is None for e in starts))
        if by_time:
            if not blind:
                self.match_by_time(job, tl, tmap, starts)
            return
        seen = collections.defaultdict(set)   # ms key -> run ids seen anywhere
        for k, rr in recs.items():
            for r in rr:
                seen[k].add(r["run_id"])
        for e in starts:
            if e.get("trigger") == "manual" or self.is_manual(e):
                continue
            if e.get("T") is not None:
                seen[key_ms(e["T"])].add(e.get("run_id"))
        for k, ids in seen.items():           # I1
            rr = recs.get(k, [])
            if len(rr) > 1:
                self.bad("I1", "job=%s scheduled_at=%s: %d run records (%s)" % (
                    job, iso(rr[0]["T"]), len(rr), " ".join(sorted(r["run_id"] for r in rr))),
                    *[r["line"] for r in rr])
            elif len({i for i in ids if i is not None}) > 1:
                self.bad("I1", "job=%s scheduled_at=%s: executions under %d run ids (%s)" % (
                    job, iso(k * 1000), len(ids), " ".join(sorted(map(str, ids)))))
        if blind:
            return
        self.overlap(job, ops)
        for k in seen:                        # I3
            if k not in tmap or not self.permitted(job, tl, tmap[k], recs.get(k), k):
                r = (recs.get(k) or [None])[0]
                e = next((x for x in starts if key_ms(x.get("T")) == k), None)
                self.bad("I3", "job=%s scheduled_at=%s: %s, but %s" % (
                    job, iso(k * 1000), "executed" if e else "recorded",
                    self.why_not(job, tl, tmap, k)),
                    r and r["line"], e and e["line"])
        self.owed(job, tl, tmap, recs, seen)

    def resolved(self, o):
        """A put's definition, with what only the listing knows (an interval's anchor)."""
        d = o.d
        s = d["schedule"]
        if s.get("kind") == "interval" and s.get("anchor") is None and self.h.jobs:
            for j in self.h.jobs:
                g = (j.get("def") or {}).get("schedule") or {}
                if j.get("job") == o.job and g.get("anchor") is not None and \
                        g.get("every") == s.get("every"):
                    return merge(d, {"schedule": {"anchor": g["anchor"]}})
        return d

    def is_manual(self, e):
        r = self.run_ids.get(e.get("run_id"))
        if r is not None:
            return r["manual"]
        return e.get("run_id") in self.trigger_ids

    @property
    def trigger_ids(self):
        if not hasattr(self, "_tid"):
            self._tid = {str(o.resp["run_id"]) for o in self.h.ops
                         if o.op == "trigger" and o.resp.get("run_id") is not None}
        return self._tid

    def ok_state(self, s, vers, certain):
        """Is the target on the schedule in state s?  vers: {version: T}."""
        v, paused = s
        if v is None or v not in vers:
            return False
        T = vers[v]
        eps = round(self.cfg["cmd_eps"] * 1e6)
        once = v.d["schedule"].get("kind") == "once"
        if certain:
            if v.fin != "ok" or T < v.done_wall + eps:
                return False
        elif T < v.inv_wall - eps and not once:
            return False
        if paused and not (not certain and v.d.get("pause_policy") == "catch_up"):
            return False
        return True

    def window(self, tv):
        los, his = zip(*[self.h.clock.due(T) for _, T in tv])
        extra = max(float(v.d.get("jitter") or 0) for v, _ in tv)
        lo, hi = min(los), max(his)
        dl, excused = self.h.deadline(lo, hi, extra)
        return lo, hi, dl, excused

    def permitted(self, job, tl, tv, recs, k):
        lo, hi, dl, _ = self.window(tv)
        a, b = lo - self.cfg["early"], dl
        vers = {}
        for v, T in tv:
            if v.d["schedule"].get("kind") == "once":
                a = min(a, v.inv)
                b = max(b, (v.done if v.done is not None
                            else v.inv + self.cfg["ambiguous_horizon"]) + self.cfg["tol"])
            vers[v] = T
        ok = any(self.ok_state(s, vers, False) for s in tl.during(a, b))
        if not ok and any(v.d.get("pause_policy") == "catch_up" for v, _ in tv):
            ok = any(self.ok_state(s, vers, False) for s in tl.during(a, self.h.end))
        self.permit_cache[job, k] = [v for v, _ in tv]
        return ok

    def why_not(self, job, tl, tmap, k):
        if not any(o.op == "put" and o.fin != "fail" for o in self.ops_by_job.get(job, ())):
            return "no acknowledged or ambiguous command ever created this job"
        if k not in tmap:
            return "this time is not on the job's schedule while it was in force"
        lo, hi, dl, _ = self.window(tmap[k])
        states = tl.during(lo - self.cfg["early"], dl)
        if all(v is None for v, _ in states):
            return "the job was certainly deleted (or not yet created) then"
        if all(v is None or p for v, p in states):
            return "the job was certainly paused then"
        return "no version of the job in force then has this time"

    def owed(self, job, tl, tmap, recs, seen):
        h, cfg = self.h, self.cfg
        act = self.activity(job)
        horizon = h.end - cfg["settle"]
        keep = us(h.export.get("retention_before")) if h.export else None
        groups = []                           # coalesced outages still to settle
        for k in sorted(tmap):
            tv = tmap[k]
            T = tv[0][1]
            lo, hi, dl, excused = self.window(tv)
            if dl > horizon or (keep is not None and T < keep):
                continue
            vers = dict(tv)
            states = tl.during(lo - cfg["cmd_eps"], dl)
            sure = bool(states) and all(self.ok_state(s, vers, True) for s in states)
            if not sure:
                self.c["targets_permitted"] += 1
                continue
            if cfg["delete_drops_runs"] and any(v is None for v, _ in tl.during(lo, h.end)):
                self.c["targets_permitted"] += 1
                continue
            self.c["targets_required"] += 1
            v = tv[0][0]
            mis = v.d.get("misfire") or {}
            pol, grace = mis.get("policy", "run_all"), float(mis.get("grace", 0) or 0)
            ovl = (v.d.get("overlap") or {}).get("policy", "allow")
            rr = recs.get(k, [])
            skipped = bool(rr) and all(r["state"] in SKIP for r in rr)
            there = bool(rr) if h.records is not None else bool(seen.get(k))
            may_misfire = excused and dl > hi + grace
            if there and not skipped:
                self.c["targets_met"] += 1
                r = rr[0] if rr else None
                if pol == "skip" and r is not None and r["created"] is not None and \
                        h.clock.mono(r["created"]) > hi + grace + cfg["tol"]:
                    self.bad("I2", "job=%s scheduled_at=%s: triggered %.3f s late although its "
                             "misfire policy skips after %.3f s" % (
                                 job, iso(T), h.clock.mono(r["created"]) - hi, grace), r["line"])
                continue
            # absent, or recorded as skipped: is there a declared reason?
            if ovl in ("skip", "forbid") and act.covers(k, lo, hi + cfg["tol"]):
                self.c["targets_overlap_skipped"] += 1
                if cfg["record_skips"] and not rr:
                    self.bad("I2", "job=%s scheduled_at=%s: skipped for overlap without a "
                             "record" % (job, iso(T)))
                continue
            if pol == "skip" and may_misfire:
                self.c["targets_misfire_skipped"] += 1
                if cfg["record_skips"] and not rr:
                    self.bad("I2", "job=%s scheduled_at=%s: misfire skipped without a record"
                             % (job, iso(T)))
                continue
            if pol == "coalesce" and may_misfire:
                self.c["targets_coalesced"] += 1
                groups.append((k, T, lo, hi))
                continue
            what = "recorded as %s" % rr[0]["state"] if skipped else "never triggered"
            why = "no fault near it" if not excused else \
                "a fault was near, but its misfire policy is %s (grace %.3f s, at most %.3f s " \
                "late)" % (pol, grace, dl - hi)
            if ovl in ("skip", "forbid"):
                why += "; no earlier run was active"
            self.bad("I2", "job=%s scheduled_at=%s: %s (%s)" % (job, iso(T), what, why),
                     *[r["line"] for r in rr])
        self.coalesced(job, groups, tmap, recs, seen)

    def coalesced(self, job, groups, tmap, recs, seen):
        """Targets lost inside one outage: one run must stand for them."""
        h, cfg = self.h, self.cfg
        done = set()
        for k, T, lo, hi in groups:
            w = next(((b, e) for b, e in h.raw_windows if b <= lo and hi <= e), None)
            if w is None or w in done:
                continue
            done.add(w)
            inside = [x for x in sorted(tmap) if w[0] <= self.h.clock.due(tmap[x][0][1])[0]
                      and self.h.clock.due(tmap[x][0][1])[1] <= w[1]]
            after = [x for x in sorted(tmap)
                     if w[1] < self.h.clock.due(tmap[x][0][1])[0] <= w[1] + cfg["recovery"] +
                     cfg["tol"]]
            how = cfg["coalesce_to"]
            ok = inside[-1:] + after if how == "latest" else inside[:1] if how == "earliest" \
                else inside + after

            def met(x):
                rr = recs.get(x, [])
                if h.records is not None:
                    return any(r["state"] not in SKIP for r in rr)
                return bool(seen.get(x))
            if not any(met(x) for x in ok):
                self.bad("I2", "job=%s scheduled_at=%s..%s: %d targets fell into one outage and "
                         "none of them (coalesce to %s) was triggered after it" % (
                             job, iso(tmap[inside[0]][0][1]), iso(tmap[inside[-1]][0][1]),
                             len(inside), how))

    def overlap(self, job, ops):
        """Two runs of one job may not both hold a valid lease under skip/forbid/queue."""
        pols = {(o.d.get("overlap") or {}).get("policy", "allow")
                for o in ops if o.op == "put" and o.fin != "fail"}
        limit = max([int((o.d.get("overlap") or {}).get("limit", 1))
                     for o in ops if o.op == "put"] or [1])
        if not pols or not pols <= {"skip", "forbid", "queue"} or limit != 1:
            return
        iv = []
        for e in self.starts_by_job.get(job, ()):
            if e["rk"] is None or self.is_manual(e) or e.get("trigger") == "manual":
                continue
            for c in self.ev[e["rk"]]["complete"]:
                if c["accepted"] is True and c.get("token") == e.get("token"):
                    iv.append((e["mono"], c["sent"], e))
        iv.sort(key=lambda x: x[:2])
        far = None
        for b, z, e in iv:
            if far and far[2]["rk"] != e["rk"] and b < far[1] - self.cfg["early"]:
                self.bad("I2", "job=%s: %s began while %s was running under an accepted lease, "
                         "though its overlap policy is %s" % (
                             job, e["rk"], far[2]["rk"], "/".join(sorted(pols))),
                         far[2]["line"], e["line"])
            if not far or z > far[1]:
                far = (b, z, e)

    class Activity:
        def __init__(self, runs):
            self.runs = sorted(runs)          # (begin, key, end)
            self.begins = [r[0] for r in self.runs]

        def covers(self, k, lo, hi):
            i = bisect.bisect_right(self.begins, hi)
            return any(key != k and end >= lo for b, key, end in self.runs[:i])

    def activity(self, job):
        h, cfg = self.h, self.cfg
        out = []
        for r in self.rec_by_job.get(job, ()):
            if r["state"] in SKIP:
                continue
            begin = h.clock.due(r["T"])[0] if r["T"] is not None else -INF
            g = self.ev.get(r["run_id"])
            if r["finished"] is not None:
                end = h.clock.mono(r["finished"]) + cfg["tol"]
            else:
                c = [x["mono"] for x in (g["complete"] if g else ())
                     if x["accepted"] and x["outcome"] == "success"]
                end = max(c) + cfg["tol"] if c and r["state"] in SUCCESS else INF
            out.append((begin, key_ms(r["T"]), end))
        return self.Activity(out)

    # -- Chronos-like: executions known only by their clock time

    def match_by_time(self, job, tl, tmap, starts):
        h, cfg = self.h, self.cfg
        eps = cfg["epsilon"] if cfg["epsilon"] is not None else cfg["tol"]
        firsts = [e for e in starts if (e.get("attempt") or 1) == 1]
        tg = []                               # (required, lo, hi, key)
        for k in sorted(tmap):
            lo, hi, dl, excused = self.window(tmap[k])
            vers = dict(tmap[k])
            end = hi + eps if not excused else max(hi + eps, dl)
            states = tl.during(lo - cfg["cmd_eps"], end)
            sure = bool(states) and all(self.ok_state(s, vers, True) for s in states) \
                and end <= h.end - cfg["settle"]
            pol = (tmap[k][0][0].d.get("misfire") or {}).get("policy", "run_all")
            if excused and pol in ("skip", "coalesce"):
                sure = False
            may = any(self.ok_state(s, vers, False) for s in tl.during(lo - cfg["early"], end))
            if sure or may:
                tg.append((sure, lo - cfg["early"], end, k))
        times = [e["mono"] for e in firsts]
        owner = {}                            # index of execution -> index of target
        got = {}

        def place(i, seen):
            _, a, b, _ = tg[i]
            for j in range(bisect.bisect_left(times, a), bisect.bisect_right(times, b)):
                if j in seen:
                    continue
                seen.add(j)
                if j not in owner or place(owner[j], seen):
                    owner[j] = i
                    got[i] = j
                    return True
            return False

        old = sys.getrecursionlimit()
        sys.setrecursionlimit(max(old, 10000))
        try:
            for want in (True, False):
                for i, t in enumerate(tg):
                    if t[0] != want:
                        continue
                    ok = place(i, set())
                    if want:
                        self.c["targets_required"] += 1
                        if ok:
                            self.c["targets_met"] += 1
                        else:
                            self.bad("I2", "job=%s target=%s: no execution began within its "
                                     "window of %.3f s" % (job, iso(t[3] * 1000), t[2] - t[1]))
                    else:
                        self.c["targets_permitted"] += 1
        finally:
            sys.setrecursionlimit(old)
        for j, e in enumerate(firsts):
            if j in owner:
                k = tg[owner[j]][3]
                lo = h.clock.due(tmap[k][0][1])[0]
                lag = e["mono"] - lo
                (self.lag_fault if h.overlaps_fault(lo, e["mono"]) else
                 self.lag_steady).append(lag)
            elif not any(o.op == "put" and o.fin != "fail"
                         for o in self.ops_by_job.get(job, ())):
                self.bad("I3", "job=%s executed, but no acknowledged or ambiguous command "
                         "created it" % job, e["line"])
            elif not cfg["allow_extra"]:
                self.bad("I2", "job=%s: an execution began at %s that belongs to no target "
                         "(duplicate, or outside every window)" % (
                             job, iso(h.clock.wall(e["mono"]))), e["line"])

    # -- runs: I4 (durable before dispatch), I5, I6, I7, I8 (early), I9

    def runs(self):
        h, cfg = self.h, self.cfg
        keep = us(h.export.get("retention_before")) if h.export else None
        for rk, g in self.ev.items():
            r = self.run_ids.get(rk) if not isinstance(rk, tuple) else None
            name = "run=%s" % rk if not isinstance(rk, tuple) else \
                "run=%s@%s" % (rk[1], iso(rk[2] * 1000))
            for e in g["start"] + g["end"] + g["complete"]:
                if r is None or e.get("implied"):
                    continue
                if e.get("job") not in (None, r["job"]) or (
                        e.get("T") is not None and r["T"] is not None and
                        key_ms(e["T"]) != key_ms(r["T"])):
                    self.bad("I1", "%s is (%s, %s) in the listing but (%s, %s) at the worker" % (
                        name, r["job"], iso(r["T"]), e.get("job"), iso(e.get("T"))), e["line"])
                    break
            if h.records is not None and r is None and not isinstance(rk, tuple):
                e = (g["start"] or g["end"] or g["complete"])[0]
                old = keep is not None and e.get("T") is not None and e["T"] < keep
                tl = self.timelines.get(e.get("job"))
                gone = cfg["delete_drops_runs"] and tl is not None and \
                    any(v is None for v, _ in tl.during(e["mono"], h.end))
                if not old and not gone:
                    self.bad("I4", "%s job=%s was executed but has no record: it was dispatched "
                             "before its record was durable, or the record was lost" % (
                                 name, e.get("job")), e["line"])
            self.fencing(name, g, r)
            self.attempts(name, g, r)
            if r is not None:
                self.final_state(name, g, r)
            self.lag_of(name, g, r)
        for r in self.run_ids.values():
            if r["run_id"] not in self.ev:
                self.final_state("run=%s" % r["run_id"],
                                 {"start": [], "end": [], "complete": []}, r)
                self.attempts("run=%s" % r["run_id"],
                              {"start": [], "end": [], "complete": []}, r)
            self.quiet(r)

    def fencing(self, name, g, r):
        starts = [e for e in g["start"] if e.get("token") is not None]
        by_token = collections.defaultdict(list)
        for e in starts:
            by_token[e["token"]].append(e)
        for t, es in by_token.items():
            if len(es) > 1:
                self.bad("I5", "%s: token %d was given out %d times (workers %s)" % (
                    name, t, len(es), " ".join(str(e.get("worker")) for e in es)),
                    *[e["line"] for e in es])
        last = {}
        for e in starts:                      # in the order one worker saw them
            w = e.get("worker")
            if w in last and e["token"] < last[w]["token"]:
                self.bad("I5", "%s: worker %s was given token %d after token %d" % (
                    name, w, e["token"], last[w]["token"]), last[w]["line"], e["line"])
            last[w] = e
        order = sorted((e for e in starts if e.get("attempt") is not None),
                       key=lambda e: e["token"])
        for a, b in zip(order, order[1:]):
            if b["token"] == a["token"]:
                continue
            if b["attempt"] < a["attempt"] or (
                    self.cfg["attempt_per_token"] and b["attempt"] == a["attempt"]):
                self.bad("I5", "%s: token %d is attempt %d but the newer token %d is attempt %d"
                         % (name, a["token"], a["attempt"], b["token"], b["attempt"]),
                         a["line"], b["line"])
        comp = [c for c in g["complete"] if c.get("token") is not None and not c.get("implied")]
        for c in comp:
            if c["accepted"] is not True:
                continue
            if c["token"] not in by_token and starts:
                self.bad("I5", "%s: a completion with token %d was accepted, but no worker was "
                         "seen to get that token" % (name, c["token"]), c["line"])
            for e in starts:
                if e["token"] <= c["token"]:
                    continue
                if c["outcome"] == "success":
                    self.bad("I5", "%s: success with token %d was accepted, yet the newer token "
                             "%d was given out too" % (name, c["token"], e["token"]),
                             c["line"], e["line"])
                    break
                if e["mono"] < c["sent"]:
                    self.bad("I5", "%s: a completion with the stale token %d was accepted %.3f s "
                             "after token %d had been seen" % (
                                 name, c["token"], c["sent"] - e["mono"], e["token"]),
                             c["line"], e["line"])
                    break
        acc = [c for c in comp if c["accepted"] is True]
        wins = {c["token"] for c in acc if c["outcome"] == "success"}
        if len(wins) > 1:
            self.bad("I5", "%s: two successes were accepted (tokens %s)" % (
                name, " ".join(map(str, sorted(wins)))), *[c["line"] for c in acc])
        for t in {c["token"] for c in acc}:
            if len({c["outcome"] for c in acc if c["token"] == t}) > 1:
                self.bad("I5", "%s: token %d had both a success and a failure accepted" % (
                    name, t), *[c["line"] for c in acc if c["token"] == t])

    def max_attempts(self, job, r, T):
        """(smallest, largest) max_attempts of the versions this run may belong to."""
        vs = None
        if T is not None:
            vs = self.permit_cache.get((job, key_ms(T)))
            tl = self.timelines.get(job)
            if not vs and tl is not None and r is not None and r["manual"]:
                m = self.h.clock.mono(T)
                vs = [v for v, _ in tl.during(m - self.cfg["tol"], m + self.cfg["tol"])
                      if v is not None]
        if not vs:
            vs = [o for o in self.ops_by_job.get(job, ()) if o.op == "put" and o.fin != "fail"]
        out = [int(v.d["max_attempts"]) for v in vs if v.d.get("max_attempts") is not None]
        return (min(out), max(out)) if out else (None, None)

    def attempts(self, name, g, r):
        e0 = (g["start"] or [None])[0]
        job = r["job"] if r is not None else e0 and e0.get("job")
        T = r["T"] if r is not None else e0 and e0.get("T")
        low, cap = self.max_attempts(job, r, T)
        nums = {e["attempt"] for e in g["start"] if e.get("attempt") is not None}
        toks = {e["token"] for e in g["start"] if e.get("token") is not None}
        seen = max([len(toks)] + list(nums))
        if nums and min(nums) < 1:
            self.bad("I6", "%s: attempt %d (attempts count from 1)" % (name, min(nums)))
        if cap is not None and seen > cap:
            self.bad("I6", "%s job=%s: %d attempts were dispatched, max_attempts is %d" % (
                name, job, seen, cap), *[e["line"] for e in g["start"]])
        if r is None:
            return
        n = r.get("attempts")
        if n is not None:
            if cap is not None and n > cap:
                self.bad("I6", "%s job=%s: the record counts %d attempts, max_attempts is %d" % (
                    name, job, n, cap), r["line"])
            if seen > n:
                self.bad("I6", "%s: the record counts %d attempts, workers saw %d" % (
                    name, n, seen), r["line"])
        fails = [c for c in g["complete"] if c["accepted"] is True and c["outcome"] == "failure"]
        final = [c for c in fails if c.get("permanent") or (
            cap is not None and (c.get("attempt") or 0) >= cap)]
        in_dead = r["run_id"] in self.dead_ids
        if final and r["state"] in OPEN | SKIP | {"failed"}:
            self.bad("I6", "%s job=%s: attempts are exhausted, but its state is %s, not dead" % (
                name, job, r["state"]), r["line"], *[c["line"] for c in final])
        if r["state"] in DEAD:
            n_ = n if n is not None else seen
            perm = any(c.get("permanent") for c in g["complete"]) or r.get("reason") in (
                "permanent", "cancelled", "deleted", "expired", "timeout", "poison")
            if low is not None and n_ < low and not perm:
                self.bad("I6", "%s job=%s: dead after %d of %d attempts" % (name, job, n_, low),
                         r["line"])
            if self.h.export.get("dead_letters") and not in_dead:
                self.bad("I6", "%s job=%s: dead, but not in the dead letters" % (name, job),
                         r["line"])
        elif in_dead:
            self.bad("I6", "%s job=%s: in the dead letters, but its state is %s" % (
                name, job, r["state"]), r["line"])
        if r["state"] == "failed" and not final:
            n_ = n if n is not None else seen
            if low is not None and n_ < low and r.get("reason") is None:
                self.bad("I6", "%s job=%s: given up after %d of %d attempts" % (
                    name, job, n_, low), r["line"])

    def final_state(self, name, g, r):
        st = r["state"]
        wins = [c for c in g["complete"] if c["outcome"] == "success"]
        sure = [c for c in wins if c["accepted"] is True]
        maybe = [c for c in wins if c["accepted"] is not False]
        if sure and st not in SUCCESS:
            self.bad("I7", "%s job=%s: a success was accepted, but its state is %s" % (
                name, r["job"], st), r["line"], sure[0]["line"])
        if st in SUCCESS and not maybe:
            self.bad("I7", "%s job=%s: succeeded, but no worker reported a success that was not "
                     "refused" % (name, r["job"]), r["line"], *[c["line"] for c in wins])
        if r.get("token") is not None and st in SUCCESS and maybe:
            ok = {c.get("token") for c in maybe}
            if None not in ok and r["token"] not in ok:
                self.bad("I7", "%s: succeeded with token %s, but the successes carried %s" % (
                    name, r["token"], " ".join(map(str, sorted(ok)))), r["line"])
        if st == "cancelled":
            told = any(o.op == "cancel" and o.fin != "fail" and
                       str(o.resp.get("run_id")) in (r["run_id"], "None") for o in self.h.ops)
            gone = self.deletes(r["job"])
            other = any((v.d.get("overlap") or {}).get("policy") == "cancel_other"
                        for v in self.ops_by_job.get(r["job"], ()) if v.op == "put")
            if not (told or gone or other):
                self.bad("I7", "%s job=%s: cancelled, but nobody asked for it" % (
                    name, r["job"]), r["line"])
        if st in SKIP and g["start"]:
            self.bad("I7", "%s job=%s: %s, but a worker executed it" % (name, r["job"], st),
                     r["line"], g["start"][0]["line"])

    def deletes(self, job):
        return any(o.op == "delete" and o.fin != "fail" for o in self.ops_by_job.get(job, ()))

    def quiet(self, r):
        h, cfg = self.h, self.cfg
        if r["state"] in TERMINAL:
            return
        end = h.clock.wall(h.export_begin)
        begun = r["created"] if r["created"] is not None else r["T"]
        if begun is not None and begun > end - round(cfg["settle"] * 1e6):
            return
        if r["next"] is not None and r["next"] > end:
            return
        if r["state"] == "paused":
            return
        self.bad("I9", "run=%s job=%s scheduled_at=%s: still %s at the end of a quiet period" % (
            r["run_id"], r["job"], iso(r["T"]), r["state"]), r["line"])

    def lag_of(self, name, g, r):
        h = self.h
        if not g["start"] or (r is not None and r["manual"]):
            return
        e = g["start"][0]
        T = r["T"] if r is not None and r["T"] is not None else e.get("T")
        if T is None or e.get("trigger") == "manual" or self.is_manual(e):
            return
        lo, hi = h.clock.due(T)
        lag = e["mono"] - lo
        if lag < -self.cfg["early"]:
            self.bad("I8", "%s: began %.3f s before its scheduled time" % (name, -lag),
                     e["line"])
        (self.lag_fault if h.overlaps_fault(lo, e["mono"]) else self.lag_steady).append(lag)

    # -- manual triggers

    def manual(self):
        h = self.h
        keys, ids = {}, {}
        for o in h.ops:
            if o.op != "trigger" or o.fin != "ok":
                continue
            rid = o.resp.get("run_id")
            if rid is None:
                continue
            rid = str(rid)
            if o.key is not None:
                if keys.setdefault((o.job, o.key), rid) != rid:
                    self.bad("I1", "job=%s: triggers with one key %r made two runs (%s %s)" % (
                        o.job, o.key, keys[o.job, o.key], rid), o.line)
            elif rid in ids:
                self.bad("I4", "job=%s: two acknowledged triggers (%s %s) share run=%s: one of "
                         "them is lost" % (o.job, ids[rid].id, o.id, rid), o.line)
            ids.setdefault(rid, o)
            if h.records is not None and rid not in self.run_ids:
                tl = self.timelines.get(o.job)
                if not (self.cfg["delete_drops_runs"] and tl is not None and any(
                        v is None for v, _ in tl.during(o.inv, h.end))):
                    self.bad("I4", "job=%s: acknowledged trigger %s, but its run=%s has no "
                             "record" % (o.job, o.id, rid), o.line)
            elif rid in self.run_ids and self.run_ids[rid]["job"] != o.job:
                self.bad("I4", "trigger %s of job=%s answered run=%s, which is job=%s" % (
                    o.id, o.job, rid, self.run_ids[rid]["job"]), o.line)
        if h.records is None:
            return
        free = collections.Counter()
        for o in h.ops:
            if o.op == "trigger" and (o.fin in (None, "info") or (
                    o.fin == "ok" and o.resp.get("run_id") is None)):
                free[o.job] += 1
        for r in h.records:
            if not r["manual"] or r["run_id"] in ids:
                continue
            if free[r["job"]] > 0:
                free[r["job"]] -= 1
            else:
                self.bad("I3", "run=%s job=%s: a manual run that no acknowledged or ambiguous "
                         "trigger asked for" % (r["run_id"], r["job"]), r["line"])

    # -- the final listing of jobs (I4)

    def listed(self, job):
        """What the final listing says of the job, as a test of its state; None: nothing."""
        h = self.h
        if h.export_begin is None or not h.export.get("jobs", True):
            return None
        if not hasattr(self, "_rows"):
            self._rows = {}
            for j in h.jobs:
                self._rows[j["job"]] = None if j["job"] in self._rows else j
        if job in self._rows and self._rows[job] is None:
            return None                       # listed twice
        j = self._rows.get(job)
        if j is None or j.get("state") == "deleted":
            return lambda s: s[0] is None or self.may_vanish(s[0])
        got = {"exists": True}
        if j.get("state") in ("active", "paused"):
            got["paused"] = j["state"] == "paused"
        if isinstance(j.get("def"), dict):
            got["value"] = j["def"]
        return lambda s: Timeline.matches(got, s)

    def listing(self):
        h, cfg = self.h, self.cfg
        if h.export_begin is None:
            self.warnings.append("no export: I4 I7 I9 and the records are not judged")
            return
        if not h.export.get("jobs", True):
            self.warnings.append("the export lists no jobs: I4 is judged by runs only")
            return
        found = {}
        for j in h.jobs:
            if j["job"] in found:
                self.bad("I4", "job=%s is listed twice" % j["job"], j["line"])
                continue
            found[j["job"]] = j
        for job in set(self.ops_by_job) | set(found):
            tl = self.timelines.get(job)
            if tl is None:
                tl = Timeline(job, [], cfg)
            if tl.lost or self.listed(job) is None:
                continue
            states = tl.during(h.export_begin, h.export_end if h.export_end else h.export_begin)
            j = found.get(job)
            if any(self.listed(job)(s) for s in states):
                continue
            if j is None or j.get("state") == "deleted":
                v = next(v for v, _ in states if v is not None)
                self.bad("I4", "job=%s: acknowledged (%s), never deleted, and not in the final "
                         "listing" % (job, v), v.line)
                continue
            if all(v is None for v, _ in states):
                self.bad("I4", "job=%s: in the final listing, but %s" % (
                    job, "certainly deleted" if self.deletes(job) else "never created"),
                    j["line"])
                continue
            d = next((diff(v.d, j.get("def") or {}) for v, _ in states if v is not None), None)
            self.bad("I4", "job=%s: the final listing is not what the acknowledged commands "
                     "leave (%s)" % (job, d or "paused flag"), j["line"])

    def may_vanish(self, v):
        if not self.cfg["once_autodelete"]:
            return False
        s = v.d["schedule"]
        end = self.h.clock.wall(self.h.end)
        if s.get("kind") == "once":
            return us(s["at"]) <= end
        if v.d.get("end_at") is not None:
            return us(v.d["end_at"]) <= end
        return s.get("count") is not None

    # -- cluster owners (optional fields)

    def cluster(self):
        rows = [r for r in self.h.records or () if r.get("epoch") is not None and
                r.get("seq") is not None]
        by = collections.defaultdict(list)
        for r in rows:
            by[r.get("partition")].append(r)
        for p, rs in by.items():
            rs.sort(key=lambda r: r["seq"])
            for a, b in zip(rs, rs[1:]):
                if b["epoch"] < a["epoch"]:
                    self.bad("I5", "partition=%s: record seq %s was written under epoch %s after "
                             "seq %s under epoch %s: a stale owner was not fenced" % (
                                 p, b["seq"], b["epoch"], a["seq"], a["epoch"]),
                             a["line"], b["line"])

    # -- I8

    def lags(self):
        v = sorted(self.lag_steady)
        self.lag_line = {}
        for name, vals in (("steady", v), ("fault", sorted(self.lag_fault))):
            if vals:
                self.lag_line[name] = {
                    "n": len(vals), "min": vals[0], "p50": percentile(vals, .5),
                    "p90": percentile(vals, .9), "p99": percentile(vals, .99),
                    "p99.9": percentile(vals, .999), "max": vals[-1]}
        for q, bound in (self.cfg["lag"] or {}).items():
            got = self.lag_line.get("steady", {}).get(q)
            if got is None:
                if v:
                    self.bad("I8", "no such lag figure: %s" % q)
                continue
            if got > float(bound):
                self.bad("I8", "steady trigger lag %s is %.4f s, bound %.4f s (n=%d)" % (
                    q, got, float(bound), len(v)))


# ------------------------------------------------------------------ command line


def check(paths, overrides=None):
    h = History()
    files = []
    for p in paths:
        if os.path.isdir(p):
            files += sorted(os.path.join(p, f) for f in os.listdir(p) if f.endswith(".jsonl"))
        else:
            files.append(p)
    # the configuration must be known before rows are read
    for f in files:
        with open(f, "rb") as fh:
            for raw in fh:
                if b'"meta"' in raw:
                    try:
                        e = json.loads(raw)
                    except ValueError:
                        continue
                    if isinstance(e, dict) and e.get("type") == "meta":
                        h.cfg.update({k: v for k, v in (e.get("config") or {}).items()
                                      if k in DEFAULTS})
                break
    h.over = dict(overrides or {})
    h.cfg.update(h.over)
    for f in files:
        h.feed_file(f)
    if h.errors:
        return h, None
    h.finish()
    if h.errors:
        return h, None
    return h, Judge(h).judge()


def main(argv=None):
    ap = argparse.ArgumentParser(description="Judge a scheduler's history (see check_history.md).")
    ap.add_argument("history", nargs="+", help="JSONL files, or folders of them")
    ap.add_argument("--config", help="JSON file with configuration, over the history's own")
    ap.add_argument("--set", action="append", default=[], metavar="NAME=JSON")
    ap.add_argument("--json", metavar="FILE", help="write the verdict as JSON too")
    ap.add_argument("--min", action="append", default=[], metavar="COUNT=N",
                    help="fail as vacuous unless a count reaches N (e.g. starts=1000)")
    ap.add_argument("--allow-vacuous", action="store_true")
    a = ap.parse_args(argv)
    over = {}
    if a.config:
        with open(a.config) as f:
            over.update(json.load(f))
    for s in a.set:
        n, _, v = s.partition("=")
        over[n] = json.loads(v)
    for n in over:
        if n not in DEFAULTS:
            ap.error("unknown configuration %r" % n)
    try:
        h, j = check(a.history, over)
    except (BadHistory, OSError) as x:
        print("ERROR %s" % x)
        print("VERDICT: UNJUDGED (%s)" % x)
        return 2
    if j is None:
        for e in h.errors[:50]:
            print("ERROR %s" % e)
        print("VERDICT: UNJUDGED (%d malformed lines or events)" % len(h.errors))
        return 2
    total = 0
    for inv in sorted(j.violations):
        vs = j.violations[inv]
        total += len(vs)
        for v in vs[:h.cfg["max_shown"]]:
            print("VIOLATION %s %s" % (inv, v))
        if len(vs) > h.cfg["max_shown"]:
            print("VIOLATION %s ... and %d more" % (inv, len(vs) - h.cfg["max_shown"]))
    for w in j.warnings[:50]:
        print("WARNING %s" % w)
    if len(j.warnings) > 50:
        print("WARNING ... and %d more" % (len(j.warnings) - 50))
    for name, d in j.lag_line.items():
        print("LAG %s n=%d min=%.4f p50=%.4f p90=%.4f p99=%.4f p99.9=%.4f max=%.4f" % (
            name, d["n"], d["min"], d["p50"], d["p90"], d["p99"], d["p99.9"], d["max"]))
    print("COUNTS " + " ".join("%s=%d" % kv for kv in sorted(j.c.items())))
    short = []
    if not a.allow_vacuous:
        need = {"acked": 1, "starts": 1, "targets_required": 1}
        for s in a.min:
            n, _, v = s.partition("=")
            need[n] = int(v)
        short = ["%s=%d < %d" % (n, j.c[n], v) for n, v in sorted(need.items()) if j.c[n] < v]
    code = 1 if total else 2 if short else 0
    text = {0: "PASS", 1: "FAIL", 2: "VACUOUS"}[code]
    tail = "%d violations" % total
    if total:
        tail += " (" + " ".join("%s:%d" % (i, len(j.violations[i]))
                                for i in sorted(j.violations)) + ")"
    if short:
        tail += "; too little happened: " + ", ".join(short)
    if j.warnings:
        tail += "; %d warnings" % len(j.warnings)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"verdict": text, "violations": j.violations, "warnings": j.warnings,
                       "counts": j.c, "lag": j.lag_line}, f, indent=1)
    print("VERDICT: %s %s" % (text, tail))
    return code


if __name__ == "__main__":
    sys.exit(main())
