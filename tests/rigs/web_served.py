"""The dashboard of a simulator on a port of this machine, for a browser; in a thread of its own."""

import asyncio
import socket
import threading

import uvicorn

from tests.rigs.web import Told
from wheelsched.web.app import Settings, make_app
from wheelsched.web.serving import Announced, Patient


class Served:
    """`url`; `do(f)` calls f in the dashboard's thread, so that nothing else asks the simulator meanwhile."""

    def __init__(self, sim, settings=None, **told):
        self.client = Told(sim, **told)
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"
        self.app = make_app(self.client, settings or Settings())
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()
        assert self.ready.wait(20)
        return self

    def __exit__(self, *error):
        self.server.should_exit = True
        self.thread.join(20)
        self.sock.close()

    def _run(self):
        config = uvicorn.Config(
            self.app, http=Patient, ws="none", lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=1, loop="asyncio",
        )
        self.server = Announced(config, self.ready.set)

        async def serve():
            self.loop = asyncio.get_running_loop()
            await self.server.serve(sockets=[self.sock])

        asyncio.run(serve())

    def do(self, work):
        async def once():
            return work()

        return asyncio.run_coroutine_threadsafe(once(), self.loop).result(20)
