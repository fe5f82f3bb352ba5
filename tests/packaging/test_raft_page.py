"""The promise of docs/raft.md: every defect found in the library is in it, with tests that exist."""

from __future__ import annotations

from tests.packaging.pages import missing_tests, rows

DEFECTS = 25
"""17 that were seen to happen in PySyncObj 0.3.17, and 8 that were read in its source."""


def defects() -> list[list[str]]:
    return rows("raft.md", r"\d+")


def test_no_defect_is_missing() -> None:
    assert [int(row[0]) for row in defects()] == list(range(1, DEFECTS + 1))
    assert all(len(row) == 4 and all(row) for row in defects())


def test_every_test_it_names_exists() -> None:
    assert missing_tests(defects(), "tests/controller") == []
