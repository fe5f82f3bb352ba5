"""The promise of the format ``commitlog``: a store is tables, and what is not asked for is not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model.errors import ConfigError
from tests.audit.plants import make_queued
from tests.audit.stores import patch, write_epochs

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def registered(session: Any) -> None:
    from audit.engines.commitlog import register

    register(session)


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """Equal ones of 80 messages in three segments, with a consumer's offsets."""
    found, _ = make_queued(tmp_path)
    for store in found:
        (store / "config").mkdir()
        (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:3,1:5}}}')
        write_epochs(store, [(1, 0), (3, 4096)])
    return found


def test_each_table_has_what_the_store_has(session: Any, stores: list[Path]) -> None:
    patch(stores[0], 4096 + 4, b"\0")

    def table(name: str, path: str) -> list[Any]:
        return list(session.read.format("commitlog").option("table", name).load(path).collect())

    records = table("records", f"{stores[0]},{stores[1]}")
    assert [(store, sum(row.store == store for row in records)) for store in ("r0", "r1")] == [
        ("r0", 79),
        ("r1", 80),
    ]
    assert {row.uniq_key for row in records} == {f"m{n}" for n in range(80)}
    (damage,) = table("damage", str(stores[0]))
    assert (damage.store, damage.kind, damage.offset) == ("r0", "unreadable_region", 4096)
    entries = table("consumequeue", str(stores[1]))
    assert {(row.queue_id, row.queue_offset) for row in entries} == {(n % 2, n // 2) for n in range(80)}
    assert [(row.epoch, row.offset) for row in table("epochs", str(stores[1]))] == [(1, 0), (3, 4096)]
    (first, second) = sorted(table("offsets", str(stores[1])))
    assert tuple(first) == ("r1", "T", "g", 0, 3)
    assert tuple(second) == ("r1", "T", "g", 1, 5)
    digests = table("digests", f"{stores[1]},{stores[2]}")
    assert len({row.digest for row in digests}) == len(digests) / 2 == 3


@pytest.mark.more
def test_filters_leave_segments_out(session: Any, stores: list[Path]) -> None:
    from audit.engines.tables import TableReader, Wanted

    (stores[0] / "commitlog" / f"{0:020d}").write_bytes(b"nobody reads this file" * 186 + bytes(4))
    source = session.read.format("commitlog").option("offsetFrom", "4096").option("queueId", "1")
    of_options = source.load(str(stores[0])).select("uniq_key").collect()
    pushed = "spark.sql.python.filterPushdown.enabled"
    session.conf.set(pushed, "true")
    try:
        frame = session.read.format("commitlog").option("pushFilters", "true").load(str(stores[0]))
        rows = frame.filter("offset >= 4096 and queue_id = 1 and uniq_key <> 'm79'")
        assert {row.uniq_key for row in rows.collect()} == {row.uniq_key for row in of_options} - {"m79"}
        assert 10 < len(of_options) < 40
    finally:
        session.conf.unset(pushed)
    whole = TableReader("records", [str(stores[0])], Wanted()).partitions()
    cut = TableReader("records", [str(stores[0])], Wanted(begin=5000, end=6000)).partitions()
    assert [len(whole), len(cut)] == [3, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "x"}, "no table 'x'"),
        ({"offsetFrom": "one"}, "offsetFrom='one': expected a physical offset, bytes"),
        ({"offsetFrom": "-5"}, "offsetFrom='-5': expected a physical offset, bytes"),
        ({"offsetFrom": "9" * 5000}, "expected a physical offset, bytes"),
        ({"offsetFrom": "5000", "offsetUntil": "100"}, "offsetFrom=5000 lies behind offsetUntil=100"),
        ({"timeFrom": "2", "timeUntil": "1"}, "timeFrom=2 lies behind timeUntil=1"),
        ({"timefrom": "2026-11-29"}, "timeFrom='2026-11-29': expected ms since 1970"),
        ({"queueId": "x"}, "queueId='x'"),
        (
            {"offsetform": "1"},
            "there is no option offsetform, but offsetFrom; records has offsetFrom, .*timeUntil, topic, "
            "table, columns; a stream has upTo, startingOffsets, failOnDataLoss besides",
        ),
        (
            {"offsetform": "1", "table": "offsets"},
            "no option offsetform; offsets has .*topic, table, columns$",
        ),
        ({"pushFilters": "maybe"}, "pushFilters='maybe' is neither true nor false"),
        ({"columns": " , "}, "columns names no column"),
        ({"upto": "written"}, "upTo is an option of streams"),
        ({"startingOffsets": "latest"}, "startingOffsets is an option of streams"),
        ({"table": "epochs", "topic": "T"}, "table epochs cannot use option topic"),
        ({"table": "damage", "timeFrom": "1"}, "table damage cannot use option timeFrom"),
        ({"table": "consumequeue", "offsetFrom": "1"}, "table consumequeue cannot use option offsetFrom"),
        ({"table": "index", "queueId": "1"}, "table index cannot use option queueId"),
        ({"table": "ledger", "path": "/nowhere.jsonl"}, "/nowhere.jsonl: no such ledger"),
        ({"path": "/nowhere"}, "/nowhere: no commitlog, so this is no store"),
        ({"table": "offsets", "path": "/nowhere"}, "no commitlog"),
        ({"path": ""}, r"load\(\) needs the path"),
        ({"path": ","}, r"load\(\) needs the path"),
    ],
)
def test_what_it_cannot_read_or_use_it_says(options: dict[str, str], said: str, tmp_path: Path) -> None:
    from audit.engines.commitlog import CommitLogSource

    (tmp_path / "commitlog").mkdir()
    source = CommitLogSource({"path": str(tmp_path), **options})
    with pytest.raises(ConfigError, match=said):
        source.reader(source.schema())


def test_an_option_of_reads_is_none_of_streams(tmp_path: Path) -> None:
    from audit.engines.commitlog import CommitLogSource

    (tmp_path / "commitlog").mkdir()
    source = CommitLogSource({"path": str(tmp_path), "pushFilters": "true"})
    with pytest.raises(ConfigError, match="pushFilters is no option of streams"):
        source.streamReader(source.schema())


def test_a_table_takes_each_option_that_is_documented_for_it(tmp_path: Path) -> None:
    from audit.engines.commitlog import CommitLogSource
    from audit.engines.options import of_table
    from audit.engines.tables import TABLES

    (tmp_path / "commitlog").mkdir()
    for table, schema in TABLES.items():
        given = {"path": str(tmp_path), "table": table, "columns": schema.names[0], "pushFilters": "true"}
        given |= dict.fromkeys(of_table(table, schema), "1")
        CommitLogSource({name.lower(): value for name, value in given.items()}).schema()


def test_a_list_of_stores_is_read(session: Any, stores: list[Path]) -> None:
    frame = session.read.format("commitlog")
    for given in ([str(store) for store in stores], ", ".join(str(store) for store in stores)):
        assert {row.store for row in frame.load(given).select("store").distinct().collect()} == {
            "r0",
            "r1",
            "r2",
        }
