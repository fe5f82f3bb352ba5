"""The promise of a ledger's columns: JSON lines and Parquet take the same, and what cannot be is named."""

from __future__ import annotations

import decimal
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.ledgers.columns import NEEDED, OPTIONAL
from audit.ledgers.ledger import read_ledger
from model.errors import ConfigError
from tests import ROOT

ROW = {"uniq_key": "K", "topic": "T", "queue_id": 1, "queue_offset": 2, "body_crc": 3}


def lines(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def parquet(file: Path, column: str, values: pa.Array) -> Path:
    rows = pa.Table.from_pylist([{**ROW, "uniq_key": f"K{n}"} for n in range(len(values))])
    if column in rows.column_names:
        rows = rows.drop_columns([column])
    pq.write_table(rows.append_column(column, values), file)
    return file


def values(path: Path, column: str) -> list[Any]:
    ledger = read_ledger(str(path))
    try:
        found: list[Any] = ledger.table()[column].to_pylist()
        return found
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("column", "value", "read"),
    [
        ("queue_id", 3, 3),
        ("queue_offset", 3.0, 3),
        ("phys_offset", 1 << 52, 1 << 52),
        ("phys_offset", -1, -1),
        ("phys_offset", None, -1),
        ("body_crc", -5, -5 & 0x7FFFFFFF),
        ("body_crc", 3_000_000_000.0, 3_000_000_000 & 0x7FFFFFFF),
        ("acked_ms", 5, 5.0),
        ("acked_ms", 5.25, 5.25),
        ("begun_ms", None, -1.0),
    ],
)
def test_both_formats_take_the_same(column: str, value: Any, read: Any, tmp_path: Path) -> None:
    assert values(lines(tmp_path / "l.jsonl", {**ROW, column: value}), column) == [read]
    assert values(parquet(tmp_path / "l.parquet", column, pa.array([value])), column) == [read]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("queue_id", -3),
        ("queue_id", 1 << 31),
        ("queue_offset", -1),
        ("queue_offset", "5"),
        ("queue_offset", 1.5),
        ("queue_offset", True),
        ("phys_offset", -2),
        ("phys_offset", float((1 << 53) + 2)),
        ("body_crc", 1 << 32),
        ("body_crc", 0.5),
        ("uniq_key", 5),
        ("topic", 5.0),
        ("acked_ms", "7"),
        ("begun_ms", True),
    ],
)
def test_both_formats_refuse_the_same(column: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"l\.jsonl:2: {column}: expected"):
        read_ledger(str(lines(tmp_path / "l.jsonl", ROW, {**ROW, column: value})))
    with pytest.raises(ConfigError, match=rf"l\.parquet: column {column}: (row 1: )?expected"):
        read_ledger(str(parquet(tmp_path / "l.parquet", column, pa.array([value]))))


def test_a_row_of_parquet_that_cannot_be_is_named(tmp_path: Path) -> None:
    file = parquet(tmp_path / "l.parquet", "queue_id", pa.array([0, 1, -3, -4]))
    with pytest.raises(ConfigError, match="column queue_id: row 3: expected 0 to 2147483647, found -3"):
        read_ledger(str(file))


def test_types_that_only_parquet_has(tmp_path: Path) -> None:
    key = pa.array(["a", "b"]).dictionary_encode()
    assert values(parquet(tmp_path / "a.parquet", "uniq_key", key), "uniq_key") == ["a", "b"]
    whole = pa.array([decimal.Decimal("5.00")])
    assert values(parquet(tmp_path / "b.parquet", "queue_offset", whole), "queue_offset") == [5]
    assert values(parquet(tmp_path / "c.parquet", "acked_ms", pa.array([None])), "acked_ms") == [-1.0]
    time = pa.array([datetime(2026, 11, 29, tzinfo=UTC)], pa.timestamp("ms", "UTC"))
    with pytest.raises(ConfigError, match=r"acked_ms: expected numbers of ms, found timestamp\[ms, tz=UTC\]"):
        read_ledger(str(parquet(tmp_path / "d.parquet", "acked_ms", time)))


