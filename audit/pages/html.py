"""How do the reports become pages? Templates beside this file; what a store says is escaped everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from audit.reading.storage import shown
from audit.results.evidence import stamp


def number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def size(value: int) -> str:
    """Bytes for people: 1.5 GiB."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def ms(value: float | None) -> str:
    return "–" if value is None else f"{number(round(value))} ms"


def place(value: int) -> str:
    """An offset; -1 stands for none."""
    return number(value) if value >= 0 else "–"


def page(template: str, values: dict[str, Any], *, beside: Path | None = None) -> str:
    """The page made of a template here, or of one in the folder ``beside``, which may extend ours."""
    folders = [*([beside] if beside is not None else []), Path(__file__).with_name("templates")]
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, size=size, ms=ms, place=place, shown=shown, stamp=stamp)
    return made.get_template(template).render(values)
