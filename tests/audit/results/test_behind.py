"""The promise about entries that name what no log has: the step says what a start of the broker makes of
them, and it does."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from audit.results.steps.repair import Step, steps
from audit.run import Report
from model.config import BrokerConfig
from runtime.os_env import OsEnv
from store.message_store import MessageStore
from tests.audit.plants import MESSAGES, make_queued, run_local
from tests.audit.stores import SEGMENT, cut, enter, patch

_PLACE = MESSAGES // 2


def _dangling(report: Report) -> list[str]:
    return [f.replica for f in report.findings if f.kind == "cq_dangling"]


def _steps(report: Report, name: str) -> list[Step]:
    return [step for step in steps(report.findings, report.replicas) if step.replica == name]


async def _start(store: Path) -> None:
    """As its broker does, which then stops in order."""
    shape = {"mappedFileSizeCommitLog": str(SEGMENT), "mappedFileSizeConsumeQueue": "200"}
    shape |= {"maxHashSlotNum": "128", "maxIndexNum": "256", "diskReserveMegabytes": "0"}
    config = BrokerConfig.from_mapping({"brokerName": "b", "storePathRootDir": str(store), **shape})
    opened = MessageStore(OsEnv(), config, controller_mode=True)
    await opened.open()
    await opened.close()


@pytest.mark.parametrize("offset", [1 << 40, 5 * SEGMENT])
@pytest.mark.parametrize("replicas", [1, 3])
def test_an_entry_of_what_no_log_has_goes_with_a_start(replicas: int, offset: int, tmp_path: Path) -> None:
    """Nobody's broker follows a master for it: the store may be a lone one, or the master's."""
    stores, _ = make_queued(tmp_path, replicas)
    enter(stores[0], "T", 0, _PLACE, struct.pack(">qiq", offset, 129, 77))
    report = run_local(stores, None)
    assert _dangling(report) == ["r0"]
    [step] = _steps(report, "r0")
    assert step.command == ""
    assert "only trace" in step.why
    assert "start its broker: keelmq cuts such entries off" in step.why
    asyncio.run(_start(stores[0]))
    assert _dangling(run_local(stores, None)) == []


def test_a_store_is_mended_before_its_broker_is_started(tmp_path: Path) -> None:
    """Although what the start mends is worse."""
    stores, _ = make_queued(tmp_path)
    cut(stores[1], 2 * SEGMENT)
    enter(stores[1], "T", 0, 1, struct.pack(">qiq", 7, 129, 77))
    report = run_local(stores, None)
    assert [f.kind for f in report.findings if f.severity == "error"] == ["short_tail"]
    mended, started = _steps(report, "r1")
    assert mended.command.startswith("keelmq store repair")
    assert started.why.startswith("Start its broker in the group")


def test_a_repair_that_leaves_what_stands_behind_the_end_says_so(tmp_path: Path) -> None:
    """Its exit code tells that something is left; what it is advised for is mended."""
    stores, _ = make_queued(tmp_path)
    cut(stores[1], 2 * SEGMENT)
    patch(stores[1], 200, b"?")
    enter(stores[2], "T", 0, 1, struct.pack(">qiq", 7, 129, 77))
    report = run_local(stores, None)
    told = {name: [s for s in _steps(report, name) if "store repair" in s.command] for name in ("r1", "r2")}
    assert ["exit code 2: a start cuts it" in step.why for step in told["r1"]] == [True]
    assert ["exit code 2" in step.why for step in told["r2"]] == [False]
