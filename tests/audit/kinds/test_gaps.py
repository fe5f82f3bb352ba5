"""The promise of a gap's blame: damage explains a skipped place only if nothing shows that it did not stand
there; and what names another place tells of none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from audit.run import Report
from tests.audit.plants import make, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, cut, look, patch, record, write_checkpoint

FIRST = f"{0:020d}"


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _running(stores: list[Path]) -> None:
    for store in stores:
        (store / "abort").touch()


def _expired(*stores: Path) -> None:
    """The oldest file is gone, as retention takes it."""
    for store in stores:
        (store / "commitlog" / FIRST).unlink()


def _told(report: Report) -> set[tuple[str, str, str]]:
    return {(f.kind, f.severity, f.replica) for f in report.findings if f.severity != "info"}


def _misplaced(store: Path, writer: LogWriter, onto: int, of: int) -> None:
    """A message's bytes over another one's, as they are: they name the place where they stood."""
    size = struct.unpack(">i", look(store, _at(writer, of), 4))[0]
    assert size == struct.unpack(">i", look(store, _at(writer, onto), 4))[0]
    patch(store, _at(writer, onto), look(store, _at(writer, of), size))


def _skipped_by_all(stores: list[Path], writer: LogWriter) -> None:
    """Another record stands in the place of a message, on all replicas."""
    at = _at(writer, 40)
    size = struct.unpack(">i", look(stores[0], at, 4))[0]
    raw = record(at, 0, b"y" * (size - 91 - 1 - len("UNIQ_KEY\x01stranger\x02")), key="stranger", topic="X")
    for store in stores:
        patch(store, at, raw)


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
    _running(stores)
    _expired(stores[0], stores[2])
    begin = _at(writer, 8)
    patch(stores[1], begin, bytes(SEGMENT - begin))
    report = run_local(stores, None)
    assert _told(report) == {("unreadable_region", "error", "r1")}
    (gap,) = (f for f in report.findings if f.kind == "queue_gap")
    assert (gap.replica, gap.caused_by) == ("r1", f"unreadable_region@r1:{begin}")


@pytest.mark.parametrize("goes_back", [0, 1])
@pytest.mark.parametrize("how", ["unreadable there", "unreadable beside", "misplaced beside"])
def test_damage_of_one_copy_hides_no_gap_that_all_have(how: str, goes_back: int, tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    _running(stores)
    _skipped_by_all(stores, writer)
    _expired(*(store for n, store in enumerate(stores) if n != goes_back))
    damaged = stores[goes_back]
    if how == "misplaced beside":
        _misplaced(damaged, writer, 41, 61)
    else:
        patch(damaged, _at(writer, 40 if how == "unreadable there" else 41) + 4, b"\0")
    report = run_local(stores, None)
    gaps = [f for f in report.findings if f.kind == "queue_gap"]
    assert [(f.severity, f.caused_by, f.queue_offset, f.records) for f in gaps] == [("error", "", 20, 1)]
    assert {f.replica for f in report.findings if f.kind != "queue_gap"} == {damaged.name}


def test_damage_explains_a_gap_whose_record_the_others_have_there(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    _running(stores)
    _expired(stores[0], stores[2])
    patch(stores[1], _at(writer, 10) + 4, b"\0")
    patch(stores[1], _at(writer, 40) + 4, b"\0")
    assert _told(run_local(stores, None)) == {("unreadable_region", "error", "r1")}


@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_record_that_names_another_place_is_no_copy_and_has_no_place(
    with_ledger: bool, tmp_path: Path
) -> None:
    """Its copy goes back furthest, so that queues and copies are looked at in it; and lags a little."""
    stores, writer, ledger = make(tmp_path)
    _running(stores)
    _expired(stores[0], stores[2])
    _misplaced(stores[1], writer, 20, 78)
    cut(stores[1], _at(writer, 77))
    for store in stores:
        write_checkpoint(store, _at(writer, 70))
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
    _misplaced(store, writer, 12, 30)
    found = [f for f in run_local([store], None).findings if f.kind == "dup_message"]
    assert [(f.phys_offset, f.expected) for f in found] == [(_at(writer, 31), f"once, at {_at(writer, 30)}")]
