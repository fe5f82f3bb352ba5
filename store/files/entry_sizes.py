"""How many records of which sizes do entries of a queue stand for?

Metrics ask it of every message that a broker stores.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from store.files.compiled import compiled
from store.files.consume_queue import ENTRY_BYTES, PRE_BLANK_SIZE

_SIZE_WORD: Final = 2
_ENTRY_WORDS: Final = ENTRY_BYTES // 4


def sizes_in(entries: bytes) -> list[int]:
    """Bytes of the records of ``entries``; 0 for one that never was."""
    words = array("i", entries)[_SIZE_WORD::_ENTRY_WORDS]
    if sys.byteorder == "little":
        words.byteswap()
    found = words.tolist()
    return found if PRE_BLANK_SIZE not in found else [size * (size != PRE_BLANK_SIZE) for size in found]


def counted(entries: bytes, bounds: Sequence[int]) -> tuple[list[int], int]:
    """How many records of ``entries`` have at most each of ``bounds`` bytes, and more than the one before it;
    behind those how many have more than all. And the bytes of all. One that never was counts nowhere."""
    module = compiled()
    if module is None:
        return counted_slowly(entries, bounds)
    counts, size = module.entry_sizes(entries, bounds)
    return counts, size


def counted_slowly(entries: bytes, bounds: Sequence[int]) -> tuple[list[int], int]:
    """``counted``, without the compiled path."""
    ordered, counts, below = sorted(filter(None, sizes_in(entries))), [], 0
    for bound in bounds:
        behind = bisect_right(ordered, bound, below)
        counts.append(behind - below)
        below = behind
    counts.append(len(ordered) - below)
    return counts, sum(ordered)
