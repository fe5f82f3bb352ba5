"""The promise about an old master's log that the group left, when retention took what would prove it: no log
of the group is too short for it, and no message is missing where it has others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from audit.engines.local import LocalEngine
from audit.run import Report
from audit.tables import Engine
from tests.audit.plants import ledger_at, run_local, run_with
from tests.audit.stores import SEGMENT, LogWriter, expire, kept, patch, write_epochs

KEPT = 20
OWN = 2


class Group(NamedTuple):
    """``r0`` led the first epoch and has two messages of its own; ``r1`` and ``r2`` are of the second."""

    stores: list[Path]
    old: LogWriter
    new: LogWriter
    begin: int
    ledger: Path


def _group(root: Path) -> Group:
    old, new = LogWriter(root / "old"), LogWriter(root / "new")
    for log in (old, new):
        log.fill(KEPT)
    begin = new.end
    old.fill(OWN, mark="own", stamp=4000)
    new.fill(60, mark="later", stamp=5000)
    stores = [kept(old, root / "r0", [(1, 0)], begin)]
    stores += [kept(new, root / name, [(1, 0), (2, begin)], new.end) for name in ("r1", "r2")]
    return Group(stores, old, new, begin, ledger_at(root, new.rows))


def _unplaced(ledger: Path) -> Path:
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    for row in rows:
        del row["phys_offset"]
    ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ledger


def _told(report: Report) -> set[tuple[str, str, str]]:
    return {(f.kind, f.severity, f.replica) for f in report.findings if f.severity != "info"}


@pytest.mark.parametrize("told", [True, False])
def test_another_log_of_the_group_tells_where_it_left(told: bool, tmp_path: Path) -> None:
    """``r1`` holds nothing that ``r0`` has, and was elected last: it is the reference."""
    group = _group(tmp_path)
    expire(group.stores[1], SEGMENT)
    write_epochs(group.stores[1], [(1, 0), (2, group.begin), (3, group.new.end)])
    report = run_local(group.stores, group.ledger if told else None)
    assert report.reference == "r1"
    assert _told(report) == {("divergent_suffix", "warn", "r0")}
    assert report.verdict == "warnings"


@pytest.mark.parametrize("placed", [True, False])
def test_what_stood_where_it_has_its_own_is_too_old(placed: bool, tmp_path: Path) -> None:
    group = _group(tmp_path)
    for store in group.stores[1:]:
        expire(store, SEGMENT)
    ledger = group.ledger if placed else _unplaced(group.ledger)
    report = run_local(group.stores, ledger)
    gone = [row for row in group.new.rows if group.begin <= int(str(row["phys_offset"])) < SEGMENT]
    assert (report.lost, report.expired, report.none_lost) == (0, len(gone), True)


@pytest.mark.parametrize("placed", [True, False])
def test_but_not_what_may_have_been_its_own_and_cannot_be_read(placed: bool, tmp_path: Path) -> None:
    """It was sent to the old master, which alone was promised to have it."""
    group = _group(tmp_path)
    for store in group.stores[1:]:
        expire(store, SEGMENT)
    own = group.old.rows[KEPT]
    at, end = (int(str(row["phys_offset"])) for row in group.old.rows[KEPT : KEPT + 2])
    patch(group.stores[0], at, bytes(end - at))
    ledger = ledger_at(tmp_path, [*group.new.rows, own])
    report = run_local(group.stores, ledger if placed else _unplaced(ledger))
    lost = {f.uniq_key for f in report.findings if f.kind == "acked_missing" and f.copies == 0}
    assert str(own["uniq_key"]) in lost


@pytest.mark.spark
@pytest.mark.more
def test_both_engines_say_so(engine: Engine, tmp_path: Path) -> None:
    group = _group(tmp_path)
    for store in group.stores[1:]:
        expire(store, SEGMENT)
    ledger = _unplaced(group.ledger)
    spark, local = (run_with(by, group.stores, ledger) for by in (engine, LocalEngine()))
    assert (spark.expired, spark.findings) == (local.expired, local.findings)
