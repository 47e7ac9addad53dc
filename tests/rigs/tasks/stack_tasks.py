"""Tasks that hang, each in a way of its own, until a file is there."""

import asyncio
import ctypes
import threading
import time
from pathlib import Path

from wheelsched import task


def stuck(path):
    while not Path(path).exists():
        time.sleep(0.02)
    return "went on"


@task("k.plain")
def plain(path):
    return stuck(path)


@task("k.coroutine")
async def coroutine(path):
    return await waiting(path)


async def waiting(path):
    while not there(path):  # noqa: ASYNC110 - it is to hang
        await asyncio.sleep(0.02)
    return "went on"


def there(path):
    return Path(path).exists()


@task("k.threads")
def threads(path):
    helper = threading.Thread(target=helps, args=(path,), name="helper")
    helper.start()
    helper.join()
    return "went on"


def helps(path):
    stuck(path)


@task("k.in_c")
def in_c(seconds):
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # it does not give the interpreter up
    return "went on"
