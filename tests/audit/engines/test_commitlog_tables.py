"""The promise of the format's tables: what a store and a ledger say, and only what was asked for is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.reading.derived.index_files import key_hash
from model.errors import ConfigError
from tests.audit.plants import make_queued
from tests.audit.stores import SEGMENT, LogWriter, ledger_of, unpack

pytest.importorskip("pyspark")

ROW = {"topic": "T", "queue_id": 0, "queue_offset": 3, "body_crc": (1 << 31) + 5}
HOUR_MS = 3_600_000


def source(path: Path, **options: str) -> Any:
    from audit.engines.commitlog import CommitLogSource

    return CommitLogSource({**options, "path": str(path)})


def rows(path: Path, **options: str) -> list[dict[str, Any]]:
    made = source(path, **options)
    reader = made.reader(made.schema())
    found = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert batch.schema.names == made.schema().names
            found += batch.to_pylist()
    return found


def test_an_index_is_a_row_an_entry(tmp_path: Path) -> None:
    store = unpack("plain-11", tmp_path)
    records = {row["offset"]: row for row in rows(store)}
    entries = rows(store, table="index")
    assert len({(row["file"], row["number"]) for row in entries}) == len(entries) >= len(records) == 360
    for row in entries:
        record = records[row["offset"]]
        assert 0 <= record["stored_ms"] - row["stored_ms"] < 1000
    assert {row["key_hash"] for row in entries} >= {
        key_hash(row["topic"], row["uniq_key"]) for row in records.values()
    }
    low = sorted(records)[300]
    assert {row["offset"] for row in rows(store, table="index", offsetFrom=str(low))} == {
        at for at in records if at >= low
    }


def test_an_entry_that_names_no_place_of_a_log_is_a_row(tmp_path: Path) -> None:
    store = unpack("plain-11", tmp_path)
    whole = rows(store, table="index")
    (path,) = (store / "index").iterdir()
    raw = path.read_bytes()
    for wrong in (-5, -(1 << 63), (1 << 62) + 1, (1 << 63) - 1):
        at = raw.index(whole[7]["offset"].to_bytes(8))
        path.write_bytes(raw[:at] + wrong.to_bytes(8, signed=True) + raw[at + 8 :])
        told = rows(store, table="index")
        assert len(told) == len(whole)
        assert sum(row["offset"] == wrong for row in told) == 1


def test_an_index_of_which_the_shape_is_lost_is_said(tmp_path: Path) -> None:
    store = unpack("plain-11", tmp_path)
    (path,) = (store / "index").iterdir()
    raw = bytearray(path.read_bytes())
    raw[16:24] = bytes([1] * 8)  # the first record's offset
    path.write_bytes(raw)
    with pytest.raises(OSError, match="cannot be told"):
        rows(store, table="index")


def test_a_ledger_is_the_same_rows_as_lines_and_as_parquet(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in ledger_of("plain-11").read_text().splitlines()]
    found = rows(ledger_of("plain-11"), table="ledger")
    assert [row["uniq_key"] for row in found] == [row["uniq_key"] for row in lines]
    pq.write_table(pa.Table.from_pylist(lines), tmp_path / "a.parquet")
    for row in found:
        row["store"] = "a.parquet"
    assert rows(tmp_path / "a.parquet", table="ledger") == found
    assert {row["body_crc"] >> 31 for row in found} == {0}


def test_a_folder_of_json_lines_is_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "acked"
    folder.mkdir()
    for n, name in enumerate(("part-1.json", "part-0.json")):
        (folder / name).write_text(json.dumps({**ROW, "uniq_key": f"k{n}", "acked_ms": n}) + "\n")
    found = rows(Path(f"{folder}/"), table="ledger", columns="store, uniq_key, acked_ms")
    assert found == [
        {"store": "acked", "uniq_key": "k1", "acked_ms": 1.0},
        {"store": "acked", "uniq_key": "k0", "acked_ms": 0.0},
    ]


def test_ranges_of_a_ledger_have_each_line_once(tmp_path: Path) -> None:
    from audit.engines.lines import ranges, read_lines, read_ordered

    path = tmp_path / "l.jsonl"
    path.write_text("".join(json.dumps({**ROW, "uniq_key": f"k{n:0{n % 7}}"}) + "\n" for n in range(50)))
    whole = [row["uniq_key"] for row in rows(path, table="ledger")]
    assert len(whole) == 50
    for size in (17, 97, 98, 1000):
        parts = [table for part in ranges(str(path), size) for table in read_lines(part)]
        assert [key for table in parts for key in table["uniq_key"].to_pylist()] == whole
        ordered = [table for part in ranges(str(path), size) for table in read_ordered(part)]
        numbers = pa.concat_tables(ordered)["line"].to_pylist()
        assert numbers == sorted(set(numbers)), "so lines keep their order"


def test_the_history_of_a_drill_is_a_ledger_of_what_was_acknowledged(tmp_path: Path) -> None:
    from chaos.history import Fail, History, Invoke, Ok, Unknown
    from client.message import Queue

    queue = Queue("T", "b", 1)
    history = History(Invoke(float(n), "p", f"k{n}", queue, 7) for n in range(3))
    history.add(Fail(3.0, "p", "k0", "no"))
    history.add(Ok(4.0, "p", "k1", queue, 9, 100))
    history.add(Unknown(5.0, "p", "k2", "timeout", 1))
    with (tmp_path / "h.jsonl").open("w") as file:
        history.write(file)
    (row,) = rows(tmp_path / "h.jsonl", table="ledger")
    (told,) = history.ledger()
    assert {name: row[name] for name in told} == told
    assert (row["begun_ms"], row["acked_ms"]) == (1.0, 4.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"uniq_key": "k"}\n', "topic is missing"), ("[1]\n", "expected a JSON object"), ("{\n", "not a JSON")],
)
def test_what_is_no_ledger_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "l").write_text(text)
    with pytest.raises(ConfigError, match=said):
        rows(tmp_path / "l", table="ledger")


def test_a_time_leaves_segments_out(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "r0")
    for n in range(80):
        log.add(f"m{n}".encode() * 9, key=f"m{n}", stamp=n * HOUR_MS)
    asked = {"timeFrom": str(55 * HOUR_MS), "timeUntil": str(57 * HOUR_MS)}
    kept = [row["offset"] for row in rows(log.root, **asked)]
    assert kept == [log.rows[55]["phys_offset"], log.rows[56]["phys_offset"]]
    (log.root / "commitlog" / f"{0:020d}").write_bytes(b"nobody reads this" * 240 + bytes(16))
    assert [row["offset"] for row in rows(log.root, **asked)] == kept
    made = source(log.root, **asked)
    (part,) = made.reader(made.schema()).partitions()
    assert part.value[1]["start"] == kept[0] // SEGMENT * SEGMENT


def test_a_clock_that_went_back_hides_no_record_of_a_time(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "r0")
    for n in range(80):
        log.add(f"m{n}".encode() * 9, key=f"m{n}", stamp=HOUR_MS - (300_000 if n >= 25 else 0))
    assert len(rows(log.root, timeUntil=str(HOUR_MS - 1))) == 55
    assert len(rows(log.root, timeFrom=str(HOUR_MS))) == 25


@pytest.mark.parametrize(
    "name", ["GreaterThan", "GreaterThanOrEqual", "EqualTo", "LessThan", "LessThanOrEqual"]
)
def test_a_filter_on_the_time_is_taken(name: str) -> None:
    from pyspark.sql import datasource

    from audit.engines.tables import PushingReader, Wanted

    reader = PushingReader("records", [], Wanted())
    assert list(reader.pushFilters([getattr(datasource, name)(("stored_ms",), 50)])) == []
    taken = {at for at in (49, 50, 51) if reader.wanted.since_ms <= at < reader.wanted.until_ms}
    expected = {"GreaterThan": {51}, "GreaterThanOrEqual": {50, 51}, "EqualTo": {50}}
    expected |= {"LessThan": {49}, "LessThanOrEqual": {49, 50}}
    assert taken == expected[name]


def test_only_the_columns_that_are_asked_for_are_made(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "r0")
    log.fill(10)
    found = rows(log.root, columns="uniq_key, queue_id", queueId="1")
    assert found == [{"queue_id": 1, "uniq_key": f"m{n}"} for n in range(1, 10, 2)]
    with pytest.raises(ConfigError, match="no column 'body'"):
        rows(log.root, columns="body")


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_that_was_moved_behind_the_end_is_in_no_table_of_a_log(count: int, tmp_path: Path) -> None:
    """As an audit has it: what its records name is another place."""
    stores, _ = make_queued(tmp_path, count)
    log = stores[0] / "commitlog"
    path = Path(",".join(map(str, stores)))
    before = {table: rows(path, table=table) for table in ("records", "damage", "digests")}
    shutil.copy(log / f"{0:020d}", log / f"{5 * SEGMENT:020d}")
    assert {table: rows(path, table=table) for table in before} == before
    assert before["damage"] == []
