"""The promise of the steps about a file that is another segment: done in their order, they put each file in
its place, and no message is gone behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.plants import ledger_at, make, run_local
from tests.audit.results.advised import do
from tests.audit.stores import SEGMENT, cut

FIRST = f"{0:020d}"


def _operate(stores: list[Path], ledger: Path, aside: Path) -> list[str]:
    """Does what one audit says, in its order; returns the sentences."""
    report = run_local(stores, ledger)
    told = steps(report.findings, report.replicas)
    for step in told:
        if step.command:
            assert do(step) == "", step
        elif "move this file out of commitlog" in step.why:
            _move_out(report, step.replica, aside)
    return [step.why for step in told if not step.command]


def _move_out(report: Report, replica: str, aside: Path) -> None:
    store = Path(next(r.location for r in report.replicas if r.name == replica))
    for f in report.findings:
        if (f.kind, f.replica) == ("file_corrupt", replica):
            kept = (store / f.segment).rename(aside / f"{replica}-{Path(f.segment).name}")
            home = f.found.removeprefix("records of ")
            if not any(Path(r.location, "commitlog", home).exists() for r in report.replicas):
                (store / "commitlog" / home).write_bytes(kept.read_bytes())


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("onto", [SEGMENT, 2 * SEGMENT, 9 * SEGMENT])
def test_what_was_moved_over_another_segment_is_put_back_by_one_step(
    onto: int, running: bool, placed: bool, tmp_path: Path
) -> None:
    stores, writer, _ = make(tmp_path)
    rows = [row if placed else row | {"phys_offset": -1} for row in writer.rows]
    ledger, aside = ledger_at(tmp_path, rows), tmp_path / "aside"
    aside.mkdir()
    for store in stores if running else ():
        (store / "abort").touch()
    for store in (stores[0], stores[2]):
        (store / "commitlog" / FIRST).unlink()
    (stores[1] / "commitlog" / FIRST).rename(stores[1] / "commitlog" / f"{onto:020d}")
    first = _operate(stores, ledger, aside)
    assert sum("this file" in why for why in first) == 1
    for _ in range(3):
        _operate(stores, ledger, aside)
    report = run_local(stores, ledger)
    assert (report.lost, report.expired) == (0, 0)
    left = {f.kind for f in report.findings if f.severity == "error"}
    assert left <= ({"short_tail"} if onto == 2 * SEGMENT else set())  # the start of its broker mends that


def test_where_a_part_of_a_file_is_another_segments_the_step_says_what_to_do_with_it(tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    raw = (stores[1] / "commitlog" / FIRST).read_bytes()
    second = stores[1] / "commitlog" / f"{SEGMENT:020d}"
    second.write_bytes(raw[: SEGMENT // 2] + second.read_bytes()[SEGMENT // 2 :])
    for store in stores:
        (store / "abort").touch()
        (store / "commitlog" / FIRST).unlink()
    report = run_local(stores, ledger)
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "r1"]
    assert any("Send again from there what is lost" in why for why in told)


@pytest.mark.parametrize("with_ledger", [True, False])
def test_what_goes_on_behind_all_logs_is_put_back_though_one_has_its_begin(
    tmp_path: Path, with_ledger: bool
) -> None:
    """No step starts a broker, or repairs that store, before: the one that has the begin would lead."""
    stores, writer, _ = make(tmp_path)
    ledger = ledger_at(tmp_path, writer.rows) if with_ledger else None
    base = (writer.end - 1) // SEGMENT * SEGMENT
    ends = [int(str(row["phys_offset"])) for row in writer.rows if int(str(row["phys_offset"])) > base]
    cut(stores[1], ends[1])
    (stores[1] / "abort").touch()
    files = {store: (store / "commitlog" / f"{base:020d}").read_bytes() for store in (stores[0], stores[2])}
    for store in files:
        (store / "commitlog" / f"{base:020d}").rename(store / "commitlog" / f"{base:020d}.old")
    report = run_local(stores, ledger)
    told = steps(report.findings, report.replicas)
    back = {
        step.replica for step in told if "put this file back under" in step.why and "go on behind" in step.why
    }
    assert back == {"r0", "r2"}
    assert not any("Start its broker" in step.why or "has to lead" in step.why for step in told)
    assert not any("have to send them again" in step.why or "backup" in step.why for step in told)
    assert not any(step.command for step in told if step.replica in back)
    for store in files:
        (store / "commitlog" / f"{base:020d}.old").rename(store / "commitlog" / f"{base:020d}")
    again = run_local(stores, ledger)
    assert not any(f.kind == "acked_missing" and f.copies == 0 for f in again.findings)


def test_a_copy_of_the_last_segment_that_holds_no_more_keeps_nothing_from_its_step(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    base = (writer.end - 1) // SEGMENT * SEGMENT
    path = stores[0] / "commitlog" / f"{base:020d}"
    path.rename(path.with_name(path.name + ".old"))
    report = run_local(stores, None)
    assert not any("go on behind" in s.why for s in steps(report.findings, report.replicas))
