"""The promise of a live run: it stops where a promise is broken, and tells what each server did last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chaos.checks import Evidence, Violation, check_so_far
from chaos.checks.liveness import Group
from chaos.drills.live import online
from chaos.drills.live.online import DRILL, Watch, unless_broken
from chaos.history import Happened, History, HistoryEvent, Invoke, Observed, Ok
from client.message import Queue
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster
from tests.lines import lines_of

QUEUE = Queue("chaos", "broker-a", 0)
BROKERS = [f"broker-a-{number}" for number in range(3)]
TWO_MASTERS: list[HistoryEvent] = [
    Observed(10.0, "broker-a-0", 100, "master", 3, 8, 9),
    Happened(11.0, "broker-a-1", "promoted", {"epoch": 3}),
]


class Run:
    """A history, and a plan that never ends by itself."""

    def __init__(self, directory: Path, events: list[Any], group: Group | None = None) -> None:
        self.history = History(events)
        self.now_ms = 0.0
        self.struck = asyncio.Event()
        self.cancelled = False
        cluster = FakeCluster(directory)
        (directory / "log").mkdir()
        cluster.log_path(cluster.layout.broker_nodes[1]).write_text("one\ntwo\nlast words\n")
        self.watch = Watch(OsEnv(seed=1), cluster, self.history, lambda: self.now_ms, group)

    async def plan(self) -> str | None:
        try:
            await self.struck.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "not full"


Looks = list[Sequence[Violation]]


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What each look found."""
    seen: Looks = []

    def look(evidence: Evidence) -> Sequence[Violation]:
        seen.append(check_so_far(evidence))
        return seen[-1]

    monkeypatch.setattr(online, "LOOK_S", 0.001)
    monkeypatch.setattr(online, "check_so_far", look)
    return seen


async def looked(looks: Looks) -> None:
    """Returns when a look that began after now is over."""
    count = len(looks) + 2
    for _ in range(10_000):
        if len(looks) >= count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nobody looks")


async def test_a_run_stops_where_a_promise_is_broken_and_tells_the_last_of_each_server(
    tmp_path: Path, looks: Looks
) -> None:
    run = Run(tmp_path, [Happened(float(at), "broker-a-1", "set_changed") for at in range(100)])
    run.history.add(Happened(9.0, "", "group_full"))
    running = asyncio.ensure_future(unless_broken(run.plan(), run.watch))
    await looked(looks)
    assert not running.done(), "nothing is broken"
    for event in TWO_MASTERS:
        run.history.add(event)
    unfinished, stopped = await running
    assert stopped is not None
    assert (unfinished, run.cancelled) == (None, True)
    assert [one["checker"] for one in stopped.violations] == ["one_master_per_epoch"]
    last = stopped.last["broker-a-1"]
    assert len(last) == online.EVENTS + 3
    assert last[online.EVENTS - 1].endswith("promoted epoch=3")
    assert last[-1] == "last words"
    assert stopped.last["broker-a-0"] == ["10.0 ms  broker-a-0 says: master, epoch 3, confirmed 8 of 9 bytes"]
    assert stopped.last[DRILL][-1].endswith("group_full")
    assert stopped.last["broker-a-2"] == []


async def test_a_plan_that_ends_by_itself_is_looked_at_no_more(tmp_path: Path) -> None:
    run = Run(tmp_path, [])
    run.struck.set()
    assert await unless_broken(run.plan(), run.watch) == ("not full", None)
    assert await unless_broken(run.plan(), None) == ("not full", None)


async def test_a_log_that_cannot_be_read_hides_no_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(node: object) -> str:
        raise OSError(5, "Input/output error")

    run = Run(tmp_path, TWO_MASTERS)
    monkeypatch.setattr(run.watch._cluster, "log_tail", unreadable)
    _, stopped = await unless_broken(run.plan(), run.watch)
    assert stopped is not None
    assert [one["checker"] for one in stopped.violations] == ["one_master_per_epoch"]
    assert stopped.last["broker-a-2"] == ["its log cannot be read: [Errno 5] Input/output error"]


async def test_looking_that_fails_is_logged_and_the_plan_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, [])

    def fails(evidence: object) -> Sequence[Violation]:
        raise KeyError("no such check")

    monkeypatch.setattr(online, "check_so_far", fails)
    running = asyncio.ensure_future(unless_broken(run.plan(), run.watch))
    for _ in range(10_000):
        if lines_of(caplog) or running.done():
            break
        await asyncio.sleep(0.001)
    run.struck.set()
    assert await running == ("not full", None)
    assert "looked at no more" in caplog.text


async def test_no_write_is_missed_before_its_time_is_surely_over(tmp_path: Path, looks: Looks) -> None:
    """A fault that is noted late must not look like a group that does not serve."""
    group = Group(BROKERS, ["n0", "n1", "n2"], 2, 0.0)
    events: list[Any] = [Invoke(0.0, "p", "k", QUEUE, 1), Ok(1.0, "p", "k", QUEUE, 0, 0)]
    events += [
        Observed(float(at), name, 1, "slave", 1, 0, 0) for at in range(0, 9000, 500) for name in BROKERS
    ]
    run = Run(tmp_path, events, group)
    looking = asyncio.ensure_future(run.watch.broken())
    run.now_ms = 5001.0 + online.LATE_MS - 1
    await looked(looks)
    assert not looking.done()
    run.now_ms += 2
    async with asyncio.timeout(10):
        stopped = await looking
    assert [one["checker"] for one in stopped.violations] == ["serves_with_a_majority"]
