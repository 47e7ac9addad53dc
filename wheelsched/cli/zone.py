"""The time zone of this machine."""

from __future__ import annotations

import os
from typing import Final

from ..schedules.zonedata import zone_names

_ZONEINFO: Final = "/zoneinfo/"


def machine_zone() -> str:
    """The IANA zone of this machine, in which its cron and its timers read their files; UTC when it can't be told."""
    for name in (os.environ.get("TZ", "").lstrip(":"), _linked_zone()):
        if name in zone_names():
            return name.removeprefix("Etc/") if name == "Etc/UTC" else name
    return "UTC"


def _linked_zone() -> str:
    target = os.path.realpath("/etc/localtime")
    return target.partition(_ZONEINFO)[2]
