"""The promise about files that are other segments' in part, or too long: what they alone hold no retention
took, whether a ledger tells places or not, and no step writes over it. Where others have it, steps end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.findings import INFO
from audit.results.steps.repair import Step, steps
from audit.run import Report
from tests.audit.moved import at
from tests.audit.plants import ledger_at, make, run_local
from tests.audit.results.advised import do
from tests.audit.stores import SEGMENT, LogWriter, copies, expire, look, patch

PLACED = pytest.mark.parametrize("placed", [True, False])


def _file(store: Path, number: int) -> Path:
    return store / "commitlog" / f"{number * SEGMENT:020d}"


def _ledger(writer: LogWriter, *, placed: bool = True) -> Path:
    rows = [{k: v for k, v in row.items() if placed or k != "phys_offset"} for row in writer.rows]
    return ledger_at(writer.root.parent, rows)


def _uneven(root: Path) -> tuple[list[Path], LogWriter]:
    """Six segments whose records have borders of their own, and queues; all were stopped in order."""
    writer = LogWriter(root / "origin")
    for n in range(170):
        writer.add(b"u" * (5 + n * 7 % 41 + n % 5 * 3), key=f"u{n}", queue_id=n % 2, stamp=1000 + n)
    assert 5 * SEGMENT < writer.end < 6 * SEGMENT
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    return copies(writer.root), writer


def _running(stores: list[Path]) -> None:
    for store in stores:
        (store / "abort").touch()


def _broken_off(store: Path) -> None:
    """A copy of the first file over the second one was broken off, and the first one removed."""
    raw = _file(store, 1).read_bytes()
    _file(store, 1).write_bytes(_file(store, 0).read_bytes()[: SEGMENT // 2] + raw[SEGMENT // 2 :])
    _file(store, 0).unlink()


def _half_put_back(store: Path) -> None:
    """The first file was moved over the second one, and what put that back was broken off."""
    raw = _file(store, 1).read_bytes()
    _file(store, 0).rename(_file(store, 1))
    patch(store, SEGMENT, raw[: SEGMENT // 4])


HALVES: dict[str, Callable[[Path], None]] = {"broken off": _broken_off, "half put back": _half_put_back}


def _readable(store: Path, writer: LogWriter) -> int:
    """Messages of the first segment whose bytes a store has anywhere."""
    held = b"".join(file.read_bytes() for file in (store / "commitlog").iterdir())
    first = [int(str(row["phys_offset"])) for row in writer.rows]
    sizes = {begin: int.from_bytes(look(writer.root, begin, 4)) for begin in first if begin < SEGMENT}
    return sum(look(writer.root, begin, size) in held for begin, size in sizes.items())


def _halved(root: Path, how: str) -> tuple[list[Path], LogWriter, int]:
    """All others deleted their first segment."""
    stores, writer, _ = make(root)
    _running(stores)
    for store in (stores[0], stores[2]):
        _file(store, 0).unlink()
    HALVES[how](stores[1])
    return stores, writer, _readable(stores[1], writer)


def _told(report: Report, name: str) -> list[Step]:
    return [step for step in steps(report.findings, report.replicas) if step.replica == name]


@PLACED
@pytest.mark.parametrize("how", HALVES)
def test_what_a_part_of_a_file_alone_holds_is_lost_not_too_old(
    how: str, placed: bool, tmp_path: Path
) -> None:
    stores, writer, readable = _halved(tmp_path, how)
    first = sum(at(writer, n) < SEGMENT for n in range(len(writer.rows)))
    assert 0 < readable < first
    report = run_local(stores, _ledger(writer, placed=placed))
    assert (report.lost, report.expired, report.none_lost) == (readable, first - readable, False)
    told = steps(report.findings, report.replicas)
    assert any("that one's step comes first" in step.why for step in told if step.replica == "*")


@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("how", HALVES)
def test_no_step_writes_over_it(how: str, ledger: bool, tmp_path: Path) -> None:
    """Nor advises a repair of that store."""
    stores, writer, readable = _halved(tmp_path, how)
    report = run_local(stores, _ledger(writer) if ledger else None)
    assert not [step.command for step in _told(report, "r1") if step.command]
    assert any("Copy the store to another disk first" in step.why for step in _told(report, "r1"))
    for step in steps(report.findings, report.replicas):
        do(step)
    assert _readable(stores[1], writer) == readable


def test_one_record_whose_place_was_changed_is_no_copy_of_another(tmp_path: Path) -> None:
    """It names a place that retention took: the others' commands mend it."""
    stores, writer, _ = make(tmp_path)
    _running(stores)
    for store in stores:
        _file(store, 0).unlink()
    patch(stores[1], at(writer, 40) + 28, at(writer, 20).to_bytes(8))
    report = run_local(stores, _ledger(writer))
    assert report.lost == 0
    assert {step.command.split()[0] for step in _told(report, "r1")} <= {"keelmq", "dd"}


