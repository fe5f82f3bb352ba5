"""The promise of docs/replication-modes.md: each promise to clients names tests that exist."""

from __future__ import annotations

from tests.packaging.pages import missing_tests, rows


def test_every_promise_to_consumers_names_tests_that_exist() -> None:
    table = rows("replication-modes.md", r"P\d+")
    assert [row[0] for row in table] == [f"P{number}" for number in range(1, len(table) + 1)]
    assert len(table) >= 14
    assert missing_tests(table, "tests") == []