def test_a_column_in_a_folders_name_is_not_read(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{name: value for name, value in ROW.items() if name != "topic"}])
    (tmp_path / "l" / "topic=T").mkdir(parents=True)
    pq.write_table(rows, tmp_path / "l" / "topic=T" / "1.parquet")
    with pytest.raises(ConfigError, match="topic is missing from the file: in a folder's name"):
        read_ledger(str(tmp_path / "l"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As Spark writes JSON: parts, one of them empty, and files of its own."""
    made = tmp_path / "acked"
    made.mkdir()
    (made / "_SUCCESS").touch()
    (made / ".part-0.json.crc").write_bytes(b"x")
    (made / "part-0.json").touch()
    lines(made / "part-2.json", {**ROW, "uniq_key": "c"})
    lines(made / "part-1.jsonl", {**ROW, "uniq_key": "a"}, {**ROW, "uniq_key": "b"})
    packed = gzip.compress(json.dumps({**ROW, "uniq_key": "d"}).encode() + b"\n")
    (made / "part-3.json.gz").write_bytes(packed)
    return made


def test_a_folder_of_json_lines_is_one_ledger(folder: Path) -> None:
    assert values(folder, "uniq_key") == ["a", "b", "c", "d"]
    assert values(Path(f"{folder}/"), "uniq_key") == ["a", "b", "c", "d"]


def test_the_workers_read_the_same_of_a_folder(folder: Path) -> None:
    pytest.importorskip("pyspark")
    from audit.engines.lines import ranges, read_ordered

    tables = [table for part in ranges(str(folder), 100) for table in read_ordered(part)]
    rows = pa.concat_tables(tables)
    assert rows["uniq_key"].to_pylist() == ["a", "b", "c", "d"]
    numbers = rows["line"].to_pylist()
    assert numbers == sorted(set(numbers))


def test_what_is_wrong_in_a_folder_is_named(folder: Path) -> None:
    lines(folder / "part-4.json", ROW, {**ROW, "queue_id": -1})
    with pytest.raises(ConfigError, match=r"part-4\.json:2: queue_id"):
        read_ledger(str(folder))
    lines(folder / "part-4.json", {"type": "invoke", "key": "K"})
    with pytest.raises(ConfigError, match=r"part-4\.json: a history is one file"):
        read_ledger(str(folder))
    (folder / "part-4.json").rename(folder / "part-4.parquet")
    with pytest.raises(ConfigError, match=r"a folder of JSON lines has no other files: part-4\.parquet"):
        read_ledger(str(folder))


def test_a_store_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "bootId.json").write_text("{}")
    with pytest.raises(ConfigError, match="this is a store, as it has a commitlog, and no ledger"):
        read_ledger(str(tmp_path))


def test_a_folder_that_is_neither_says_what_is_taken(tmp_path: Path) -> None:
    (tmp_path / "l").mkdir()
    lines(tmp_path / "l" / "acked.txt", ROW)
    with pytest.raises(ConfigError, match=r"a folder has Parquet, or JSON lines in files named \.json"):
        read_ledger(str(tmp_path / "l"))


def test_a_part_that_is_cut_meanwhile_ends_the_audit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from audit.ledgers.watched import WatchedFile

    checked: list[str] = []

    def check(of: WatchedFile) -> None:
        checked.append(of._path)
        if of._path.endswith("part-2.json"):
            raise OSError(5, "it changed while it was read", of._path)

    monkeypatch.setattr(WatchedFile, "check", check)
    with pytest.raises(OSError, match="it changed"):
        read_ledger(str(folder))
    assert len(checked) == 3


def test_each_column_is_documented() -> None:
    page = (ROOT / "docs" / "audit.md").read_text()
    documented = [line for line in page.splitlines() if line.startswith("| `")]
    for name in (*NEEDED, *OPTIONAL):
        assert any(line.startswith(f"| `{name}`") for line in documented), name
