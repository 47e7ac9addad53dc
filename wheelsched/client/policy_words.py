"""A policy's value in words, as one would type it: in plans of `apply`, in what a put changed, and in a job's history."""

from __future__ import annotations

from typing import Any

from ..model.nouns import HOOKS, display_name, format_duration
from ..schedules.words import instant_words

__all__ = ["policy_words"]


def policy_words(key: str, value: Any) -> str:
    """The value of a policy by its wire key: durations such as `5m`, instants in RFC 3339, `allow:3`, `attempts=5 backoff=30s`; `none`."""
    if value is None:
        return "none"
    if key == "overlap":
        return str(value["policy"]) if value.get("max") is None else f"{value['policy']}:{value['max']}"
    if isinstance(value, dict):
        bare = {k.removesuffix("_us"): policy_words(k, v) for k, v in value.items() if v is not None and v != []}
        if len(bare) == 1:
            return next(iter(bare.values()))
        return " ".join(v if k == "policy" else f"{k}={v}" for k, v in bare.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if key in ("start_us", "end_us"):
        return instant_words(value)
    if key.endswith("_us") or key == "us":
        return format_duration(value)
    if key in ("on_missed", *HOOKS):
        return display_name(value)
    return f"{value:g}%" if key == "percent" else f"{value:g}" if isinstance(value, float) else str(value)
