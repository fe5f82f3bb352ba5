"""Sums of numbers that a disk may say anything of: both engines stop at the last number of 64 bits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

LAST: Final = (1 << 63) - 1
FIRST: Final = -1 << 63


def sums(a: Any, b: Any) -> Any:
    """a + b, numpy int64; ``LAST`` where that is more or less than 64 bits hold, as try_add is on Spark."""
    with np.errstate(over="ignore"):
        found = a.astype(np.int64) + b.astype(np.int64)
    return np.where(((a ^ found) & (b ^ found)) < 0, LAST, found)


def differences(a: Any, b: Any) -> Any:
    """a - b likewise; ``FIRST`` where 64 bits do not hold it."""
    with np.errstate(over="ignore"):
        found = a.astype(np.int64) - b.astype(np.int64)
    return np.where(((a ^ b) & (a ^ found)) < 0, FIRST, found)
