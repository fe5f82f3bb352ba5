"""The promise of a gap's blame: damage explains a skipped place only if nothing shows that it did not stand
there; and what names another place tells of none."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.run import Report
from tests.audit.moved import at, expired, misplaced, running, skipped_by_all
from tests.audit.plants import make, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, cut, patch, write_checkpoint


def _told(report: Report) -> set[tuple[str, str, str]]:
    return {(f.kind, f.severity, f.replica) for f in report.findings if f.severity != "info"}


def test_places_that_a_queue_lacks_at_its_begin_may_have_stood_in_damage_before(tmp_path: Path) -> None:
    """The others begin behind it: none of them lost what the damaged one had alone."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(10)
    writer.add(b"first", key="first", topic="U")
    while writer.end < SEGMENT:
        writer.add(b"more", topic="T")
    writer.add(b"second", key="second", topic="U")
    writer.fill(20, mark="n")
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root)
    running(stores)
    expired(stores[0], stores[2])
    begin = at(writer, 8)
    patch(stores[1], begin, bytes(SEGMENT - begin))
    report = run_local(stores, None)
    assert _told(report) == {("unreadable_region", "error", "r1")}
    (gap,) = (f for f in report.findings if f.kind == "queue_gap")
    assert (gap.replica, gap.caused_by) == ("r1", f"unreadable_region@r1:{begin}")


@pytest.mark.parametrize("goes_back", [0, 1])
@pytest.mark.parametrize("how", ["unreadable there", "unreadable beside", "misplaced beside"])
def test_damage_of_one_copy_hides_no_gap_that_all_have(how: str, goes_back: int, tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    running(stores)
    skipped_by_all(stores, writer)
    expired(*(store for n, store in enumerate(stores) if n != goes_back))
    damaged = stores[goes_back]
    if how == "misplaced beside":
        misplaced(damaged, at(writer, 61), at(writer, 41))
    else:
        patch(damaged, at(writer, 40 if how == "unreadable there" else 41) + 4, b"\0")
    report = run_local(stores, None)
    gaps = [f for f in report.findings if f.kind == "queue_gap"]
    assert [(f.severity, f.caused_by, f.queue_offset, f.records) for f in gaps] == [("error", "", 20, 1)]
    assert {f.replica for f in report.findings if f.kind != "queue_gap"} == {damaged.name}


def test_damage_explains_a_gap_whose_record_the_others_have_there(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    running(stores)
    expired(stores[0], stores[2])
    patch(stores[1], at(writer, 10) + 4, b"\0")
    patch(stores[1], at(writer, 40) + 4, b"\0")
    assert _told(run_local(stores, None)) == {("unreadable_region", "error", "r1")}


@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_record_that_names_another_place_is_no_copy_and_has_no_place(
    with_ledger: bool, tmp_path: Path
) -> None:
    """Its copy goes back furthest, so that queues and copies are looked at in it; and lags a little."""
    stores, writer, ledger = make(tmp_path)
    running(stores)
    expired(stores[0], stores[2])
    misplaced(stores[1], at(writer, 78), at(writer, 20))
    cut(stores[1], at(writer, 77))
    for store in stores:
        write_checkpoint(store, at(writer, 70))
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:70]))
    report = run_local(stores, ledger if with_ledger else None)
    lost = {("acked_missing", "error", "*")} if with_ledger else set()
    assert _told(report) == {("phys_offset_mismatch", "error", "r1")} | lost


def test_the_copies_of_a_message_besides_one_that_is_misplaced_are_told(tmp_path: Path) -> None:
    """What names another place stands first."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(30)
    for _ in range(2):
        writer.add(b"m-99" * 5, key="m99", topic="U")
    writer.confirm(epochs=[(1, 0)])
    (store,) = copies(writer.root, 1)
    misplaced(store, at(writer, 30), at(writer, 12))
    found = [f for f in run_local([store], None).findings if f.kind == "dup_message"]
    assert [(f.phys_offset, f.expected) for f in found] == [(at(writer, 31), f"once, at {at(writer, 30)}")]
