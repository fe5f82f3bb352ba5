"""The promise of a record that is named as another one than the others have: it says nothing of its queue."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from audit.queues import Run, Runs, explain
from tests.audit.plants import run_local
from tests.audit.recall.group import Group
from tests.audit.stores import patch

QUEUE_AT = 12
"""Of a record: its queue."""
PLACE_AT = 20
FAR = 1 << 28


def _run(begin: int, end: int, *, wrong: bool = False) -> Run:
    return Run(begin * 100, begin, end, f"K{begin}", (end - 1) * 100, wrong=wrong)


def _told(*runs: Run) -> list[tuple[str, int, int]]:
    return [(f.kind, f.queue_offset, f.records) for f in explain(Runs(runs), whole=True)]


def test_convicted_records_fill_a_place_that_no_sound_one_has() -> None:
    first, wrong, far = _run(0, 5), _run(5, 7, wrong=True), _run(FAR, FAR + 3, wrong=True)
    assert _told(first, wrong) == []
    assert _told(first, wrong, _run(5, 9)) == [], "they were of another queue"
    assert _told(first, wrong, _run(7, 9)) == []
    assert _told(first, wrong, _run(9, 12)) == [("queue_gap", 7, 2)]
    assert _told(first, far, _run(5, 9)) == []
    assert _told(first, far, _run(8, 9)) == [("queue_gap", 5, 3)]
    assert _told(first, _run(7, 9, wrong=True), _run(9, 12)) == [("queue_gap", 5, 2)]
    assert _told(first, _run(3, 5, wrong=True), _run(5, 12)) == []
    assert _told(first, wrong, _run(3, 5)) == [("dup_queue_offset", 3, 2)]


@pytest.mark.parametrize(("wrong", "replicas"), [((0,), 2), ((0,), 3), ((0, 1), 3), ((0, 2, 4), 5)])
@pytest.mark.parametrize("numbers", [(40, 42), (40, 41, 42, 43), (86, 88)])
@pytest.mark.parametrize("field", ["far", "low", "other queue"])
def test_altered_records_in_a_row_are_all_that_is_named(
    field: str, numbers: tuple[int, ...], wrong: tuple[int, ...], replicas: int, tmp_path: Path
) -> None:
    """Their places follow each other, or continue those of another queue."""
    group = Group(tmp_path, replicas, 1)
    for n in numbers:
        queue_id, place = group.place(n)
        at, raw = {
            "far": (PLACE_AT, struct.pack(">q", FAR + place)),
            "low": (PLACE_AT, struct.pack(">q", place - numbers[0] // 2 + 3)),
            "other queue": (QUEUE_AT, struct.pack(">i", 1 - queue_id)),
        }[field]
        for store in wrong:
            patch(group.stores[store], group.offset(n) + at, raw)
    report = run_local(group.stores, group.ledger)
    roots = {(f.kind, f.replica) for f in report.findings if not f.caused_by}
    assert roots == {("bytes_differ", f"r{store}") for store in wrong}
    assert report.lost == 0


def test_a_gap_beside_altered_records_is_named(tmp_path: Path) -> None:
    """All replicas lack places right behind two whose bodies are altered on one."""
    group = Group(tmp_path, 3, 1)
    for n in range(44, group.messages, 2):
        raw = struct.pack(">q", n // 2 + 3)
        for store in group.stores:
            patch(store, group.offset(n) + PLACE_AT, raw)
    for n in (40, 42, 44):
        group.rewrite(n, [group.stores[0]], body=b"x" * 25, place=n // 2 + (3 if n > 42 else 0))
    report = run_local(group.stores, None)
    gaps = [(f.queue_offset, f.records) for f in report.findings if f.kind == "queue_gap" and f.queue_id == 0]
    assert gaps == [(22, 3)]
