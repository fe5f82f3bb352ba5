"""The promise of the stream ``commitlog``: each record once, none half written, no loss unnoticed."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from audit.reading.live import look
from audit.reading.log_ends import find_ends
from audit.reading.storage import LocalStorage, StoreSpec
from model.errors import ConfigError
from tests.audit.stores import SEGMENT, LogWriter, copies, patch, record, write_epochs

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


class Query:
    """What Spark does with a reader, without Spark; each batch by a reader of its own, as after a restart."""

    def __init__(self, *stores: Path | str, **options: str) -> None:
        self.stores: Sequence[Path | str] = stores
        self._options = options
        self.at: dict[str, Any] | None = None

    def _reader(self) -> Any:
        from audit.engines.commitlog import CommitLogSource

        options = {**self._options, "path": ",".join(map(str, self.stores))}
        source = CommitLogSource(options)
        return source.streamReader(source.schema())

    def plan(self) -> tuple[Any, dict[str, Any]]:
        reader = self._reader()
        if self.at is None:
            self.at = reader.initialOffset()
        return reader, json.loads(json.dumps(reader.latestOffset(self.at, None)))

    def batch(self, planned: tuple[Any, dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        reader, end = planned or self.plan()
        rows = []
        for partition in reader.partitions(self.at, end):
            for batch in self._reader().read(partition):
                rows += batch.to_pylist()
        self.at = end
        return rows

    def keys(self) -> list[str]:
        return [row["uniq_key"] for row in self.batch()]

    def offset(self, store: str) -> int:
        assert self.at is not None
        (told,) = (told for path, told in self.at["stores"].items() if path.endswith(f"/{store}"))
        return int(told["offset"])


def made(tmp_path: Path, count: int = 60) -> LogWriter:
    log = LogWriter(tmp_path / "r0")
    log.fill(count)
    (log.root / "abort").touch()
    return log


def test_each_batch_has_what_came_since_across_segments_and_restarts(tmp_path: Path) -> None:
    log = made(tmp_path)
    query = Query(log.root)
    assert query.keys() == [f"m{n}" for n in range(60)]
    assert query.keys() == []
    log.fill(50, mark="n")
    assert log.end > 3 * SEGMENT
    assert query.keys() == [f"n{n}" for n in range(50)]
    assert query.offset("r0") == log.end
    latest = Query(log.root, startingOffsets="latest")
    assert latest.keys() == []
    log.fill(1, mark="o")
    assert latest.keys() == ["o0"]


@pytest.mark.parametrize("written", [5, 60, 100, -12, -1])
def test_a_half_written_record_is_left_until_it_is_whole(tmp_path: Path, written: int) -> None:
    log = made(tmp_path, 5)
    query = Query(log.root)
    query.batch()
    whole = record(log.end, 9, b"half" * 10, key="half-written")
    patch(log.root, log.end, whole[:written])
    assert query.keys() == []
    patch(log.root, log.end, whole)
    assert query.keys() == ["half-written"]
    assert query.offset("r0") == log.end + len(whole)


def test_a_record_without_properties_is_whole(tmp_path: Path) -> None:
    log = made(tmp_path, 2)
    patch(log.root, log.end, record(log.end, 1, b"bare", properties=b""))
    assert Query(log.root).keys() == ["m0", "m1", ""]


def test_a_group_is_read_as_far_as_it_confirmed(tmp_path: Path) -> None:
    log = made(tmp_path, 10)
    log.confirm(int(str(log.rows[6]["phys_offset"])) + 5, [(1, 0)])  # inside a record: only whole ones count
    query = Query(log.root)
    assert query.keys() == [f"m{n}" for n in range(6)]
    assert len(Query(log.root, upTo="written").keys()) == 10
    log.confirm(100, [(1, 0)])  # told late, as after a restart: nothing is read again
    assert query.keys() == []
    log.confirm(None, [(1, 0)])
    assert query.keys() == [f"m{n}" for n in range(6, 10)]


def cut(log: LogWriter, at: int) -> None:
    """As a rejoining master does: the log ends at a record, and goes on otherwise."""
    end = int(str(log.rows[at]["phys_offset"]))
    for base in range(end // SEGMENT * SEGMENT, log.end, SEGMENT):
        path = log.root / "commitlog" / f"{base:020d}"
        path.write_bytes(
            path.read_bytes()[: max(0, end - base)].ljust(SEGMENT, b"\0") if base <= end else b""
        )
        if base > end:
            path.unlink()
    log.end = end
    log.rows = log.rows[:at]
    log.fill(40, mark="other", stamp=9000)


def test_a_log_that_was_cut_below_what_was_read_fails_the_query(tmp_path: Path) -> None:
    from audit.engines.stream import DataLossError

    log = made(tmp_path)
    query = Query(log.root)
    query.batch()
    read = query.offset("r0")
    cut(log, 50)
    assert log.end > read, "the new log is longer: its length tells nothing"
    with pytest.raises(DataLossError, match=f"store r0: the log was cut.*up to {read}"):
        query.batch()


def test_a_cut_is_a_row_by_option_and_what_replaced_it_is_read(tmp_path: Path) -> None:
    log = made(tmp_path)
    kept = int(str(log.rows[50]["phys_offset"]))
    query = Query(log.root, failOnDataLoss="false")
    assert {row["event"] for row in query.batch()} == {"record"}
    read = query.offset("r0")
    cut(log, 50)
    event, *rows = query.batch()
    assert (event["event"], event["until"]) == ("truncated", read)
    assert kept - SEGMENT < event["offset"] <= kept
    after = [row["uniq_key"] for row in rows if row["offset"] >= kept]
    assert after == [f"other{n}" for n in range(40)]
    assert query.batch() == []


def test_a_log_cut_after_its_batch_was_planned_is_told_by_the_next(tmp_path: Path) -> None:
    log = made(tmp_path)
    query = Query(log.root, failOnDataLoss="false")
    query.batch()
    log.fill(10, mark="late")
    planned = query.plan()
    cut(log, 62)
    first = [row["uniq_key"] for row in query.batch(planned)]
    assert not any(key.startswith("other") for key in first)
    event, *rows = query.batch()
    assert event["event"] == "truncated"
    seen = {*first, *(row["uniq_key"] for row in rows)}
    assert {"late0", "late1", *(f"other{n}" for n in range(40))} <= seen
    assert "late2" not in seen


def test_what_retention_removed_unread_fails_or_is_a_row(tmp_path: Path) -> None:
    from audit.engines.stream import DataLossError

    log = made(tmp_path, 5)
    strict, lax = Query(log.root), Query(log.root, failOnDataLoss="false")
    read = [strict.batch(), lax.batch()][0][-1]["until"]
    log.fill(80, mark="n")
    for base in (0, SEGMENT):
        (log.root / "commitlog" / f"{base:020d}").unlink()
    with pytest.raises(DataLossError, match=f"retention removed {read} to {2 * SEGMENT}"):
        strict.batch()
    event, *rows = lax.batch()
    assert (event["event"], event["offset"], event["until"]) == ("expired", read, 2 * SEGMENT)
    assert rows[0]["offset"] == 2 * SEGMENT
    assert rows[-1]["uniq_key"] == "n79"


def test_retention_of_what_was_read_is_no_loss(tmp_path: Path) -> None:
    log = made(tmp_path, 80)
    query = Query(log.root)
    query.batch()
    (log.root / "commitlog" / f"{0:020d}").unlink()
    log.fill(1, mark="n")
    assert query.keys() == ["n0"]


def test_damage_in_a_log_is_passed_and_is_a_stream_of_its_own(tmp_path: Path) -> None:
    log = made(tmp_path)
    patch(log.root, int(str(log.rows[3]["phys_offset"])), b"\xff" * 8)
    assert len(Query(log.root).keys()) == 59
    (row,) = Query(log.root, table="damage").batch()
    assert (row["kind"], row["offset"]) == ("unreadable_region", log.rows[3]["phys_offset"])


def test_a_file_that_was_moved_behind_the_end_is_no_end(tmp_path: Path) -> None:
    """As an audit has it. A stream that read on behind it would never read what comes next."""
    log = made(tmp_path)
    folder = log.root / "commitlog"
    shutil.copy(folder / f"{0:020d}", folder / f"{5 * SEGMENT:020d}")
    query = Query(log.root)
    assert query.keys() == [f"m{n}" for n in range(60)]
    assert query.offset("r0") == log.end
    log.fill(10, mark="n")
    assert query.keys() == [f"n{n}" for n in range(10)]
    newest = Query(log.root, startingOffsets="latest")
    assert newest.keys() == []
    assert newest.offset("r0") == log.end


def test_a_first_segment_of_a_wrong_name_is_no_begin(tmp_path: Path) -> None:
    log = made(tmp_path)
    folder = log.root / "commitlog"
    (folder / f"{0:020d}").rename(folder / f"{100:020d}")
    first = sum(int(str(row["phys_offset"])) < SEGMENT for row in log.rows)
    assert Query(log.root).keys() == [f"m{n}" for n in range(first, 60)]


def test_a_poll_reads_a_records_head_more_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = made(tmp_path)
    read, asked = LocalStorage.read, [0]

    def counted(self: LocalStorage, path: str, offset: int, size: int) -> bytes:
        data = read(self, path, offset, size)
        asked[0] += len(data)
        return data

    monkeypatch.setattr(LocalStorage, "read", counted)
    look(StoreSpec("r0", str(log.root)))
    whole, asked[0] = asked[0], 0
    monkeypatch.setattr("audit.reading.live.find_own_ends", find_ends)
    look(StoreSpec("r0", str(log.root)))
    assert whole == asked[0] + 36


def test_stores_advance_each_for_itself_through_a_failover(tmp_path: Path) -> None:
    log = made(tmp_path, 30)
    log.confirm(None, [(1, 0)])
    stores = copies(log.root.rename(tmp_path / "first"), 2)
    logs = [LogWriter.__new__(LogWriter) for _ in stores]
    for store, of in zip(stores, logs, strict=True):
        of.__dict__.update({**log.__dict__, "root": store, "rows": [*log.rows], "_next": dict(log._next)})
    query = Query(*stores)
    assert len(query.batch()) == 60
    logs[1].fill(20, mark="e2")  # the other one leads, in a new epoch
    write_epochs(stores[1], [(1, 0), (2, log.end)])
    logs[1].confirm(None)
    rows = query.batch()
    assert {row["store"] for row in rows} == {"r1"}
    assert query.at is not None
    assert [query.at["stores"][str(store)]["epoch"] for store in stores] == [1, 2]
    logs[0].fill(20, mark="e2")
    logs[0].confirm(None, [(1, 0), (2, log.end)])
    assert {row["store"] for row in query.batch()} == {"r0"}


def test_a_position_is_its_stores_whatever_others_there_are(tmp_path: Path) -> None:
    log = made(tmp_path / "a", 9)
    other = shutil.copytree(log.root, tmp_path / "b" / "r0")
    query = Query(log.root)
    assert len(query.keys()) == 9
    query.stores = [f"{log.root}", f"{other}"]  # which lengthens both names
    assert [row["store"] for row in query.batch()] == ["b/r0"] * 9, "it is new, and the first one is not"
    query.stores = [f"{other}"]
    assert query.keys() == []


def test_a_store_that_moved_goes_on_by_its_name_or_is_refused(tmp_path: Path) -> None:
    log = made(tmp_path / "a", 9)
    moved = tmp_path / "b"
    by_path, by_name = Query(log.root), Query(f"one={log.root}")
    assert len(by_path.keys()) == len(by_name.keys()) == 9
    (tmp_path / "a").rename(moved)
    by_path.stores, by_name.stores = [f"{moved}/r0"], [f"one={moved}/r0"]
    assert by_name.keys() == []
    with pytest.raises(ConfigError, match=r"of other stores, .*a/r0: give the same paths"):
        by_path.plan()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "digests"}, "a stream has the tables"),
        ({"upTo": "x"}, "upto='x' is none of confirmed, written"),
        ({"failOnDataLoss": "maybe"}, "failondataloss"),
    ],
)
def test_what_a_stream_cannot_do_it_says(tmp_path: Path, options: dict[str, str], said: str) -> None:
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(ConfigError, match=said):
        Query(tmp_path, **options).plan()


@pytest.mark.spark
@pytest.mark.more
def test_a_query_of_spark_goes_on_where_its_checkpoint_says(session: Any, tmp_path: Path) -> None:
    from audit.engines.commitlog import register

    register(session)
    log = made(tmp_path)

    def run() -> list[str]:
        stream = session.readStream.format("commitlog").option("queueId", "1").load(str(log.root))
        writer = stream.select("uniq_key").writeStream.format("json").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(120)
        assert query.exception() is None
        files = (tmp_path / "out").glob("*.json")
        return sorted(
            json.loads(line)["uniq_key"] for file in files for line in file.read_text().splitlines()
        )

    first = [f"m{n}" for n in range(1, 60, 2)]
    assert run() == sorted(first)
    log.fill(10, mark="n")
    patch(log.root, log.end, struct.pack(">i", 200))  # the size of a record of which no more is written
    assert run() == sorted(first + [f"n{n}" for n in range(1, 10, 2)])
