"""The promise of incremental audits: what a border divides is judged as if all of it had been read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from audit.engines.local import LocalEngine
from audit.reading.aside import settle
from audit.reading.layout import Replica
from audit.reading.storage import LocalStorage, StoreSpec, open_storage, shown
from audit.run import Report, audit
from audit.sources import unpacked
from tests.audit.border import BORDER, PLACES, append, made
from tests.audit.plants import run_local
from tests.audit.sources import tarred
from tests.audit.stores import LogWriter, copies, look, patch

LARGE = 3 << 20


def told(report: Report) -> set[tuple[str, str, int]]:
    return {(f.kind, f.severity, f.phys_offset) for f in report.findings}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("place", "key", "kind"),
    [
        (PLACES, "new", ""),
        (PLACES - 1, "new", "dup_queue_offset"),
        (1, "new", "dup_queue_offset"),
        (PLACES + 1, "new", "queue_gap"),
        (PLACES, "q1", "dup_message"),
        (PLACES, "m3", "dup_message"),
    ],
)
def test_places_and_keys_are_judged_across_the_border(
    place: int, key: str, kind: str, count: int, tmp_path: Path
) -> None:
    stores, writer = made(tmp_path, count)
    state = tmp_path / "trusted.parquet"
    assert run_local(stores, None, state).verdict == "clean"
    at = append(stores, writer, place, key)
    report, full = run_local(stores, None, state), run_local(stores, None)
    assert report.scan_bytes == writer.end - BORDER
    assert {row[0] for row in told(report)} == ({kind} if kind else set())
    assert told(report) == told(full)
    if kind != "queue_gap":
        assert {row[2] for row in told(report)} <= {at}
    # A place before the last one was not read: where it stands is not known then.
    if place != 1:
        assert report.findings == full.findings


def test_a_queue_that_only_begins_behind_the_border_begins_at_0(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    append(stores, writer, 2, "new", queue_id=9)
    report = run_local(stores, None, state)
    assert [(f.kind, f.queue_id, f.queue_offset, f.records) for f in report.findings] == [
        ("queue_gap", 9, 0, 2)
    ]


def test_what_is_carried_outlives_audits_that_read_nothing_of_it(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    for _ in range(3):
        assert run_local(stores, None, state).verdict == "clean"
    append(stores, writer, PLACES + 3, "q2")
    assert {row[0] for row in told(run_local(stores, None, state))} == {"queue_gap", "dup_message"}


def test_a_fault_behind_the_border_is_reported_again_by_the_next_audit(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    append(stores, writer, PLACES + 1, "new")
    for n in range(40):  # the segment with the gap becomes full
        append(stores, writer, 40 + n, f"w{n}", queue_id=0) if writer.end < BORDER + 3800 else None
    first, second = (run_local(stores, None, state) for _ in range(2))
    assert first.verdict == second.verdict == "diverged"
    assert told(first) == told(second)


def test_another_replica_that_leads_is_judged_by_what_was_carried(tmp_path: Path) -> None:
    """Equal segments are one, whichever replica's were read."""
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    assert run_local(stores, None, state).reference == "r0"
    for store in stores:
        (store / "abort").touch()
    append(stores[2:], writer, PLACES + 1, "q1")
    report = run_local(stores, None, state)
    assert (report.reference, report.scan_bytes) == ("r2", writer.end - BORDER)
    assert {"queue_gap", "dup_message"} <= {row[0] for row in told(report)}


def test_segments_that_only_another_replica_holds_still_are_carried(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    (stores[0] / "commitlog" / f"{0:020d}").unlink()
    for store in stores:
        (store / "abort").touch()
    append(stores[:1], writer, 40, "ahead", queue_id=0)
    assert run_local(stores, None, state).reference == "r0"
    append(stores[:1], writer, PLACES + 1, "q1")
    report, full = run_local(stores, None, state), run_local(stores, None)
    assert {"queue_gap", "dup_message"} <= {row[0] for row in told(full)}
    assert report.findings == full.findings
    assert report.scan_bytes == writer.end - BORDER


def test_offsets_of_consumers_are_compared_with_the_ends_that_were_carried(tmp_path: Path) -> None:
    stores, _ = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    for store in stores:
        (store / "config").mkdir()
        (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{7:9}}}')
    report, full = run_local(stores, None, state), run_local(stores, None)
    assert {f.kind for f in full.findings} == {"consumer_offset_beyond"}
    assert report.findings == full.findings


