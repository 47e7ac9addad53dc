"""The dashboard on a Simulator: frozen time, and what a real server tells beside."""

import asyncio
from dataclasses import dataclass
from urllib.parse import unquote, urlencode

from wheelsched import Call, Cron, Every, Manual, Retry
from wheelsched.simulator.transport import SimAsyncClient
from wheelsched.web.app import Settings, make_app

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b[31m"
START = "2026-03-28T12:00:00Z"
LAGS = {"sum_s": 12.5, "le": [[0.001, 400], [0.1, 990], [5.0, 999]]}
LAG = {"count": 1_000, "p50": 1.5, "p99": 80.0, "p999": 90.0, "max": 95.0}


def charge(region):
    raise ValueError(f"{EVIL} for {region}")


def report(region):
    return {"to": region, "said": EVIL}


class Told(SimAsyncClient):
    """Tells in `stats` what the simulator has not got, and keeps who was asked what."""

    def __init__(self, sim, **told):
        super().__init__(sim)
        self.asked = []
        self.broken = None
        self.told = {
            "server": "wheelsched 9.9.9", "pid": 4_711, "uptime_s": 86_400.0, "data": "/var/lib/wheelsched", "clock_offset_us": 0, "connections": 3,
            "lag_ms": {"queued": LAG, "start": LAG, "done": LAG}, "lag_histograms": dict.fromkeys(("queued", "start", "done"), LAGS), "commits": 1_234, "journal_bytes": 5_000_000,
            "storage": {"state": "ok", "used_bytes": 10_000_000, "free_bytes": 10**11, "why": None}, **told,
        }

    async def _do(self, ask, timeout):  # noqa: ASYNC109 - as in the client
        self.asked.append(ask.verb)
        if self.broken is not None:
            raise self.broken
        answer = await super()._do(ask, timeout)
        return {**answer, **self.told} if ask.verb == "stats" else answer


def filled(sim):
    """Jobs of each kind, runs that ended well and badly, one that is skipped, a paused one."""
    ws = sim.client
    ws.put("billing/charge", Call("shop.charge", "eu"), Every("1h"), retry=Retry(attempts=1), note=EVIL)
    ws.put("reports/daily", Call("shop.report", "eu", key=EVIL), Cron("30 2 * * *", tz="Europe/Berlin"), queue="reports")
    ws.put("etl/paused", Call("shop.report", "us"), Cron("0 3 * * *", tz="America/New_York"))
    ws.pause("etl/paused", note=EVIL)
    ws.put("manual", Call("shop.report", "x"), Manual())
    ws.put("..", Call("shop.report", "dots"), Manual())
    ws.trigger("manual")
    sim.advance("3h")
    return ws


@dataclass
class Answer:
    """Of the application. `headers` in lower case."""

    status_code: int
    headers: dict
    content: bytes

    @property
    def text(self):
        return self.content.decode()


class Site:
    """A browser without a window: `get(path)`; `client` is what the dashboard asks through."""

    def __init__(self, sim, settings=None, **told):
        self.sim = sim
        self.client = Told(sim, **told)
        self.app = make_app(self.client, settings or Settings())
        self.runner = asyncio.Runner()

    def __enter__(self):
        self.ends, self.said = asyncio.Event(), asyncio.Queue()
        self.life = self.runner.get_loop().create_task(self.app({"type": "lifespan", "asgi": {"version": "3.0"}}, self._life, self.said.put))
        self._begun = False
        assert self.runner.run(self.said.get())["type"] == "lifespan.startup.complete"
        return self

    async def _life(self):
        if self._begun:
            await self.ends.wait()
            return {"type": "lifespan.shutdown"}
        self._begun = True
        return {"type": "lifespan.startup"}

    def __exit__(self, *error):
        self.ends.set()
        assert self.runner.run(self.said.get())["type"] == "lifespan.shutdown.complete"
        self.runner.close()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def request(self, method, path, *, params=None, headers=None, content=b""):
        """One request. `headers` besides Host, or instead of it: a value of None leaves one out."""
        path, _, query = (f"{path}?{urlencode(params)}" if params else path).partition("?")
        given = {"host": "127.0.0.1:8420", **({"content-length": str(len(content))} if content else {}), **(headers or {})}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": unquote(path),
            "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8420),
            "headers": [(k.lower().encode(), v.encode()) for k, v in given.items() if v is not None],
        }
        said = []

        async def receive():
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message):
            said.append(message)

        try:
            self.runner.run(self.app(scope, receive, send))
        except Exception:
            if not said or said[0]["status"] != 500:  # a bug is raised again behind its answer, for the log
                raise
        body = b"".join(m.get("body", b"") for m in said[1:])
        return Answer(said[0]["status"], {k.decode(): v.decode() for k, v in said[0]["headers"]}, body)
