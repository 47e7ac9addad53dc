"""The tasks of `wheelsched demo`."""

from __future__ import annotations

import os
import time

from ...model.policies import Retry
from ...tasks.tasks import current_run, task

__all__ = ["flaky", "hopeless", "ok", "slow"]

_SLOW_S = 60


@task("demo.ok")
def ok(*_: str) -> None:
    """Succeeds at once."""


@task("demo.flaky", retry=Retry(attempts=5, backoff="100ms"))
def flaky() -> str:
    """Fails twice, then succeeds."""
    attempt = current_run().attempt
    if attempt < 3:
        raise ConnectionError(f"the other side is not there (attempt {attempt})")
    return f"done at attempt {attempt}"


@task("demo.hopeless", retry=Retry(attempts=2, backoff="100ms"))
def hopeless() -> None:
    """Always fails."""
    raise ValueError("this can never work")


@task("demo.slow", retry=Retry(attempts=3, backoff="100ms"))
def slow(pipe: str) -> str:
    """The first attempt says who it is and hangs, to be killed; the next succeeds."""
    if current_run().attempt == 1:
        with open(pipe, "w", encoding="ascii") as told:  # noqa: PTH123 - a pipe
            told.write(f"{os.getpid()}\n")
        time.sleep(_SLOW_S)
    return f"token {current_run().token}"
