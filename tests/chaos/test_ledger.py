"""The promise of a drill's ledger: an audit takes it, as JSON lines and as Parquet, with the times."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.ledgers.ledger import read_ledger
from chaos.drills import ledger
from chaos.history import Fail, History, Invoke, Ok
from client.message import Queue


@pytest.mark.parametrize("name", ["acked.jsonl", "acked.parquet"])
def test_what_was_acknowledged_is_an_audits_ledger(tmp_path: Path, name: str) -> None:
    queue = Queue("t", "broker-a", 3)
    history = History(Invoke(float(n), "p", f"k{n}", queue, 7 + n) for n in range(3))
    history.add(Ok(5.5, "p", "k1", queue, 9, 100))
    history.add(Fail(6.0, "p", "k2", "no"))
    path = tmp_path / name
    ledger.check(path)
    ledger.write(history, path)
    assert [one.name for one in tmp_path.iterdir()] == [name]
    found = read_ledger(str(path))
    (row,) = found.table().to_pylist()
    assert row | {"line": 0} == {
        "line": 0,
        "uniq_key": "k1",
        "topic": "t",
        "queue_id": 3,
        "queue_offset": 9,
        "phys_offset": 100,
        "body_crc": 8,
        "begun_ms": 1.0,
        "acked_ms": 5.5,
    }
    found.close()
