"""Hooks that are coroutines: they share the event loop of the tasks."""

import asyncio
import os
from pathlib import Path

from wheelsched import on_start, on_stop, task

STATE = {}


def tell(line):
    Path(os.environ["HOOKS_FILE"]).write_text(line, encoding="utf-8")


@on_start
async def connect():
    await asyncio.sleep(0)
    STATE["loop"] = asyncio.get_running_loop()


@on_stop
async def disconnect():
    tell(f"same loop {STATE['loop'] is asyncio.get_running_loop()}")


@task("h.loop")
async def loop():
    return STATE["loop"] is asyncio.get_running_loop()
