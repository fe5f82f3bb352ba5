"""The promise of the page's steps: once a queue's folder that stands under another number is moved away, the
repair ends with nothing left; one that has entries of its own stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from audit.kinds.made.entries import NO_QUEUE, is_misnamed_file
from audit.results.steps.repair import Step, steps
from model.config import StoreConfig
from runtime.os_env import OsDisk
from store.offline.repair import repair
from store.offline.verify import verify
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


@pytest.mark.parametrize("begin", [407, 1000 + 20, 1 << 40 | 1])
@pytest.mark.parametrize("filled", [False, True])
def test_a_queue_file_whose_name_is_no_multiple_of_its_size_is_moved_away(
    begin: int, filled: bool, tmp_path: Path
) -> None:
    """No broker starts with it, whatever it holds, and no repair takes it out."""
    stores, ledger = make_queued(tmp_path, 3)
    queue = stores[0] / "consumequeue" / "T" / "1"
    odd = queue / f"{begin:020d}"
    odd.write_bytes((queue / f"{0:020d}").read_bytes() if filled else bytes(200))
    path = odd.relative_to(stores[0]).as_posix()
    report = run_local(stores, ledger)
    assert report.verdict == "warnings"
    assert [f.replica for f in report.findings if (f.kind, f.segment) == ("cq_wrong", path)] == ["r0"]
    told = steps(report.findings, report.replicas)
    assert f"move the file {path} out of the store" in told[0].why
    assert (told[0].command, filled or len(told) == 1) == ("", True)
    assert path in {row["file"] for row in verify(OsDisk(), str(stores[0]))["damage"]}
    odd.rename(tmp_path / "aside")
    assert run_local(stores, ledger).findings == []


@pytest.mark.parametrize("cut", [40, 100, 200])
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_size_that_most_files_were_cut_to_is_not_the_stores(
    cut: int, everywhere: bool, tmp_path: Path
) -> None:
    """Or the others would be moved away, with what may be all that is left of a lost message."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(80)
    writer.write_queues(20)
    stores = copies(writer.root, 3)
    files = [sorted(path for path in (one / "consumequeue").rglob("0*") if path.is_file()) for one in stores]
    for its in files if everywhere else files[:1]:
        assert len({path.stat().st_size for path in its}) == 1
        for path in its[: 2 * len(its) // 3]:
            path.write_bytes(path.read_bytes()[:cut])
    report = run_local(stores, None)
    assert report.findings
    assert not [f for f in report.findings if is_misnamed_file(f)]
    assert {f.expected for f in report.findings if f.found == f"{cut} bytes"} == {"a file of 400 bytes"}


def test_where_no_queue_file_is_left_the_step_asks_for_their_size(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 2)
    for store in stores:
        (store / "config").mkdir()
        topics = {"T": {"readQueueNums": 2, "writeQueueNums": 2}}
        (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    told = _without_queues(stores, ["r0"])
    assert [step.command.startswith("keelmq store repair") for step in told] == [True]
    assert "--queue-file-bytes" not in told[0].why
    assert not repair(OsDisk(), str(stores[0]), [str(stores[1])]).left
    told = _without_queues(stores, ["r0", "r1"])
    assert [step.replica for step in told if "--queue-file-bytes" in step.why] == ["r0", "r1"]
    assert repair(OsDisk(), str(stores[0]), [str(stores[1])]).left
    size = StoreConfig(queue_file_bytes=200)
    assert not repair(OsDisk(), str(stores[0]), [str(stores[1])], config=size).left


def _without_queues(stores: list[Path], names: list[str]) -> list[Step]:
    for store in stores:
        if store.name in names:
            shutil.rmtree(store / "consumequeue")
            (store / "consumequeue").mkdir()
    report = run_local(stores, None)
    return steps(report.findings, report.replicas)
