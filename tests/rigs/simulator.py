"""How scenarios in the Simulator write instants and read the ledger."""

from __future__ import annotations

from datetime import UTC, datetime


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def clock(run):
    return run.scheduled_at.strftime("%H:%M:%S")


def ledger(sim, job, reason=None):
    return [r for r in sim.runs(job, "skipped") if reason is None or r.reason == reason]
