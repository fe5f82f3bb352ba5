"""How do two values compare? As Java's: a property is a String, a literal an Integer, Long, Double, Boolean
or String, and a String is converted to the class of what it is compared with.
"""

from __future__ import annotations

import math
import re
from typing import Final

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_REAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
DIGITS_MAX: Final = 400  # a longer text is no number worth the time


class Long(int):
    """An int that Java holds as a Long."""


Value = str | int | float | bool | None
"""``int`` that is no ``Long``: a Java Integer; ``float``: a Double; None: null."""


class NoComparison(Exception):
    """Two values cannot be compared: the message is not chosen."""


def whole(text: str, most: int) -> int:
    """The number that Integer.valueOf (``most`` INT_MAX) or Long.valueOf gives. Raises NoComparison."""
    if len(text) <= DIGITS_MAX and _WHOLE.fullmatch(text):
        number = int(text)
        if -most - 1 <= number <= most:
            return number
    raise NoComparison(f"{text[:40]!r} is no whole number")


def real(text: str) -> float:
    """The number that Double.valueOf gives, but for hexadecimal ones. Raises NoComparison."""
    bare = text.strip() if len(text) <= DIGITS_MAX else text
    if bare in _NOT_FINITE:
        return _NOT_FINITE[bare]
    if bare[-1:] in ("d", "D", "f", "F"):
        bare = bare[:-1]
    if len(bare) <= DIGITS_MAX and _REAL.fullmatch(bare):
        return float(bare)
    raise NoComparison(f"{text[:40]!r} is no number")


def compare(left: Value, right: Value) -> int:
    """Below, at or above 0, as ``left`` is below, at or above ``right``; neither is null. -1 for classes that
    have nothing in common. Raises NoComparison."""
    if isinstance(left, bool) or isinstance(right, bool):
        return _compare_bool(left, right)
    if isinstance(left, str) and not isinstance(right, str):
        return _order(_as(right, left), right)
    if isinstance(right, str) and not isinstance(left, str):
        return _order(left, _as(left, right))
    return _order(left, right)


def compare_order(left: Value, right: Value) -> int:
    """``compare`` for >, >=, < and <=: two Strings are compared as numbers."""
    if isinstance(left, str) and isinstance(right, str):
        return _order(real(left), real(right))
    return compare(left, right)


def equal(left: Value, right: Value) -> bool:
    """Neither is null. Raises NoComparison."""
    if type(left) is type(right) and left == right:
        return True
    return compare(left, right) == 0


def _compare_bool(left: Value, right: Value) -> int:
    if isinstance(left, str):
        left = left[:5].lower() == "true"  # Boolean.valueOf
    elif isinstance(right, str):
        raise NoComparison("a Boolean on the left is not compared with a String")
    if isinstance(left, bool) and isinstance(right, bool):
        return left - right
    return -1


def _as(other: Value, text: str) -> Value:
    """``text`` in the class of ``other``. Raises NoComparison."""
    if isinstance(other, float):
        return real(text)
    return whole(text, LONG_MAX if isinstance(other, Long) else INT_MAX)


def _order(left: Value, right: Value) -> int:
    if isinstance(left, float) or isinstance(right, float):
        return _order_real(float(left or 0), float(right or 0))
    return (left > right) - (left < right)  # type: ignore[operator]  # both int, or both str


def _order_real(left: float, right: float) -> int:
    """Double.compareTo: NaN is above all, and -0.0 below 0.0."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    if left == right == 0.0:
        return int(math.copysign(1, left) - math.copysign(1, right)) // 2
    return (left > right) - (left < right)
