"""What others wrote, names above all, moves nothing on the terminal of who reads it."""

from __future__ import annotations

import click


def printable(text: str) -> str:
    """Without control characters: of a cell or a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say(line: str, *, err: bool = False) -> None:
    """Print a line: one, whatever stands in it."""
    click.echo(printable(line), err=err)
