"""Ids: of jobs in the index, and of runs. Pure.

A run id is 16 bytes: 6 of milliseconds, 10 of a hash. So ids sort by time and can be looked up by it.
"""

from __future__ import annotations

from hashlib import blake2b

from .nouns import MS


def job_key(name: bytes) -> bytes:
    """The 10 bytes that stand for a job in run ids and in the index."""
    return blake2b(name, digest_size=10, person=b"wheelsched.job").digest()


def scheduled_run_id(name: bytes, nominal_us: int) -> bytes:
    """Run id of the run of a job for a nominal time, by schedule or backfill: recomputing it is idempotent."""
    return (nominal_us // MS).to_bytes(6, "big") + job_key(name)


def other_run_id(name: bytes, at_us: int, seq: int, index: int) -> bytes:
    """Run id of a run by trigger, enqueue or chain: unique by the journal position that made it."""
    digest = blake2b(name + seq.to_bytes(8, "big") + index.to_bytes(4, "big"), digest_size=10, person=b"wheelsched.run")
    return (at_us // MS).to_bytes(6, "big") + digest.digest()
