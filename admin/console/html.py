"""How do pages come to be? Templates beside this file; whatever a cluster says is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import jinja2

from admin.commands.reach import ago
from admin.commands.shown import moment
from admin.terminal import printable
from admin.top import screen

BODY_CHARS_MAX: Final = 64 * 1024
"""Of a body on its message's page."""
LIST_CHARS_MAX: Final = 120


def text(body: bytes) -> str:
    """A body as text; line breaks and tabs stay, what cannot be shown is named."""
    whole = body.decode(errors="backslashreplace")
    shown = "".join(c if c in "\n\t" else printable(c) for c in whole[:BODY_CHARS_MAX])
    rest = len(whole) - BODY_CHARS_MAX
    return f"{shown}\n... {rest:,} characters more" if rest > 0 else shown


def utc(at_ms: int) -> str:
    """A time for people, in UTC, to the millisecond."""
    return moment(at_ms).partition("+")[0].replace("T", " ")


def short(body: bytes) -> str:
    """The beginning of a body, on one line."""
    head = body[: 4 * LIST_CHARS_MAX].decode(errors="backslashreplace")
    cut = printable(head[:LIST_CHARS_MAX])
    return f"{cut}..." if len(head) > LIST_CHARS_MAX else cut


def link(path: str, **query: object) -> str:
    """A link within the console; what is None is left out."""
    said = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(said)}" if said else path


def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        rate=screen.rate,
        count=screen.count,
        size=screen.size,
        part=screen.part,
        utc=utc,
        text=text,
        short=short,
    )
    made.globals.update(behind=screen.time, ago=ago, link=link)
    return made


def render(pages: jinja2.Environment, template: str, values: dict[str, Any]) -> str:
    return pages.get_template(template).render(values)