@pytest.mark.parametrize("every", [False, True])
def test_a_segment_that_changed_after_it_was_trusted_is_read_and_named(every: bool, tmp_path: Path) -> None:
    """A changed property on all replicas breaks nothing that a reader could see."""
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    at = int(str(writer.rows[3]["phys_offset"]))
    for store in stores if every else stores[1:2]:
        patch(store, at + 60, bytes([look(store, at + 60, 1)[0] ^ 1]))  # of the store time
    os.utime(stores[2] / "commitlog" / f"{4096:020d}", ns=(1, 1))
    report = run_local(stores, None, state)
    assert report.trust.border == 0
    first, second = f"{0:020d}", f"{4096:020d}"
    named = [f"r{n}/{first}" for n in ((0, 1, 2) if every else (1,))]
    assert report.trust.changed == {**dict.fromkeys(named, "other bytes"), f"r2/{second}": "the same bytes"}
    assert report.verdict == ("clean" if every else "diverged")
    # From then on the segments are trusted again, if nothing is wrong with them.
    again = run_local(stores, None, state).trust
    assert (again.border, again.changed) == (BORDER if every else 0, {})


def test_the_report_says_what_was_trusted(tmp_path: Path) -> None:
    stores, _ = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    first = run_local(stores, None, state)
    assert first.to_json()["trust"]["border"] == 0
    second = run_local(stores, None, state).to_json()
    assert second["trusted"] == [f"r0/{0:020d}", f"r0/{4096:020d}"]
    trust = second["trust"]
    assert (trust["border"], trust["queues"]) == (BORDER, 3)
    assert trust["digests"] == [f"r{n}/{base:020d}" for n in range(3) for base in (0, 4096)]
    assert trust["keys"] > 50
    assert trust["since"]


def large(root: Path) -> tuple[list[Path], LogWriter]:
    """Segments of three ranges that have a digest each."""
    writer = LogWriter(root / "origin", segment=LARGE)
    for n in range(100):
        writer.add(b"x" * 90_000, key=f"k{n}", stamp=1000 + n)
    writer.confirm(epochs=[(1, 0)])
    return copies(writer.root), writer


def test_of_each_segment_one_row_is_kept(tmp_path: Path) -> None:
    """A row a MiB was in the driver's memory, and in the state."""
    stores, writer = large(tmp_path)
    state = tmp_path / "trusted.parquet"
    first = run_local(stores, None, state)
    assert first.digest_bytes == 3 * writer.end
    assert pq.read_metadata(state).num_rows == 3 * 2
    assert pq.read_table(state)["ranges"].to_pylist() == [3] * 6
    second = run_local(stores, None, state)
    assert second.digest_bytes == 3 * (writer.end - 2 * LARGE)
    assert (second.findings, second.differing_bytes, second.reference) == ([], 0, first.reference)


def test_each_range_is_looked_at_of_segments_that_differ(tmp_path: Path) -> None:
    stores, writer = large(tmp_path)
    patch(stores[1], int(str(writer.rows[10]["phys_offset"])) + 90, b"?", LARGE)
    state = tmp_path / "trusted.parquet"
    full = run_local(stores, None)
    for _ in range(2):
        report = run_local(stores, None, state)
        assert report.findings == full.findings
        assert report.differing_bytes == full.differing_bytes == 1 << 20
    assert report.digest_bytes == 3 * LARGE + 3 * (writer.end - 2 * LARGE)
    assert report.trust.digests == [f"r{n}/{LARGE:020d}" for n in range(3)]


def test_what_an_older_release_kept_is_read_again(tmp_path: Path) -> None:
    stores, writer = large(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    rows = pq.read_table(state)
    pq.write_table(rows.drop_columns(["ranges", "shortest", "longest"]), state)
    report = run_local(stores, None, state)
    assert (report.digest_bytes, report.verdict) == (3 * writer.end, "clean")
    assert pq.read_table(state).equals(rows)


def test_a_file_beside_the_log_takes_no_trust_from_its_segments(tmp_path: Path) -> None:
    """Every audit looks at it anew."""
    stores, _ = made(tmp_path)
    (stores[0] / "config").mkdir()
    (stores[0] / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{7:9}}}')
    state = tmp_path / "trusted.parquet"
    reports = [run_local(stores, None, state) for _ in range(2)]
    assert [[f.kind for f in report.findings] for report in reports] == [["consumer_offset_beyond"]] * 2
    assert reports[1].trust.border == BORDER


