"""The compiled extensions as they are installed: small, and without debug information."""

from __future__ import annotations

from pathlib import Path

import wheelsched

BUILT = sorted(Path(wheelsched.__file__).parent.rglob("*.so"))


def test_n_b19_the_extensions_are_small():
    assert BUILT
    assert sum(path.stat().st_size for path in BUILT) < 2_000_000, "stripped they have 1.3 MB; a wheel packs them to a third"
    for path in BUILT:
        assert b".debug_info" not in path.read_bytes(), f"{path.name} has debug information: see FLAGS in setup.py"
