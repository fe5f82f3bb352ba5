"""The promise of what goes on: a frame, or an acknowledgement, of which nothing is to be decided takes a
short road, and means what one does that takes the long one, as the first of a link does."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from ha.slave.master_link import MasterLink
from tests.fakes.ha.group import Group, Node
from tests.waiting import until

DATA: Final = b"0123456789"
QUIET_S: Final = 0.1
"""So long nothing may come that must not."""
NO_TICKS: Final[dict[str, Any]] = {
    "ha_heartbeat_ms": 60_000,
    "ha_housekeeping_ms": 240_000,
    "ha_not_catchup_ms": 240_000,
    "check_sync_state_set_ms": 60_000,
}
"""What is not told at once is not told in this test."""


async def replicated(group: Group, end: int) -> None:
    await until(lambda: group.master.ha.replicated == end, f"{end} is replicated")


async def test_a_slave_that_syncs_acknowledges_what_is_synced() -> None:
    async with Group(Node(1), Node(2, flush_disk_type="SYNC_FLUSH")) as group:
        await group.elect(1)
        await group.full()
        master, slave = group.master, group.nodes[2].store
        master.store.grow(DATA)
        await until(lambda: master.ha.replicated == 10, "the first one is replicated")
        slave.auto_flush = False
        master.store.grow(DATA)
        await until(lambda: slave.log.end == 20, "the second one is appended")
        await asyncio.sleep(QUIET_S)
        assert master.ha.replicated == 10
        slave.flush()
        await until(lambda: master.ha.replicated == 20, "what is synced is acknowledged")


async def test_the_last_acknowledgement_is_told_at_once() -> None:
    async with Group(*(Node(n, **NO_TICKS) for n in (1, 2, 3))) as group:
        await group.elect(1)
        await until(lambda: group.members == {1, 2, 3}, "all are in sync")
        told: list[int] = []
        group.master.ha.on_replicated.append(told.append)
        for end in (10, 20, 30):
            group.master.store.grow(DATA)
            await replicated(group, end)
        assert told == [10, 20, 30]


async def test_two_copies_are_enough_while_the_third_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    quorum = NO_TICKS | {"all_ack_in_sync_state_set": False, "in_sync_replicas": 2}
    async with Group(*(Node(n, **quorum) for n in (1, 2, 3))) as group:
        await group.elect(1)
        await until(lambda: group.members == {1, 2, 3}, "all are in sync")
        say, silent = MasterLink._say, group.nodes[3].store

        def say_unless_silent(link: MasterLink, end: Any, now_ms: float) -> None:
            if link._store is not silent:
                say(link, end, now_ms)

        monkeypatch.setattr(MasterLink, "_say", say_unless_silent)
        for end in (10, 20, 30):
            group.master.store.grow(DATA)
            await replicated(group, end)
