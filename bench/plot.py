"""A plot as SVG, without a library: one line a series, ratios over steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

WIDTH: Final = 760
HEIGHT: Final = 360
LEFT: Final = 56
RIGHT: Final = 20
TOP: Final = 40
BOTTOM: Final = 60
COLOURS: Final = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e")


def lines_svg(
    title: str,
    rows: Sequence[dict[str, Any]],
    label: Callable[[dict[str, Any]], str],
    limit: float,
    tick_label: Callable[[float], str] = "{:.1f}".format,
) -> str:
    """``rows`` with ``series`` and ``ratio``, in order; each series has its own part of the width, as its
    values are of another kind. A broken line marks ``limit``; ratios beyond the top are cut there.
    ``tick_label``: how a ratio stands at the left."""
    series = list(dict.fromkeys(row["series"] for row in rows))
    top = max(2.0, limit * 1.2)
    part = (WIDTH - LEFT - RIGHT) / max(len(series), 1)

    def y_of(ratio: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(ratio, top) / top)

    def line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {look}/>'

    def text(x: float, y: float, words: str, look: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(words)}</text>'

    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="11" text-anchor="middle">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 20, title, 'font-size="14"'),
    ]
    for tick in range(int(top * 2) + 1):
        y = y_of(tick / 2)
        found.append(line(LEFT, y, WIDTH - RIGHT, y, 'stroke="#ddd"'))
        found.append(text(LEFT - 28, y + 4, tick_label(tick / 2)))
    found.append(line(LEFT, y_of(limit), WIDTH - RIGHT, y_of(limit), 'stroke="#888" stroke-dasharray="5 4"'))
    for number, name in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        own = [row for row in rows if row["series"] == name]
        step = part / (len(own) + 1)
        places = [(LEFT + number * part + step * (at + 1), y_of(row["ratio"])) for at, row in enumerate(own)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        found.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), row in zip(places, own, strict=True):
            found.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
            found.append(text(x, HEIGHT - BOTTOM + 16, label(row), 'font-size="9"'))
        found.append(text(LEFT + (number + 0.5) * part, HEIGHT - 16, name, f'fill="{colour}" font-size="13"'))
    return "\n".join([*found, "</svg>", ""])
