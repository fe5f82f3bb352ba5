"""What does a look find, and how bad is it? Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """FAILED: something does not work, or will not when it is needed. WARNING: it works, and may not for
    long."""

    OK = 0
    WARNING = 1
    FAILED = 2

    @property
    def word(self) -> str:
        return ("ok", "warn", "FAIL")[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``check``: its kind; ``where``: a file, an address or a group; ``todo``:
    empty where nothing is to be done."""

    level: Level
    check: str
    where: str
    text: str
    todo: str = ""

    def to_json(self) -> dict[str, str]:
        level = ("ok", "warning", "failed")[self.level]
        return {
            "level": level,
            "check": self.check,
            "where": self.where,
            "text": self.text,
            "do": self.todo,
        }


def ok(check: str, where: str, text: str) -> Finding:
    return Finding(Level.OK, check, where, text)


def warning(check: str, where: str, text: str, todo: str) -> Finding:
    return Finding(Level.WARNING, check, where, text, todo)


def failed(check: str, where: str, text: str, todo: str) -> Finding:
    return Finding(Level.FAILED, check, where, text, todo)


def worst(found: Iterable[Finding]) -> Level:
    return max((one.level for one in found), default=Level.OK)
