"""The promise of the page's steps: once a queue's folder that stands under another number is moved away, the
repair ends with nothing left; one that has entries of its own stays."""

from __future__ import annotations

import shutil
from pathlib import Path

from audit.kinds.entries import NO_QUEUE
from audit.results.repair import steps
from runtime.os_env import OsDisk
from store.offline.repair import repair
from tests.audit.plants import make_queued, run_local
from tests.audit.stores import LogWriter, copies


def test_a_queue_under_another_number_is_moved_away_and_made_anew(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 3)
    topic = stores[0] / "consumequeue" / "T"
    (topic / "0").rename(topic / "7")
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert [step.replica for step in told] == ["r0", "r0"]
    assert "move the folder consumequeue/T/7 out of the store" in told[0].why
    assert told[1].command.startswith("keelmq store repair")
    (topic / "7").rename(tmp_path / "aside")
    assert not repair(OsDisk(), str(stores[0]), [str(store) for store in stores[1:]]).left
    assert [f for f in run_local(stores, None).findings if f.kind.startswith("cq_")] == []


def test_a_queue_with_entries_of_its_own_is_moved_nowhere(tmp_path: Path) -> None:
    """Five of its own, and behind them five of a queue whose folder is gone."""
    writer = LogWriter(tmp_path / "origin")
    for n in range(50):
        writer.add(b"m%d" % n * 5, key=f"m{n}", queue_id=0 if n >= 10 or n % 2 else 1)
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    stores = copies(writer.root, 2)
    topic = stores[0] / "consumequeue" / "T"
    file, other = (topic / queue / f"{0:020d}" for queue in ("1", "0"))
    raw = bytearray(file.read_bytes())
    raw[100:200] = other.read_bytes()[100:200]
    file.write_bytes(raw)
    shutil.rmtree(topic / "0")
    report = run_local(stores, None)
    assert any(f.found == NO_QUEUE for f in report.findings)
    assert sum(f.records for f in report.findings if f.kind == "cq_dangling") == 5
    told = steps(report.findings, report.replicas)
    assert [step.why for step in told if "move the folder" in step.why] == []