@PLACED
@pytest.mark.parametrize("base", [3, 9])
def test_what_was_moved_is_lost_and_what_was_before_it_too_old(
    base: int, placed: bool, tmp_path: Path
) -> None:
    stores, writer = _uneven(tmp_path)
    _running(stores)
    for store, begin in zip(stores, (2, 1, 2), strict=True):
        expire(store, begin * SEGMENT)
    _file(stores[1], 1).rename(_file(stores[1], base))
    report = run_local(stores, _ledger(writer, placed=placed))
    of = [at(writer, n) // SEGMENT for n in range(len(writer.rows))]
    assert (report.lost, report.expired, report.none_lost) == (of.count(1), of.count(0), False)


def _swapped(store: Path) -> None:
    one, two, other = _file(store, 1), _file(store, 3), store / "other"
    one.rename(other)
    two.rename(one)
    other.rename(two)


def _swapped_with_the_last(store: Path) -> None:
    one, two, other = _file(store, 2), _file(store, 5), store / "other"
    one.rename(other)
    two.rename(one)
    other.rename(two)


def _shifted(store: Path) -> None:
    last = _file(store, 4).read_bytes()
    for number in (4, 3, 2):
        _file(store, number).write_bytes(_file(store, number - 1).read_bytes())
    _file(store, 1).write_bytes(last)


def _over(store: Path) -> None:
    _file(store, 3).rename(_file(store, 1))


MOVES = {
    "swapped": _swapped,
    "swapped with the last": _swapped_with_the_last,
    "shifted": _shifted,
    "one over another": _over,
}


@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("how", MOVES)
def test_where_others_are_sound_the_steps_end(how: str, ledger: bool, tmp_path: Path) -> None:
    """None of them fails, and none tells to take out what another has put right."""
    stores, writer = _uneven(tmp_path)
    MOVES[how](stores[0])
    path = _ledger(writer) if ledger else None
    for _ in range(2):
        report = run_local(stores, path)
        told = steps(report.findings, report.replicas)
        assert not any("out of commitlog" in step.why for step in told)
        for step in told:
            assert not do(step)
    assert run_local(stores, path).verdict == "clean"
    logs = [b"".join(_file(store, number).read_bytes() for number in range(6)) for store in stores]
    assert logs[0] == logs[1]


@pytest.mark.parametrize("ledger", [True, False])
def test_a_sound_log_skips_no_place_that_the_others_moved_files_hide(ledger: bool, tmp_path: Path) -> None:
    """The file that was moved ends before the one that it covers."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20)
    writer.add(b"l" * 1900, key="long")
    assert int(str(writer.rows[-1]["phys_offset"])) == SEGMENT
    writer.fill(40, mark="n")
    assert writer.end > 2 * SEGMENT
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root)
    _running(stores)
    for store in (stores[0], stores[2]):
        _file(store, 0).rename(_file(store, 1))
    report = run_local(stores, _ledger(writer) if ledger else None)
    assert [f for f in report.findings if f.replica in ("r1", "*") and f.severity != INFO] == []


def test_a_file_with_zeros_behind_its_segment_is_cut(tmp_path: Path) -> None:
    stores, writer = _uneven(tmp_path)
    _file(stores[1], 2).write_bytes(_file(stores[1], 2).read_bytes() + bytes(100))
    report = run_local(stores, _ledger(writer))
    (row,) = report.findings
    assert (row.kind, row.replica, row.segment, row.copies) == (
        "unreadable_region",
        "r1",
        _file(stores[1], 2).name,
        2,
    )
    assert (row.expected, row.found) == ("4096 bytes", "4196 bytes: 100 behind the segment's end")
    (step,) = steps(report.findings, report.replicas)
    assert step.command == f"truncate --size=4096 {_file(stores[1], 2)}"
    assert not do(step)
    assert run_local(stores, _ledger(writer)).verdict == "clean"


def test_no_repair_is_advised_while_a_file_has_more_behind_its_segment(tmp_path: Path) -> None:
    """It would take that for damage, and fail."""
    stores, writer = _uneven(tmp_path)
    _file(stores[1], 4).write_bytes(_file(stores[1], 4).read_bytes() + b"some")
    patch(stores[1], at(writer, 40) + 90, b"\xff")
    report = run_local(stores, _ledger(writer))
    told = _told(report, "r1")
    assert {step.command.partition(" ")[0] for step in told} == {"", "dd"}
    assert all("Then cut it to a segment's size" in step.why for step in told if not step.command)


@PLACED
def test_what_stands_behind_a_segment_in_its_file_was_not_taken_by_retention(
    placed: bool, tmp_path: Path
) -> None:
    stores, writer, _ = make(tmp_path)
    _running(stores)
    both = _file(stores[1], 1).read_bytes() + _file(stores[1], 0).read_bytes()
    for store in stores:
        _file(store, 0).unlink()
    _file(stores[1], 1).write_bytes(both)
    report = run_local(stores, _ledger(writer, placed=placed))
    first = sum(at(writer, n) < SEGMENT for n in range(len(writer.rows)))
    assert (report.lost, report.expired, report.none_lost) == (first, 0, False)
    told = _told(report, "r1")
    assert [step.command for step in told if step.command] == []
    assert any("copy this file to another disk" in step.why for step in told)


@PLACED
@pytest.mark.parametrize("by", [1, 5000, SEGMENT])
@pytest.mark.parametrize("whole", [0, 1, 2, 3])
def test_a_message_whose_copies_all_say_that_they_stand_elsewhere_is_lost(
    whole: int, by: int, placed: bool, tmp_path: Path
) -> None:
    """No reader finds one, wherever the ledger told it to stand. ``whole``: so many copies are right."""
    stores, writer, _ = make(tmp_path)
    place = at(writer, 40)
    for store in stores[whole:]:
        patch(store, place + 28, (place + by).to_bytes(8))
    report = run_local(stores, _ledger(writer, placed=placed))
    assert (report.lost, report.none_lost) == (int(not whole), bool(whole))
    kinds = {f.kind for f in report.findings if f.severity == "error"}
    assert ("phys_offset_mismatch" in kinds) is (whole < 3)
