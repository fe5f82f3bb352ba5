"""The promise of the page's steps: what nobody has right keeps nothing beside it from being taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.results.steps.repair import Step, steps
from audit.run import Report
from tests.audit.plants import make, run_local
from tests.audit.results.advised import do, reads
from tests.audit.stores import SEGMENT, LogWriter, look, patch, record

LOST = 40
"""A message in the second segment."""


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _span(writer: LogWriter, n: int) -> tuple[int, int]:
    return _at(writer, n), _at(writer, n + 1)


def _zeros(store: Path, begin: int) -> None:
    patch(store, begin, bytes(SEGMENT))


def _gone(store: Path, begin: int) -> None:
    (store / "commitlog" / f"{begin:020d}").unlink()


def _cut(store: Path, begin: int) -> None:
    path = store / "commitlog" / f"{begin:020d}"
    path.write_bytes(path.read_bytes()[:500])


def _rotten(store: Path, writer: LogWriter, byte: bytes = b"?") -> None:
    patch(store, _at(writer, LOST) + 88, byte)


def _of(report: Report, name: str) -> list[Step]:
    return [step for step in steps(report.findings, report.replicas) if step.replica == name]


@pytest.mark.parametrize("ledgered", [True, False])
@pytest.mark.parametrize("hurt", [_zeros, _gone, _cut])
def test_all_but_a_record_that_nobody_has_is_taken(
    hurt: Callable[[Path, int], None], ledgered: bool, tmp_path: Path
) -> None:
    stores, writer, ledger = make(tmp_path)
    begin, until = _span(writer, LOST)
    _rotten(stores[2], writer)
    for store in stores[:2]:
        hurt(store, SEGMENT)
    report = run_local(stores, ledger if ledgered else None)
    for name in ("r0", "r1"):
        told = _of(report, name)
        assert told[-1].why == (
            f"Of [{begin}, {until}): No replica holds a good copy: look in a backup (keelmq backup restore)."
        )
        assert all(step.command for step in told[:-1])
        taken = [span for step in told for span in reads(step)]
        assert taken[0][0] == "r2"
        assert taken[0][1] <= SEGMENT + 500 * (hurt is _cut)
        assert [span[2] for span in taken] == [begin, 2 * SEGMENT]
        assert not any(do(step) for step in told)
    for store in stores[:2]:
        assert look(store, SEGMENT, begin - SEGMENT) == look(writer.root, SEGMENT, begin - SEGMENT)
        assert look(store, until, 2 * SEGMENT - until) == look(writer.root, until, 2 * SEGMENT - until)
    after = run_local(stores, ledger if ledgered else None)
    assert report.lost == after.lost == int(ledgered)
    damaged = {(f.replica, f.phys_offset, f.until) for f in after.findings if f.severity == "error"}
    assert damaged == {(name, begin, until) for name in ("r0", "r1", "r2")}
    for name in ("r0", "r1", "r2"):
        assert [(s.command, s.why[:29]) for s in _of(after, name)] == [("", "No replica holds a good copy:")]


def test_what_one_has_not_right_another_gives(tmp_path: Path) -> None:
    """Each of two is wrong in another record."""
    stores, writer, _ = make(tmp_path)
    _gone(stores[0], SEGMENT)
    for store, n in ((stores[1], 35), (stores[2], 45)):
        patch(store, _at(writer, n) + 88, b"?")
    report = run_local(stores, None)
    told = _of(report, "r0")
    assert told[0].command.startswith(f"truncate --size={SEGMENT} ")
    assert [span for step in told for span in reads(step)] == [
        ("r2", SEGMENT, _at(writer, 45)),
        ("r1", _at(writer, 45), 2 * SEGMENT),
    ]
    for step in steps(report.findings, report.replicas):
        assert not do(step)
    assert look(stores[0], SEGMENT, SEGMENT) == look(writer.root, SEGMENT, SEGMENT)


def test_a_record_of_which_the_right_copy_is_open_keeps_no_segment_from_being_put_back(
    tmp_path: Path,
) -> None:
    stores, writer, _ = make(tmp_path)
    begin, until = _span(writer, LOST)
    _gone(stores[0], SEGMENT)
    row = writer.rows[LOST]
    place = int(str(row["queue_offset"]))
    patch(stores[1], begin, record(begin, place, b"M-40" * 5, key="m40", queue_id=0, stamp=1040))
    told = _of(run_local(stores, None), "r0")
    assert [span[1:] for step in told for span in reads(step)] == [(SEGMENT, begin), (until, 2 * SEGMENT)]
    assert told[-1].why.startswith(f"Of [{begin}, {until}): Which copy is right is open")


def test_others_are_to_be_mended_first_only_where_one_is_right(tmp_path: Path) -> None:
    """And where none is, nothing is told to wait."""
    stores, writer, ledger = make(tmp_path, 2)
    for store in stores:
        _rotten(store, writer, b"?" if store is stores[0] else b"!")
    for step in steps((report := run_local(stores, ledger)).findings, report.replicas):
        assert "mend the others first" not in step.why


def test_there_are_no_more_commands_than_one_can_do(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path, 2)
    _gone(stores[0], 0)
    for n in range(1, 30, 2):
        patch(stores[1], _at(writer, n) + 88, b"?")
    told = _of(run_local(stores, None), "r0")
    assert len([step for step in told if step.command.startswith("dd ")]) <= 20
    assert not any(do(step) for step in told)


def test_a_file_that_lacks_filler_alone_gets_its_length(tmp_path: Path) -> None:
    """No copy has the segment's last byte, and nothing is lost."""
    stores, _, ledger = make(tmp_path)
    for store in stores:
        path = store / "commitlog" / f"{SEGMENT:020d}"
        path.write_bytes(path.read_bytes()[:-1])
    report = run_local(stores, ledger)
    told = [step for step in steps(report.findings, report.replicas) if step.replica in ("r0", "r1", "r2")]
    assert [step.command.split()[0] for step in told] == ["truncate"] * 3
    for step in told:
        do(step)
    assert run_local(stores, ledger).verdict == "clean"
