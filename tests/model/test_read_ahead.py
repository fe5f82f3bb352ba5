"""The promise of model.read_ahead: the right bytes and sums, each byte read and hashed about once."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.read_ahead import Ahead, Sums

DATA = random.Random(7).randbytes(40_000)


def _reader(asked: list[int]) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        asked.append(len(DATA[offset : offset + size]))
        return DATA[offset : offset + size]

    return read


@given(
    asked=st.lists(st.tuples(st.integers(0, len(DATA) + 9), st.integers(0, 9000))),
    end=st.sampled_from([700, len(DATA), 1 << 62]),
)
def test_what_is_asked_for_is_there_in_any_order(asked: list[tuple[int, int]], end: int) -> None:
    ahead = Ahead(_reader([]), end, 4096)
    for offset, size in asked:
        here = ahead.at(offset, size)
        assert ahead.data[here : here + size].startswith(DATA[:end][offset : offset + size])


@pytest.mark.parametrize("size", [8, 100, 2000, 2049, 4096, 9000, 60_000])
@pytest.mark.parametrize("once", [True, False])
def test_stretches_that_lie_over_each_other_are_read_about_once(once: bool, size: int) -> None:
    asked = list[int]()
    ahead = Ahead(_reader(asked), 1 << 62, 4096, once=once)
    for offset in range(0, len(DATA), 10):
        here = ahead.at(offset, size)
        assert ahead.data[here : here + size] == DATA[offset : offset + size]
    assert sum(asked) <= len(DATA) * (1 if once else 2.1)


@given(
    stretches=st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA)))),
    base=st.integers(0, 3000),
)
def test_a_sum_is_that_of_the_bytes(stretches: list[tuple[int, int]], base: int) -> None:
    sums = Sums()
    for begin, until in stretches:
        begin, until = base + min(begin, until), base + max(begin, until)
        assert sums.crc(DATA, base, begin, until) == zlib.crc32(DATA[begin - base : until - base])


@pytest.mark.parametrize("step", [1, 7, 1024])
@pytest.mark.parametrize("length", [3000, 30_000, 1 << 30])
def test_stretches_that_lie_over_each_other_are_hashed_about_once(length: int, step: int) -> None:
    hashed = [0]

    def crc32(data: Any, start: int) -> int:
        hashed[0] += len(data)
        return zlib.crc32(data, start)

    sums, begins = Sums(crc32), range(0, len(DATA), step)
    for begin in begins:
        sums.crc(DATA, 0, begin, min(begin + length, len(DATA)))
    assert hashed[0] <= len(DATA) + 2048 * len(begins)
