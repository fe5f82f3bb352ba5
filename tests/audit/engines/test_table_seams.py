"""Wherever a log is cut into partitions, and whatever range is asked for, a table has the same rows."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.audit.plants import PLANTS, make
from tests.audit.stores import SEGMENT, LogWriter

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan

TABLES = ("records", "damage")


def rows(store: Path, table: str, *filters: Filter, **asked: int) -> list[dict[str, Any]]:
    from audit.engines.commitlog import CommitLogSource

    options = {"path": str(store), "table": table, **{name: str(value) for name, value in asked.items()}}
    made = CommitLogSource(options | ({"pushFilters": "true"} if filters else {}))
    reader = made.reader(made.schema())
    assert not filters or not list(reader.pushFilters(list(filters)))
    found: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            found += batch.to_pylist()
    return found


def by_place(row: dict[str, Any]) -> tuple[int, str]:
    return row["offset"], repr(sorted(row.items()))


def misplaced(stores: list[Path], writer: LogWriter) -> None:
    log = stores[0] / "commitlog"
    shutil.copy(log / f"{2 * SEGMENT:020d}", log / f"{SEGMENT:020d}")


def zeros(stores: list[Path], writer: LogWriter) -> None:
    chance = random.Random(5)
    for file in sorted((stores[0] / "commitlog").iterdir())[:3]:
        raw = bytearray(file.read_bytes())
        for _ in range(3):
            at = chance.randrange(SEGMENT - 900)
            size = chance.choice([8, 300, 900])
            raw[at : at + size] = bytes(size)
        file.write_bytes(raw)


CASES: dict[str, Callable[[list[Path], LogWriter], None]] = {
    **{plant.name: plant.do for plant in PLANTS},
    "misplaced segment": misplaced,
    "zeros": zeros,
}


@pytest.mark.parametrize("case", CASES)
def test_no_row_is_lost_where_partitions_meet(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, writer, _ = make(tmp_path)
    CASES[case](stores, writer)
    for store in filter(lambda one: (one / "commitlog").is_dir(), stores):
        for table in TABLES:
            whole = sorted(rows(store, table), key=by_place)
            for size in (SEGMENT // 2, 512, 200):
                monkeypatch.setattr("audit.engines.tables.CHUNK_BYTES_MIN", size)
                assert sorted(rows(store, table), key=by_place) == whole, (store.name, table, size)
                monkeypatch.undo()


@pytest.mark.parametrize("case", ["misplaced segment", "zeros"])
@pytest.mark.parametrize("size", [1 << 26, 512])
def test_a_range_has_what_a_filter_of_all_has(
    case: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, writer, _ = make(tmp_path)
    CASES[case](stores, writer)
    monkeypatch.setattr("audit.engines.tables.CHUNK_BYTES_MIN", size)
    chance = random.Random(size)
    for table in TABLES:
        whole = sorted(rows(stores[0], table), key=by_place)
        ends = [row["offset"] + chance.choice([0, 0, 1]) for row in whole]
        for low in [*ends[:3], *chance.sample(ends, min(12, len(ends)))]:
            high = low + chance.choice([1, 300, SEGMENT])
            kept = [row for row in whole if low <= row["offset"] < high]
            asked = rows(stores[0], table, offsetFrom=low, offsetUntil=high)
            assert sorted(asked, key=by_place) == kept, (table, low, high)
            bounds = [GreaterThanOrEqual(("offset",), low), LessThan(("offset",), high)]
            pushed = rows(stores[0], table, *(bounds if high - low > 1 else [EqualTo(("offset",), low)]))
            assert sorted(pushed, key=by_place) == kept, (table, low, high)
