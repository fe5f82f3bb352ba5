"""How is a log line written, so that nobody outside writes one?

What peers and clients send stands in messages and errors. A line break in it would begin a line of its own
choice, an escape would command the terminal that shows it: both are written as Python writes them in text.
The lines of a traceback are indented, so none of them looks like one of the log's own.

    2026-11-23T23:31:23.692+00:00 I broker@10.0.0.1:10911 keelmq: event promoted epoch=1
    {"time":"2026-11-23T23:31:23.692+00:00","level":"INFO","server":"broker@10.0.0.1:10911",
     "logger":"keelmq","message":"event promoted epoch=1","event":"promoted","epoch":1}

A logger has one name, ``controller.raft``, in a checkout and in a wheel, where Python calls it
``keelmq.controller.raft``.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import Any, Final

from model import installed

FORMAT: Final = "%(asctime)s %(levelname).1s {server}%(logger)s: %(message)s"
ACTS: Final = "keelmq.audit"
"""What operators did, and who was refused (remoting.acl.audit): no module's name."""
OURS: Final = ("time", "level", "server", "logger", "message", "event", "traceback")


def shown_logger(name: str) -> str:
    return name if name == ACTS else name.removeprefix(installed.PREFIX)


def loggers(name: str) -> list[str]:
    """Which loggers of this process ``name`` stands for.

    In a checkout no logger is the parent of all of ours: ``keelmq`` is each of them."""
    if name == installed.NAME and not installed.PREFIX:
        return [name, *installed.OURS]
    short = name if name == ACTS else name.removeprefix(f"{installed.NAME}.")
    return [installed.module_name(short)] if short.partition(".")[0] in installed.OURS else [name]


def shown_time(record: logging.LogRecord) -> str:
    """With date and zone, to the millisecond."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


class LineFormatter(logging.Formatter):
    """A record is one line; a traceback is indented lines below it."""

    def __init__(self, server: str = "") -> None:
        """``server``: which one writes, as role@address; empty = not said."""
        super().__init__(FORMAT.format(server=f"{server} ".replace("%", "%%") if server else ""))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return shown_time(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.logger = shown_logger(record.name)
        return shown(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


class JsonFormatter(logging.Formatter):
    """A record is one line, an object. ``event`` and its fields: of runtime.report.events."""

    def __init__(self, server: str = "") -> None:
        super().__init__()
        self._server = server

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": shown_time(record),
            "level": record.levelname,
            "server": self._server,
            "logger": shown_logger(record.name),
            "message": record.getMessage(),
        }
        event, fields = getattr(record, "event", None), getattr(record, "fields", {})
        if event is not None:
            found["event"] = event
        found |= {name: value for name, value in fields.items() if name not in OURS}
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        # ASCII alone: an escape or a separator of another alphabet stays an escape.
        return json.dumps(found, separators=(",", ":"), default=str)


def shown(text: str) -> str:
    """``text`` with escapes for what is not to be printed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _indented(text: str) -> str:
    return "\n".join(f"    {shown(line)}" for line in text.split("\n"))
