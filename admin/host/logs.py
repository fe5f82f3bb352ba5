"""How is a log line written, so that nobody outside writes one?

What peers and clients send stands in messages and errors. A line break in it would begin a line of its own
choice, an escape would command the terminal that shows it: both are written as Python writes them in text.
The lines of a traceback are indented, so none of them looks like one of the log's own.
"""

from __future__ import annotations

import logging
from typing import Final

FORMAT: Final = "%(asctime)s.%(msecs)03d %(levelname).1s %(name)s: %(message)s"
CLOCK: Final = "%H:%M:%S"


class LineFormatter(logging.Formatter):
    """A record is one line; a traceback is indented lines below it."""

    def __init__(self) -> None:
        super().__init__(FORMAT, CLOCK)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return shown(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def shown(text: str) -> str:
    """``text`` with escapes for what is not to be printed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _indented(text: str) -> str:
    return "\n".join(f"    {shown(line)}" for line in text.split("\n"))
