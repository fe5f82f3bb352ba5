"""Where do the parts of a chart of time stand? Shapes are stretched to the page's width, texts are not.

So an outage is as wide on a phone as it can be, and every word stays as large as the page's others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
"""Of a row's drawing, whatever its size on the page."""
PHONE_PX: Final = 240.0
"""So wide is a chart on a phone: texts that collide there get lanes of their own."""
CHARACTER_PX: Final = 7.5
TICKS_MAX: Final = 3
STEPS_MS: Final = tuple(n * 10**power for power in range(1, 9) for n in (1, 2, 5))
EDGE: Final = 92.0
"""Beyond so many per cent a text ends at its place instead of beginning there."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of time for all rows of a chart."""

    from_ms: float
    until_ms: float

    def x(self, at_ms: float) -> float:
        return round(WIDTH * (at_ms - self.from_ms) / (self.until_ms - self.from_ms), 2)

    def percent(self, at_ms: float) -> float:
        return round(self.x(at_ms) * 100 / WIDTH, 2)

    def holds(self, at_ms: float) -> bool:
        return self.from_ms <= at_ms <= self.until_ms

    def wide(self, from_ms: float, until_ms: float) -> tuple[float, float]:
        """x and width of a span, cut at the axis' ends; hardly any is still a hair wide."""
        begin, end = max(from_ms, self.from_ms), min(until_ms, self.until_ms)
        return self.x(begin), max(1.5, round(self.x(end) - self.x(begin), 2))


def strokes(times_ms: Iterable[float], axis: Axis) -> str:
    """A path with a line for each moment."""
    return "".join(f"M{axis.x(at):g} 0V{HEIGHT:g}" for at in times_ms if axis.holds(at))


def bars(values: Sequence[float], bin_ms: float, axis: Axis, top: float) -> str:
    """A path with a bar for each value that is not 0; the first begins at 0 ms."""
    wide = axis.x(bin_ms) - axis.x(0)
    wide = max(wide - 0.3, wide * 0.8)
    return "".join(
        f"M{axis.x(at * bin_ms):g} {HEIGHT:g}v{-HEIGHT * value / top:.2f}h{wide:.2f}V{HEIGHT:g}"
        for at, value in enumerate(values)
        if value
    )


def marks(found: Sequence[tuple[str, str, float]], axis: Axis) -> list[dict[str, Any]]:
    """Of (text, tone, ms): where each text stands, in lanes in which none lies on another."""
    ends: list[float] = []
    placed = []
    for text, tone, at_ms in sorted(found, key=lambda one: one[2]):
        left, wide = axis.percent(at_ms), 100 * CHARACTER_PX * (len(text) + 1) / PHONE_PX
        ends_here = left + wide > 100 and left > wide
        begin = left - wide if ends_here else left
        lane = next((n for n, end in enumerate(ends) if end <= begin), len(ends))
        ends[lane:] = [begin + wide, *ends[lane + 1 :]]
        side = "ends" if ends_here else ""
        placed.append({"text": text, "tone": tone, "left": left, "lane": lane, "side": side})
    return placed


def ticks(axis: Axis, *, zero_ms: float = 0.0) -> list[dict[str, Any]]:
    """A few round moments, counted from ``zero_ms``; as seconds where they are whole ones."""
    span = axis.until_ms - axis.from_ms
    step = next((one for one in STEPS_MS if span / one <= TICKS_MAX), STEPS_MS[-1])
    first = -(-(axis.from_ms - zero_ms) // step)
    found = []
    for n in range(int((axis.until_ms - zero_ms) // step - first) + 1):
        at_ms = (first + n) * step
        text = f"{at_ms / 1000:g} s" if step >= 1000 else f"{at_ms:g} ms"
        left = axis.percent(zero_ms + at_ms)
        side = "ends" if left > EDGE else "begins" if left < 100 - EDGE else ""
        found.append({"text": text, "left": left, "side": side})
    return found
