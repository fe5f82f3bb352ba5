"""The promise of a log that went its own way: one row from where epochs part; nothing before it is hidden."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.run import Report
from tests.audit.plants import run_local
from tests.audit.stores import SEGMENT, LogWriter, look, patch, record, write_checkpoint

KEPT = 20
LATER = 40
"""Messages over the borders of segments."""


class Parted:
    """``old`` replicas went on in epoch 1, the others in epoch 2, with records of the same sizes: their
    segments end alike."""

    def __init__(self, root: Path, old: int = 1, later: int = LATER) -> None:
        self.root = root
        self.own, self.new = (LogWriter(root / mark) for mark in ("own", "new"))
        for log, stamp in ((self.own, 5000), (self.new, 9000)):
            log.fill(KEPT)
            self.begin = log.end
            log.fill(later, mark=log.root.name, stamp=stamp)
        self.own.confirm(self.begin, epochs=[(1, 0)])
        (self.own.root / "abort").touch()
        self.new.confirm(epochs=[(1, 0), (2, self.begin)])
        self.stores = [root / f"r{n}" for n in range(3)]
        for n, store in enumerate(self.stores):
            shutil.copytree((self.own if n < old else self.new).root, store)

    def run(self, *acknowledged: int) -> Report:
        """With a ledger if messages of the old ones were ``acknowledged``, by their numbers."""
        rows = self.new.rows + [self.own.rows[KEPT + n] for n in acknowledged]
        ledger = self.root / "acked.jsonl"
        ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return run_local(self.stores, ledger if acknowledged else None)


def told(report: Report) -> list[tuple[str, str, str, int]]:
    return [(f.kind, f.severity, f.replica, f.phys_offset) for f in report.findings if f.severity != "info"]


@pytest.mark.parametrize("old", [1, 2])
def test_a_suffix_over_borders_of_segments_that_end_alike_is_one(old: int, tmp_path: Path) -> None:
    """The later epoch is right, however many went on without it."""
    group = Parted(tmp_path, old)
    assert group.begin // SEGMENT < group.own.end // SEGMENT
    assert group.own.end == group.new.end
    assert told(group.run()) == [("divergent_suffix", "warn", f"r{n}", group.begin) for n in range(old)]


def test_such_a_suffix_of_an_old_master_is_a_warning(tmp_path: Path) -> None:
    assert Parted(tmp_path).run().verdict == "warnings"


@pytest.mark.parametrize("n", [0, LATER - 1], ids=["before the border", "behind it"])
def test_what_was_acknowledged_in_such_a_suffix_is_lost(n: int, tmp_path: Path) -> None:
    group = Parted(tmp_path)
    report = group.run(n)
    assert ("divergent_suffix", "error", "r0", group.begin) in told(report)
    assert (report.verdict, "bytes_differ" in {f.kind for f in report.findings}) == ("diverged", False)


@pytest.mark.parametrize("acknowledged", [(), (0,)], ids=["nobody was promised", "acknowledged"])
def test_such_a_suffix_that_ends_with_its_segment_is_one(
    acknowledged: tuple[int, ...], tmp_path: Path
) -> None:
    """What stood behind the border is cut off."""
    group = Parted(tmp_path)
    border = (group.begin // SEGMENT + 1) * SEGMENT
    for file in (group.stores[0] / "commitlog").iterdir():
        if int(file.name) >= border:
            file.unlink()
    report = group.run(*acknowledged)
    severity = "error" if acknowledged else "warn"
    assert ("divergent_suffix", severity, "r0", group.begin) in told(report)
    assert (report.verdict == "diverged") == bool(acknowledged)


def _another(store: Path, at: int, place: int) -> None:
    patch(store, at, record(at, place, b"x-19" * 5, key="x19", queue_id=1, stamp=1777))


def _property(store: Path, at: int, place: int) -> None:
    patch(store, at + int.from_bytes(look(store, at, 4)) - 2, b"#")


@pytest.mark.parametrize("later", [6, LATER], ids=["one segment", "over a border"])
@pytest.mark.parametrize("change", [_another, _property])
@pytest.mark.parametrize("wrong", [0, 1])
def test_what_was_changed_right_before_epochs_part_is_no_part_of_the_suffix(
    wrong: int, change: Callable[[Path, int, int], None], later: int, tmp_path: Path
) -> None:
    """All had it of one epoch. A rejoin cuts where epochs part: it would stay. What the old master noted as
    confirmed ends before."""
    group = Parted(tmp_path, later=later)
    at = int(str(group.own.rows[KEPT - 1]["phys_offset"]))
    write_checkpoint(group.stores[0], at)
    change(group.stores[wrong], at, (KEPT - 1) // 2)
    report = group.run()
    assert set(told(report)) == {
        ("bytes_differ", "error", f"r{wrong}", at),
        ("divergent_suffix", "warn", "r0", group.begin),
    }
    assert report.verdict == "diverged"


def test_a_changed_record_before_a_border_and_one_behind_it_are_two(tmp_path: Path) -> None:
    """Of one epoch, on one replica: damage on both sides of a border is no suffix."""
    log = LogWriter(tmp_path / "origin")
    log.fill(60)
    log.confirm(epochs=[(1, 0)])
    stores = [tmp_path / f"r{n}" for n in range(3)]
    for store in stores:
        shutil.copytree(log.root, store)
    places = [int(str(row["phys_offset"])) for row in log.rows]
    behind = next(n for n, at in enumerate(places) if at == SEGMENT)
    for n in (behind - 1, behind):
        _property(stores[2], places[n], n // 2)
    write_checkpoint(stores[2], 1)
    assert told(run_local(stores, None)) == [
        ("bytes_differ", "error", "r2", places[n]) for n in (behind - 1, behind)
    ]
