"""The promise of the comparison's blame: no fault of one copy hides another's; and no secret is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from audit.earlier.incremental import STATE
from audit.engines.local import LocalEngine
from audit.pages.report import _replicas, lines, page, save
from audit.reading.layout import load
from audit.reading.storage import LocalStorage, StoreSpec, parse_stores, shown, without_secrets
from audit.run import Report, audit
from audit.tables import EngineError, Task
from tests.audit.plants import PLANTS, make, make_queued, run_local
from tests.audit.stores import SEGMENT, cut, look, patch, record, write_epochs

FIRST, SECOND, THIRD = (f"{4096 * n:020d}" for n in range(3))


def _roots(report: Report) -> set[tuple[str, str, bool]]:
    return {(f.kind, f.replica, f.ambiguous) for f in report.findings if not f.caused_by}


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_copy_that_was_altered_is_named_beside_one_that_is_damaged(damaged: int, tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path, 4)
    altered = (damaged + 1) % 3
    at = int(str(writer.rows[10]["phys_offset"]))
    patch(stores[damaged], at + 90, b"?")
    patch(stores[altered], at, record(at, 5, b"x-10" * 5, key="m10", stamp=1010))
    report = run_local(stores, None)
    assert _roots(report) == {
        ("crc_mismatch", f"r{damaged}", False),
        ("bytes_differ", f"r{altered}", False),
    }
    (row,) = [f for f in report.findings if f.kind == "bytes_differ"]
    assert row.copies == 2


def test_three_kinds_of_one_record_are_all_told(tmp_path: Path) -> None:
    """The longest log's copy and another are wrong in two ways; the majority tells, for both."""
    stores, writer, _ = make(tmp_path, 5)
    at = int(str(writer.rows[10]["phys_offset"]))
    patch(stores[0], at, record(at, 5, b"x-10" * 5, key="m10", stamp=1010))
    patch(stores[1], at, record(at, 5, b"y-10" * 5, key="m10", stamp=1010))
    patch(stores[0], writer.end, record(writer.end, 40, b"ahead", key="ahead", queue_id=0, stamp=3000))
    for store in stores:
        (store / "abort").touch()
    report = run_local(stores, None)
    assert {r for r in _roots(report) if r[0] == "bytes_differ"} == {
        ("bytes_differ", "r0", False),
        ("bytes_differ", "r1", False),
    }


