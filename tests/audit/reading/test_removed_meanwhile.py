"""The promise about files that retention removes while they are read: the log is judged without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from audit.engines.local import LocalEngine
from audit.reading import layout
from audit.reading.derived.index_files import IndexTask
from audit.reading.layout import Replica
from audit.run import AuditError, Report
from audit.tables import Engine, EngineError
from tests.audit.meanwhile import Meanwhile
from tests.audit.plants import make_queued, run_with
from tests.audit.stores import copies, queue_file, unpack


def segment(store: Path, n: int) -> Path:
    return store / "commitlog" / f"{4096 * n:020d}"


def retention(store: Path) -> None:
    """The oldest segment goes, and of its queues the file that no other one has records of."""
    for path in (segment(store, 0), queue_file(store, "T", 0, 0), queue_file(store, "T", 1, 0)):
        path.unlink(missing_ok=True)


def running(root: Path) -> list[Path]:
    stores, _ = make_queued(root)
    for store in stores:
        (store / "abort").touch()
    return stores


def told(report: Report) -> set[tuple[str, str]]:
    return {(f.kind, f.replica) for f in report.findings if f.severity != "info"}


@pytest.mark.parametrize("step", ["digests", "scan", "scanned"])
@pytest.mark.parametrize("which", [[1], [0, 1, 2]])
def test_what_retention_takes_meanwhile_is_no_finding(step: str, which: list[int], tmp_path: Path) -> None:
    stores = running(tmp_path)

    def act() -> None:
        for at in which:
            retention(stores[at])

    report = run_with(Meanwhile(step, act), stores, None)
    assert (report.verdict, told(report)) == ("clean", set())


def test_what_others_remove_from_the_middle_is_missing(tmp_path: Path) -> None:
    stores = running(tmp_path)
    engine = Meanwhile("digests", lambda: segment(stores[1], 1).unlink(missing_ok=True))
    report = run_with(engine, stores, None)
    assert ("missing_segment", "r1") in told(report)
    assert "file_unreadable" not in {kind for kind, _ in told(report)}


def test_a_file_that_cannot_be_read_is_named_beside_one_that_went(tmp_path: Path) -> None:
    stores = running(tmp_path)

    def act() -> None:
        retention(stores[1])
        if segment(stores[2], 1).is_file():
            segment(stores[2], 1).unlink()
            segment(stores[2], 1).mkdir()  # reading it fails whatever one's rights

    report = run_with(Meanwhile("digests", act), stores, None)
    assert ("file_unreadable", "r2") in told(report)
    assert "r1" not in {replica for _, replica in told(report)}


def test_reading_again_has_an_end(tmp_path: Path) -> None:
    """Each time one more segment goes."""
    stores = running(tmp_path)
    left = [segment(store, n) for n in range(3) for store in stores[1:2]]
    with pytest.raises(AuditError, match="half-way"):
        run_with(Meanwhile("digests", lambda: left.pop(0).unlink()), stores, None)


def index_of(store: Path) -> Path:
    return sorted((store / "index").iterdir())[0]


def test_an_index_that_goes_while_it_is_read_does_not_end_the_audit(tmp_path: Path) -> None:
    """It is judged as if it had been removed before."""
    stores = copies(unpack("plain-11", tmp_path))
    file = index_of(stores[1])
    report = run_with(Meanwhile("index", lambda: file.unlink(missing_ok=True)), stores, None)
    assert told(report) == {("index_missing", "r1")}


def test_an_index_that_goes_for_a_worker_on_a_cluster_does_not_end_the_audit(tmp_path: Path) -> None:
    stores = copies(unpack("plain-11", tmp_path))
    file = index_of(stores[1])

    class Cluster(LocalEngine):
        def index(self, tasks: list[IndexTask]) -> pa.Table:
            file.unlink(missing_ok=True)
            try:
                return super().index(tasks)
            except FileNotFoundError as error:
                raise EngineError(f"Spark failed: {error}") from error

    assert told(run_with(Cluster(), stores, None)) == {("index_missing", "r1")}


def test_another_error_of_an_index_is_one(tmp_path: Path) -> None:
    stores = copies(unpack("plain-11", tmp_path))

    def act() -> None:
        raise EngineError("no memory")

    engine: Engine = Meanwhile("index", act)
    with pytest.raises(EngineError, match="no memory"):
        run_with(engine, stores, None)


def test_a_file_beside_the_log_that_goes_between_two_looks_is_not_there() -> None:
    class Storage:
        def exists(self, path: str) -> bool:
            return True

        def read(self, path: str, offset: int, size: int) -> bytes:
            raise FileNotFoundError(path)

    replica = Replica("b0", "b0")
    layout._read_checkpoint(cast(Any, Storage()), replica)
    layout.read_epochs(cast(Any, Storage()), replica)
    assert (replica.closed, replica.epochs, replica.epoch_problem) == ({}, [], "")
