"""The promise of a cluster: no record leaves the worker that read it unless a question needs it; rows are the
local engine's."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from audit.tables import Engine, EngineError, Task, View
from tests.audit.plants import make_queued, run_local, run_with
from tests.audit.stores import LogWriter, copies, enter, patch, record

pytest.importorskip("pyspark")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]


def clean(root: Path) -> list[Path]:
    return make_queued(root)[0]


def repeated_and_wrong(root: Path) -> list[Path]:
    """A message twice, an entry of one replica wrong, and delayed messages."""
    writer = LogWriter(root / "origin")
    for n in range(60):
        writer.add(f"m-{n}".encode() * 5, key=f"m{n % 59}", queue_id=n % 2, stamp=1000 + n, tags="a")
    for n in range(5):
        stamp = 1_700_000_000_000 + n
        own = {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2, "stamp": stamp, "more": "DELAY\x013\x02"}
        writer.add(b"late", key=f"k{n}", **cast(Any, own))
        writer.rows[-1]["tags_code"] = stamp + 1000
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    stores = copies(writer.root)
    enter(stores[1], "T", 1, 12, struct.pack(">qiq", 1, 2, 3))
    enter(stores[2], "SCHEDULE_TOPIC_XXXX", 2, 3, struct.pack(">qiq", 1, 2, 3))
    return stores


@pytest.mark.parametrize(
    ("make", "kinds"),
    [(clean, set()), (repeated_and_wrong, {"dup_message", "cq_wrong"})],
    ids=["clean", "a message twice, wrong entries and delayed messages"],
)
def test_not_all_records_leave_the_workers(
    make: Callable[[Path], list[Path]],
    kinds: set[str],
    engine: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from audit.engines.on_spark import records

    def whole(rows: object) -> None:
        raise AssertionError("all records were asked for")

    stores = make(tmp_path)
    monkeypatch.setattr(records, "NEAR_BYTES_MIN", 0)
    monkeypatch.setattr(records, "NEAR_MAX", 3)  # of that key, of T, of the delayed
    monkeypatch.setattr(records, "PART_BYTES", 1000)
    monkeypatch.setattr(records.PiecedRows, "whole", whole)
    report = run_with(cast(Engine, engine), stores, None)
    assert report.findings == run_local(stores, None).findings
    assert {f.kind for f in report.findings} == kinds


def test_a_log_that_is_another_one_when_it_is_read_again_is_an_error(engine: Any, tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    task = Task(0, str(stores[0]), f"commitlog/{0:020d}", 0, 4096, 4096, 0, 4096, (), True)
    log = engine.scan([task])
    try:
        assert len(log.queue_starts(View(0, 0, ()))) == 2
        patch(stores[0], 0, record(0, 0, b"m-0" * 5, key="m0") + bytes(4096 - 200))
        with pytest.raises(EngineError, match="not the same"):
            log.keyed(View(0, 0, ()), 0, 4096)
    finally:
        log.close()