def test_a_wrong_epoch_file_hides_no_difference_under_it(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    write_epochs(stores[0], [(1, 0)])
    at = int(str(writer.rows[30]["phys_offset"])) + 16
    patch(stores[1], at, bytes([look(stores[1], at, 1)[0] ^ 4]))
    report = run_local(stores, None)
    assert {("epoch_mismatch", "r0", False), ("bytes_differ", "r1", False)} == _roots(report)


def test_missing_queues_hide_no_difference(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    (stores[1] / "consumequeue").rmdir()
    at = int(str(writer.rows[30]["phys_offset"])) + 16
    patch(stores[1], at, bytes([look(stores[1], at, 1)[0] ^ 4]))
    assert {kind for kind, _, _ in _roots(run_local(stores, None))} == {"cq_missing", "bytes_differ"}


@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_a_file_that_cannot_be_read_is_a_finding_and_the_rest_is_audited(name: str, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    path = stores[1] / "commitlog" / name
    path.unlink()
    path.mkdir()  # reading it fails whatever one's rights
    at = int(str(writer.rows[30]["phys_offset"])) + 90
    patch(stores[2], at, b"?")
    report = run_local(stores, ledger)
    roots = _roots(report)
    assert ("file_unreadable", "r1", False) in roots
    assert ("crc_mismatch", "r2", False) in roots
    assert report.verdict == "diverged"


def test_a_file_that_grew_is_its_own_fault(tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    with (stores[1] / "commitlog" / SECOND).open("ab") as file:
        file.write(bytes(4096))
    report = run_local(stores, None)
    assert [(f.kind, f.replica, f.segment) for f in report.findings] == [("unreadable_region", "r1", SECOND)]
    assert report.verdict == "diverged"


def test_no_secret_of_a_url_is_in_a_report(tmp_path: Path) -> None:
    url = "s3://AKIA:pw%2Fx9q@bkt/replica0?endpoint_override=h:1&session_token=tok123"
    assert shown(url) == "s3://***@bkt/replica0?endpoint_override=h:1&session_token=***"
    words = without_secrets(f"{url}: AKIA pw/x9q pw%2Fx9q tok123", url)
    assert not any(secret in words for secret in ("AKIA", "pw/x9q", "pw%2Fx9q", "tok123"))
    assert parse_stores([url]) == [StoreSpec("replica0", url)]
    stores, _, _ = make(tmp_path)
    report = run_local(stores, None)
    report.replicas[0].location = url
    save(report, tmp_path / "out")
    written = json.dumps(report.to_json()) + page(report)
    written += "".join(p.read_bytes().decode("latin-1") for p in (tmp_path / "out").iterdir())
    assert "x9q" not in written
    assert "tok123" not in written
    assert "location" in STATE.names


def test_no_secret_is_in_what_an_engine_says_of_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, _, _ = make(tmp_path)
    url = "s3://AKIA:x9q@bkt/replica0"

    class Fails(LocalEngine):
        def digests(self, tasks: list[Task]) -> pa.Table:
            raise EngineError(f"Spark failed: cannot read {url}")

    monkeypatch.setattr("audit.run.load", lambda spec: load(StoreSpec(spec.name, str(stores[0]))))
    with pytest.raises(EngineError) as told:
        audit([StoreSpec("a", url), StoreSpec("b", str(stores[1]))], Fails())
    assert "cannot read s3://***@bkt/replica0" in str(told.value)
    assert "x9q" not in str(told.value)


def test_a_finding_that_has_one_side_only_tells_that_side(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path, 2)
    patch(
        stores[1], int(str(writer.rows[10]["phys_offset"])) + 60, b"?"
    )  # in the time of storing: whole, and other
    told = [line for line in lines(run_local(stores, None)) if ": expected" in line or ": found" in line]
    assert told
    assert not any(line.rstrip().endswith(("expected", "found")) for line in told), told


@pytest.mark.parametrize(
    "file",
    [
        "consumequeue/T/1/00000000000000000200",
        f"index/{20_260_000_000_000_000}",
        "timerwheel",
        "config/topics.json",
        "config/consumerOffset.json.changes",
        "checkpoint",
        "epochFileCheckpoint",
        "brokerIdentity",
    ],
)
def test_an_unreadable_file_beside_the_log_is_a_finding_and_ends_no_audit(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, ledger = make_queued(tmp_path)
    path = stores[1] / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(b"x" * 100)
    read = LocalStorage.read

    def broken(files: LocalStorage, name: str, offset: int, size: int) -> bytes:
        if files._full(name) == str(path):
            raise OSError(5, "Input/output error", name)
        return read(files, name, offset, size)

    monkeypatch.setattr(LocalStorage, "read", broken)
    report = run_local(stores, ledger)
    assert report.unreadable == {}
    unread = [f for f in report.findings if f.kind == "file_unreadable"]
    assert [(f.severity, f.replica, f.segment, f.found) for f in unread] == [
        ("error", "r1", file, "Input/output error")
    ]
    assert {f.kind for f in report.findings} - {"file_unreadable", "file_missing"} == set()
    assert report.records == 80


def test_what_all_copies_have_is_no_ones_fault(tmp_path: Path) -> None:
    """A message, or a place, that is there twice on every replica; on one alone it is that one's."""
    for name, said in (("duplicate", "dup_message"), ("same place twice", "dup_queue_offset")):
        stores, writer, ledger = make(tmp_path / said)
        next(p for p in PLANTS if p.name == name).do(stores, writer)
        report = run_local(stores, ledger)
        [f] = [f for f in report.findings if f.kind == said]
        assert (f.replica, f.copies) == ("*", 3 if said == "dup_message" else 0)
        assert [count for _, _, count in _replicas(report)] == [1, 1, 1]
        [alone] = [f for f in run_local(stores[1:2], ledger).findings if f.kind == said]
        assert (alone.replica, alone.copies) == ("r1", 1 if said == "dup_message" else 0)
        first = int(f.expected.rpartition(" at ")[2].removesuffix(" already"))
        patch(stores[2], first + 50, b"\x11")
        [f] = [f for f in run_local(stores, ledger).findings if f.kind == said]
        assert f.replica == "r0", "another copy holds other bytes there"


def test_places_that_are_skipped_are_of_the_log_whose_damage_explains_them(tmp_path: Path) -> None:
    """The log that goes back furthest has the record before, and ends there; the record behind is of another,
    whose first ones are damaged."""
    stores, writer, _ = make(tmp_path, 2)
    starts = [int(str(row["phys_offset"])) for row in writer.rows]
    first = next(at for at in starts if at >= SEGMENT)
    for store in stores:
        (store / "abort").touch()
    cut(stores[1], SEGMENT)
    (stores[0] / "commitlog" / f"{0:020d}").unlink()
    patch(stores[0], first, bytes(starts[starts.index(first) + 2] - first))
    found = [f for f in run_local(stores, None).findings if f.kind == "queue_gap"]
    assert {(f.replica, f.severity) for f in found} == {("r0", "info")}
    assert {f.caused_by for f in found} == {f"unreadable_region@r0:{first}"}


@pytest.mark.parametrize("with_ledger", [True, False])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_record_of_another_place_is_the_fault_of_the_log_that_has_it(
    place: int, with_ledger: bool, tmp_path: Path
) -> None:
    """At the begin, in the middle, and at the end of a segment. What is missing there follows from it."""
    stores, writer, ledger = make(tmp_path)
    offsets = [int(str(row["phys_offset"])) for row in writer.rows]
    own = [at for at in offsets if at // SEGMENT == 1]
    at = (own[0], own[len(own) // 2], own[-1])[place]
    size = int.from_bytes(look(stores[1], at, 4))
    other = next(one for one in offsets if one != at and int.from_bytes(look(stores[1], one, 4)) == size)
    patch(stores[1], at, look(stores[1], other, size))
    report = run_local(stores, ledger if with_ledger else None)
    told = [(f.kind, f.replica, f.phys_offset, f.copies) for f in report.findings if not f.caused_by]
    assert told == [("phys_offset_mismatch", "r1", at, 2)]
    assert {f.replica for f in report.findings} == {"r1"}
    assert report.lost == 0


def test_a_file_by_two_names_differs_once(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    patch(stores[1], int(str(writer.rows[5]["phys_offset"])) + 90, b"?")
    of_one = run_local(stores, None).differing_bytes
    linked = stores[2] / "commitlog" / FIRST
    linked.unlink()
    linked.hardlink_to(stores[1] / "commitlog" / FIRST)
    assert run_local(stores, None).differing_bytes == of_one > 0
