"""Columns of numbers and of byte strings: round trips, and the shortest coding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelsched.model import columns
from wheelsched.model.errors import CorruptJournalError

RANGES = {"u1": (0, 2**8 - 1), "<u2": (0, 2**16 - 1), "<u4": (0, 2**32 - 1), "<i8": (-(2**63), 2**63 - 1), "<u8": (0, 2**64 - 1)}
DTYPES = st.sampled_from(sorted(RANGES))


@st.composite
def arrays(draw):
    """Arrays of each type: constant, close together, far apart, in steps that may overflow."""
    dtype = draw(DTYPES)
    low, high = RANGES[dtype]
    number = st.integers(low, high)
    kind = draw(st.sampled_from(["any", "constant", "near", "steps"]))
    if kind == "any":
        values = draw(st.lists(number, max_size=50))
    elif kind == "constant":
        values = [draw(number)] * draw(st.integers(0, 50))
    elif kind == "near":
        base, span = draw(number), draw(st.sampled_from([1, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32]))
        values = draw(st.lists(st.integers(base, min(high, base + span)), max_size=50))
    else:
        first, step = draw(number), draw(st.integers(-(2**40), 2**40))
        values = [v for v in (first + i * step for i in range(draw(st.integers(0, 50)))) if low <= v <= high]
    return np.array(values, dtype)


@given(arrays())
def test_columns_round_trip(values):
    data = columns.encode_column(values)
    back = columns.decode_column(data)
    assert back.dtype == values.dtype
    assert back.tolist() == values.tolist()
    back[:0] = 0  # writable, so that callers may change their copy
    assert columns.encode_column(back) == data


@pytest.mark.parametrize(("values", "size"), [
    (np.full(10_000, 7, "<i8"), 6 + 8),
    (np.arange(10_000, dtype="<i8") * 1_000_000, 6 + 8 + 8),
    (np.array([5, 9, 7, 5], "<u4"), 6 + 4 + 1 + 4),
    (np.array([], "<u8"), 6 + 8),
])
def test_columns_are_short(values, size):
    assert len(columns.encode_column(values)) == size


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_blobs_round_trip(values):
    assert columns.decode_blobs(columns.encode_blobs(values)) == values


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.binary(min_size=1, max_size=3))
def test_blobs_of_a_wrong_length_are_refused(values, more):
    data = columns.encode_blobs(values)
    for wrong in (data + more, data[:-1] if values[-1] else data + b"x"):
        with pytest.raises(CorruptJournalError):
            columns.decode_blobs(wrong)
