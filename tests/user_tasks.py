"""Tasks that return, leave and change what user code may, for the executors of the tests."""

from __future__ import annotations

from decimal import Decimal

from wheelsched import task


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
