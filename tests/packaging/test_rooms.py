"""The promise of decision 7: each room of the packages has a row, or the room it lies in has."""

from __future__ import annotations

import re
from pathlib import Path

from bench.facts import PACKAGES
from tests import ROOT

PAGE = ROOT / "docs" / "decisions" / "0007-rooms.md"


def rooms(root: Path) -> set[str]:
    """Folders with ``__init__.py``, one or two levels below a package."""
    found = (
        path
        for name in PACKAGES
        for depth in ("*", "*/*")
        for path in (root / name).glob(f"{depth}/__init__.py")
    )
    return {path.parent.relative_to(root).as_posix() for path in found}


def without_row(there: set[str], text: str) -> list[str]:
    rows = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    return sorted(room for room in there if not rows & {room, room.rpartition("/")[0]})


def test_each_room_has_a_row_or_the_one_it_lies_in() -> None:
    there = rooms(ROOT)
    assert {"chaos/live", "broker/requests/consumers"} <= there
    assert without_row(there, PAGE.read_text()) == []


def test_each_row_names_a_room() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(set(rows))
    assert set(rows) <= rooms(ROOT)


def test_a_room_without_a_row_is_named() -> None:
    assert without_row({"a/b", "a/b/c", "a/d"}, "| `a/b` | what it is for | |") == ["a/d"]
