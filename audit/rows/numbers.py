"""Numbers that a disk may say anything of: those written in digits have to fit their columns, and sums stop
at the last number of 64 bits in both engines."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

LAST: Final = (1 << 63) - 1
FIRST: Final = -1 << 63

PLACE_LAST: Final = LAST - (1 << 31)
"""A file begins no later, so that its end has 64 bits, too."""
QUEUE_LAST: Final = (1 << 31) - 1
_DIGITS_MAX: Final = 20


def of_digits(text: str | bytes, last: int = LAST) -> int:
    """The number that ASCII digits say, up to ``last``; -1 if they are none, or say more."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return -1
    number = int(text)
    return number if number <= last else -1


def of_json(value: Any, last: int = LAST) -> int:
    """A number of a table, as a broker reads it. Raises ValueError if it is none, or has more bits than that;
    TypeError."""
    try:
        number = int(value)
    except OverflowError:
        raise ValueError(f"{value} is no number") from None
    if not -last - 1 <= number <= last:
        raise ValueError(f"{number} is more than {last}")
    return number


def sums(a: Any, b: Any) -> Any:
    """a + b, numpy int64; ``LAST`` where that is more or less than 64 bits hold."""
    with np.errstate(over="ignore"):
        found = a.astype(np.int64) + b.astype(np.int64)
    return np.where(((a ^ found) & (b ^ found)) < 0, LAST, found)


def differences(a: Any, b: Any) -> Any:
    """a - b likewise; ``FIRST`` where 64 bits do not hold it."""
    with np.errstate(over="ignore"):
        found = a.astype(np.int64) - b.astype(np.int64)
    return np.where(((a ^ b) & (a ^ found)) < 0, FIRST, found)
