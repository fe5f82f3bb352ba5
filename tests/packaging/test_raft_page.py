"""The promise of docs/raft.md: every defect found in the library is in it, with tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = 25
"""17 that were seen to happen in PySyncObj 0.3.17, and 8 that were read in its source."""


def rows() -> list[list[str]]:
    page = (ROOT / "docs" / "raft.md").read_text()
    lines = [line for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_no_defect_is_missing() -> None:
    assert [int(row[0]) for row in rows()] == list(range(1, DEFECTS + 1))
    assert all(len(row) == 4 and all(row) for row in rows())


def test_every_test_it_names_exists() -> None:
    missing = []
    for row in rows():
        named = re.findall(r"`([\w/]+)::(\w+)`", row[2])
        assert named, f"row {row[0]} names no test"
        for file, test in named:
            path = ROOT / (file if file.startswith("tests/") else f"tests/controller/{file}")
            source = path.with_suffix(".py")
            if not source.exists() or f"def {test}(" not in source.read_text():
                missing.append(f"{row[0]}: {file}::{test}")
    assert missing == []
