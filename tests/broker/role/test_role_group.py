"""The promise of a group of brokers: kill its master, and what was acknowledged is served by the next one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from broker.service import Broker
from tests.broker.logs import log_of, put
from tests.fakes.broker.role import FakeControllers, broker_at, full
from tests.waiting import until


@contextlib.asynccontextmanager
async def three(path: Path, controllers: FakeControllers) -> AsyncIterator[list[Broker]]:
    brokers = [broker_at(path / str(n), controllers) for n in (1, 2, 3)]
    for n, broker in enumerate(brokers, 1):
        await broker.start()
        await until(lambda broker=broker, n=n: broker.role.broker_id == n)  # type: ignore[misc]
    try:
        yield brokers
    finally:
        for broker in brokers:
            await broker.stop()


async def test_failover_and_return_leave_identical_logs(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, three(tmp_path, controllers) as brokers:
        await full(controllers, brokers)
        await until(lambda: all(broker.ready() is None for broker in brokers), "all know that they are in it")
        brokers[1].role_state.in_sync = False  # until it looks again
        assert (brokers[1].health(), brokers[1].ready()) == (None, "not in the SyncStateSet yet")
        first = brokers[0]
        put(first, *(f"before {n}" for n in range(200)))
        end = first.store.log.end
        await until(lambda: first.ha.replicated == end, "acknowledged by all")
        # As a kill does: nothing is replicated any more, and its connections end.
        await first.ha.become_fenced()
        lost = "does not follow its master in epoch 1 yet"
        await until(lambda: brokers[1].ready() == lost, "a link that ended is seen at once")
        assert brokers[1].role_state.in_sync
        assert brokers[1].health() is None, "no fault yet: an election may be under way"
        put(first, "never acknowledged")
        await first.stop()
        await until(lambda: 1 not in controllers.alive)
        controllers.elect()
        second = next(b for b in brokers if b.role.broker_id == controllers.group.master)
        await until(lambda: second.role_state.is_master, "the successor leads")
        assert [e.name for e in second.env.events if e.name == "promoted"] == ["promoted"]
        assert second.store.log.end == end
        put(second, *(f"after {n}" for n in range(200)))
        brokers[0] = broker_at(tmp_path / "1", controllers)
        await brokers[0].start()
        await full(controllers, brokers)
        assert len({log_of(broker) for broker in brokers}) == 1
        assert log_of(second)[:end] == log_of(brokers[0])[:end]
        assert len({tuple(broker.store.epochs.entries) for broker in brokers}) == 1
        for broker in brokers:
            await broker.store.caught_up()
            assert broker.store.max_queue_offset("T", 0) == 400


async def test_a_deposed_master_that_hears_it_late_gives_up_what_nobody_else_has(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, three(tmp_path, controllers) as brokers:
        await full(controllers, brokers)
        first = brokers[0]
        put(first, "common")
        await full(controllers, brokers)
        await first.ha.become_fenced()  # cut off from its slaves
        put(first, "lost")
        del controllers.alive[1]
        controllers.elect()
        await until(lambda: first.role_state.role == "slave", "it hears of its successor")
        assert [e.name for e in first.env.events if e.name == "demoted"] == ["demoted"]
        successor = next(b for b in brokers if b.role.broker_id == controllers.group.master)
        await until(lambda: successor.role_state.is_master)
        put(successor, "kept")
        await full(controllers, brokers)
        assert len({log_of(broker) for broker in brokers}) == 1
        assert b"lost" not in log_of(first)
        assert b"kept" in log_of(first)
