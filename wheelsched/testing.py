"""For tests of users' code: `Simulator`, the real engine on a virtual clock. See `wheelsched.simulator`."""

from __future__ import annotations

from .simulator.simulator import Simulator

__all__ = ["Simulator"]