def test_a_consumer_that_goes_on_while_the_log_is_read_is_not_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, _ = made(tmp_path)
    for store in stores:
        (store / "config").mkdir()
        (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{7:5}}}')

    def meanwhile(replicas: list[Replica]) -> None:
        settle(replicas)
        for store in stores:
            (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{7:9}}}')

    monkeypatch.setattr("audit.run.settle", meanwhile)
    assert run_local(stores, None).findings == []


def alike(monkeypatch: pytest.MonkeyPatch, stores: list[Path]) -> list[StoreSpec]:
    """The same stores by URLs of which a report shows all alike."""
    urls = [f"abfs://replica-{at}@account/store" for at in range(len(stores))]

    def opened(location: str) -> LocalStorage:
        return LocalStorage(str(stores[int(location.partition("@")[0].rpartition("-")[2])]))

    monkeypatch.setattr("audit.reading.storage.open_folder", opened)
    assert len({*map(shown, urls)}) == 1
    return [StoreSpec(f"r{at}", url) for at, url in enumerate(urls)]


def test_replicas_that_are_shown_alike_share_no_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second audit took the digests of one for the others' and found nothing of what it knew."""
    stores, writer = made(tmp_path)
    specs = alike(monkeypatch, stores)
    for store in stores:  # copies of one time
        for path in (store / "commitlog").iterdir():
            os.utime(path, (1_700_000_000, 1_700_000_000))
    patch(stores[1], int(str(writer.rows[10]["phys_offset"])) + 90, b"?")
    os.utime(stores[1] / "commitlog" / f"{0:020d}", (1_700_000_000, 1_700_000_000))
    state = tmp_path / "trusted.parquet"
    reports = [audit(specs, LocalEngine(), state=state) for _ in range(2)]
    assert [report.verdict for report in reports] == ["diverged", "diverged"]
    assert told(reports[0]) == told(reports[1])
    assert reports[1].digest_bytes < reports[0].digest_bytes, "each is trusted by its own"


def test_copies_that_are_shown_alike_are_unpacked_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for at, folder in enumerate(folders):
        writer = LogWriter(folder / "store")
        writer.add(f"body-{at}".encode())
        os.utime(tarred(folder / "store", folder / "store.tar"), (1_700_000_000, 1_700_000_000))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    specs = alike(monkeypatch, folders)
    monkeypatch.setattr(unpacked.HELD, "_swept", False)
    with unpacked.using():
        raw = [open_storage(f"{spec.location}.tar").read(f"commitlog/{0:020d}", 0, 200) for spec in specs]
    assert [b"body-0" in raw[0], b"body-1" in raw[1]] == [True, True]


def test_a_source_that_tells_no_time_is_not_trusted_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, writer = made(tmp_path)
    monkeypatch.setattr(LocalStorage, "mtime_ns", lambda self, path: 0)
    state = tmp_path / "trusted.parquet"
    first = run_local(stores, None, state)
    patch(stores[1], int(str(writer.rows[10]["phys_offset"])) + 90, b"?")
    second = run_local(stores, None, state)
    assert (first.verdict, second.verdict) == ("clean", "diverged")
    assert second.trust.segments == second.trust.digests == []


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size", [0, 1000, None])
def test_a_segment_of_which_a_replica_lacks_a_part_is_read(
    size: int | None, count: int, tmp_path: Path
) -> None:
    """What is gone is compared with nothing, so nothing differs there. The record that a file's end cuts is
    damage, from which others follow."""
    stores, _ = made(tmp_path, count)
    state = tmp_path / "trusted.parquet"
    assert run_local(stores, None, state).verdict == "clean"
    file = stores[-1] / "commitlog" / f"{4096:020d}"
    file.unlink() if size is None else os.truncate(file, size)
    report, full = run_local(stores, None, state), run_local(stores, None)
    assert report.findings == full.findings
    assert report.trust.border <= 4096
