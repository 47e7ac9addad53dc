"""Tasks that return, leave and change what user code may, for the executors of the tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path

from wheelsched import Call, Client, on_start, task


class Order:
    pass


class Hostile:
    """Each method that anybody could call of it raises."""

    def __getattribute__(self, name):
        raise SystemExit(9)


class Rows(list):
    def __iter__(self):
        raise KeyboardInterrupt


VALUES = {
    "object": Order, "set": lambda: {1, 2}, "decimal": lambda: Decimal("9.99"), "nested": lambda: {"a": [Decimal(1)]}, "hostile": Hostile,
    "rows": lambda: Rows([1]), "generator": lambda: iter(range(3)), "key": lambda: {1: 2}, "long": lambda: "x" * 70_000, "fits": lambda: "y" * 65_000,
    "surrogate": lambda: "\ud800", "huge": lambda: 2**64, "none": lambda: None,
}


def note(path, text):
    with open(path, "a", encoding="utf-8") as notes:  # noqa: PTH123
        notes.write(f"{text}\n")


@task("u.value")
def value(kind, notes):
    note(notes, kind)
    return VALUES[kind]()


@task("u.value_async")
async def value_async(kind, notes):
    return value(kind, notes)


@task("u.batch", batch=True)
def batch(runs):
    return [value(*run.args) for run in runs]


@task("u.batch_async", batch=True)
async def batch_async(runs):
    return batch(runs)


@task("u.batch_wrong", batch=True)
def batch_wrong(runs):
    note(runs[0].args[1], f"{len(runs)} runs")
    return {"none": None, "short": [], "generator": (n for n in range(len(runs))), "text": "a" * len(runs)}[runs[0].args[0]]


@task("u.quits")
async def quits(how, notes):
    await asyncio.sleep(0.01)
    if how == "child":
        async with asyncio.TaskGroup() as group:
            group.create_task(leaves(4))
            group.create_task(asyncio.sleep(1))
    if how == "stop":
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.1)
    if how == "background":
        asyncio.get_running_loop().background = asyncio.ensure_future(leaves(5))
    if how == "callback":
        asyncio.get_running_loop().call_later(0.02, sys.exit, 6)
    if how == "interrupt":
        raise KeyboardInterrupt
    if isinstance(how, int):
        sys.exit(how)
    note(notes, how)
    return how


async def leaves(code):
    await asyncio.sleep(0.02)
    sys.exit(code)


@task("u.quits_batch", batch=True)
async def quits_batch(runs):
    await quits(*runs[0].args)
    return [None] * len(runs)


@task("u.pays")
async def pays(notes):
    note(notes, "paying")
    await asyncio.sleep(0.06)
    note(notes, "paid")
    return "paid"


@task("u.closes")
def closes(how):
    async def one():
        return 1

    if how == "run":
        return asyncio.run(one())
    loop = asyncio.get_event_loop() if how == "current" else kept[0]
    value = loop.run_until_complete(one())
    loop.close()
    return value


kept = []


@task("u.keeps_loop")
async def keeps_loop():
    kept[:] = [asyncio.get_running_loop()]


@task("u.exits")
def exits(code):
    raise SystemExit(*code)


@task("u.exits_async")
async def exits_async(code):
    await asyncio.sleep(0)
    raise SystemExit(*code)


@task("u.exits_batch", batch=True)
def exits_batch(runs):
    raise SystemExit(*runs[0].args[0])


WHO = ContextVar("who", default="nobody")


@on_start
def begins():
    if "USER_TASKS_WHO" in os.environ:
        WHO.set(os.environ["USER_TASKS_WHO"])


@task("u.context")
def context(name):
    before = WHO.get()
    WHO.set(name)
    return before


@task("u.context_async")
async def context_async(name):
    await asyncio.sleep(0)
    return context(name)


@task("u.context_batch", batch=True)
def context_batch(runs):
    return [context(run.args[0]) for run in runs]


async def hums(deaf=0):
    for _ in range(deaf):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
    await asyncio.sleep(1000)


@task("u.leaves_tasks")
async def leaves_tasks(deaf, fail):
    running = asyncio.ensure_future(hums(deaf))
    kept[:] = [running, asyncio.ensure_future(asyncio.sleep(1000))]
    await asyncio.sleep(0.01)
    if fail:
        raise LookupError("on purpose")
    return "left"


@task("u.is_over")
async def is_over():
    await asyncio.sleep(0.01)
    return [kept[0].done(), len([t for t in asyncio.all_tasks() if "hums" in repr(t)])]


@task("u.spoils")
def spoils(what, folder):
    if what == "folder":
        os.chdir(folder)
        Path(folder).rmdir()
    if what == "umask":
        os.umask(0)
    if what == "signals":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    if what == "mask":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
        time.sleep(0.01)
    if what == "alarm":
        signal.alarm(1)
    if what == "profile":
        signal.setitimer(signal.ITIMER_PROF, 0.02)
        time.sleep(0.01)
    if what == "closed":
        for fd in (0, 1, 2):
            os.close(fd)
    if what == "redirected":
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
    if what == "swapped":
        os.dup2(1, 2)
    if what == "environment":
        os.environ["LC_SPOILT"] = "yes"
        os.environ["PATH"] = "/nowhere"


@task("u.spoils_async")
async def spoils_async(what, folder):
    spoils(what, folder)


@task("u.looks")
def looks():
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "folder": str(Path.cwd()), "umask": status.get("Umask"), "ignored": sorted(map(int, ignored())), "blocked": len(signal.pthread_sigmask(0, [])),
        "timers": [signal.getitimer(t)[0] for t in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "descriptors": [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in (0, 1, 2)],
    }


def ignored():
    return [n for n in signal.valid_signals() if n < 32 and signal.getsignal(n) == signal.SIG_IGN]


@task("u.burns")
def burns(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    time.sleep(1.5 if not seconds else 0)
    os.write(1, b"out\n")
    os.write(2, b"err\n")
    return "burnt"


@task("u.follows")
def follows():
    with Client() as ws:
        return ws.enqueue(Call("u.looks"), queue="elsewhere").id
