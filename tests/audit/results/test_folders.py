"""The promise of the page's steps: once a queue's folder that stands under another number is moved away, the
repair ends with nothing left."""

from __future__ import annotations

from pathlib import Path

from audit.results.repair import steps
from runtime.os_env import OsDisk
from store.offline.repair import repair
from tests.audit.plants import make_queued, run_local


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
