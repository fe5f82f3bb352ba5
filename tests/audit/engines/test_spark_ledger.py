"""A ledger whose file is gone, grown or changed where workers read it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.ledgers.ledger import Ledger, read_ledger
from audit.tables import EngineError
from tests.audit.counted import lost_and_repeated
from tests.audit.plants import make, run_spark

pytest.importorskip("pyspark")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    # Spark's own use of deprecated parts of its dependencies is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]


def test_of_a_ledger_that_workers_do_not_see_the_lines_come_from_the_driver(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone where they look, is another one there, or has grown since the driver read it."""
    from audit.engines.on_spark.cluster import Cluster
    from audit.engines.on_spark.ledger import LINES, LedgerRows
    from audit.engines.on_spark.spreading import tables

    monkeypatch.setattr(Cluster, "reads_here", False)
    _, path = lost_and_repeated(tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    more = [{"phys_offset": at * 100, "begun_ms": at / 7, "acked_ms": at + 0.5} for at in range(len(rows))]
    more[0]["acked_ms"], more[1]["acked_ms"] = 1e300, -3.25
    lines = "".join(json.dumps(row | own) + "\n" for row, own in zip(rows, more, strict=True))
    path.write_text(lines)
    ledger = read_ledger(str(path))
    read = engine._cluster.read

    def load_lines(parts: list[dict[str, Any]]) -> Any:
        return read(LINES, parts, 1 << 62)

    def gone(parts: list[dict[str, Any]]) -> Any:
        path.unlink()
        return load_lines(parts)

    def grown(parts: list[dict[str, Any]]) -> Any:
        path.write_text(lines + lines.partition("\n")[0] + "\n")
        return load_lines([{**part, "end": 1 << 62} for part in parts])

    def other(parts: list[dict[str, Any]]) -> Any:
        path.write_text(re.sub(r'"body_crc": \d+', '"body_crc": 7', lines))
        return load_lines(parts)

    def renamed(parts: list[dict[str, Any]]) -> Any:
        """Of another run with the same bodies."""
        path.write_text(re.sub(r'("uniq_key": ")', r"\1another", lines))
        return load_lines(parts)

    def untimed(parts: list[dict[str, Any]]) -> Any:
        """The same messages, but nothing says in which order they were acknowledged."""
        path.write_text(re.sub(r', "(?:acked_ms|begun_ms)": [^,}]+', "", lines))
        return load_lines(parts)

    def moved(parts: list[dict[str, Any]]) -> Any:
        path.write_text(re.sub(r'"phys_offset": (\d+)', r'"phys_offset": 1\1', lines))
        return load_lines(parts)

    def rows_by(seen: Callable[[list[dict[str, Any]]], Any]) -> Any:
        monkeypatch.setattr(Cluster, "read", lambda cluster, kind, parts, size: seen(parts))
        return LedgerRows(engine._cluster, ledger)

    def here(rows: Any) -> pa.Table:
        return pa.concat_tables(tables(LINES, rows.lines().collect())).sort_by("line")

    try:
        for seen in (grown, other, renamed, untimed, moved, gone):
            rows = rows_by(seen)
            assert here(rows).equals(ledger.table())
            assert rows.same(), "what the driver sent does not change"
            rows.close()
        path.write_text(lines)
        whole = ledger.table()
        monkeypatch.setattr(ledger, "table", lambda: pytest.fail("the driver sent lines that workers see"))
        rows = rows_by(load_lines)
        assert here(rows).equals(whole)
        rows.close()
    finally:
        ledger.close()


def test_a_ledger_that_is_cut_after_it_was_checked_ends_the_audit(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that lost what it kept reads it again: of a file of the same size, without the message that
    nobody has, all was there."""
    from audit.engines.on_spark import ledger as ledgers

    monkeypatch.setattr("audit.engines.on_spark.cluster.Cluster.reads_here", False)
    cleaner = engine._cluster.context._jsc.sc().cleaner().get()
    stores, _, ledger = make(tmp_path)
    lost = json.dumps({"uniq_key": "lost", "topic": "T", "queue_id": 0, "queue_offset": 99, "body_crc": 1})
    whole = ledger.read_text()
    ledger.write_text(f"{whole}{lost}\n")
    seen, checked = ledgers._seen, list[Any]()

    def seen_and_cut(rows: Any, kind: str) -> Any:
        found = seen(rows, kind)
        if not checked:
            rows.unpersist(blocking=True)
            for shuffle in range(engine._cluster.context._jsc.sc().newShuffleId()):
                cleaner.doCleanupShuffle(shuffle, True)
            ledger.write_text(f"{whole}{' ' * len(lost)}\n")
        checked.append(found)
        return found

    monkeypatch.setattr(ledgers, "_seen", seen_and_cut)
    with pytest.raises(EngineError, match="the ledger changed meanwhile"):
        run_spark(engine, stores, ledger)
    assert [count for count, _ in checked] == [81, 80]


def test_lines_that_a_session_passes_over_end_the_audit(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set to read on where a file is gone; the line that no log has was in that file."""
    stores, _, ledger = make(tmp_path)
    lost = json.dumps({"uniq_key": "lost", "topic": "T", "queue_id": 0, "queue_offset": 99, "body_crc": 1})
    ledger.write_text(f"{ledger.read_text()}{lost}\n")
    monkeypatch.setattr("audit.ledgers.ledger._PART_BYTES", 200)
    parquet = Ledger.parquet

    def without_one(self: Ledger, *, sent: bool = False) -> list[str]:
        files = parquet(self, sent=sent)
        found = [file for file in files if "lost" in pq.read_table(file)["uniq_key"].to_pylist()]
        for file in found:
            Path(file).unlink()
        return [file for file in files if file not in found]

    monkeypatch.setattr(Ledger, "parquet", without_one)
    with pytest.raises(EngineError, match="the ledger changed meanwhile"):
        run_spark(engine, stores, ledger)
