"""A broker group of HaServices over loopback, and a Controller that says yes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from ha.service import HaService
from model.config import BrokerConfig
from model.ids import BrokerId, Epoch
from runtime.os_env import OsEnv
from tests.fakes.ha.store import FakeStore
from tests.plain import broker_ids
from tests.ports import free_port
from tests.waiting import until

HEARTBEAT_MS = 100


class Node:
    """One broker: its store and its HA service."""

    def __init__(self, broker_id: int, store: Any = None, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "ha_listen_port": free_port(),
            "ha_heartbeat_ms": HEARTBEAT_MS,
            "ha_housekeeping_ms": 2000,
            "ha_not_catchup_ms": 1500,
            "check_sync_state_set_ms": 50,
            "segment_bytes": 4096,
        }
        self.id = broker_id
        self.config = BrokerConfig(**(defaults | settings))
        self.store = cast(Any, store or FakeStore(segment_bytes=self.config.segment_bytes))
        self.env = OsEnv(seed=broker_id)
        self.ha = HaService(self.env, self.store, self.config)

    @property
    def address(self) -> str:
        return self.config.ha_address


class Group:
    """Nodes by id and the Controller's set; ``elect`` makes one master and the others its slaves."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.epoch = 0
        self.master_id = 0
        self.members: frozenset[BrokerId] = frozenset()
        self.set_epoch = 0
        self.proposals: list[frozenset[BrokerId]] = []

    @property
    def master(self) -> Node:
        return self.nodes[self.master_id]

    async def __aenter__(self) -> Group:
        for node in self.nodes.values():
            await node.ha.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.ha.stop()

    async def propose(
        self, members: frozenset[BrokerId], base: int
    ) -> tuple[frozenset[BrokerId], int] | None:
        self.proposals.append(members)
        if base != self.set_epoch:
            return None
        self.members, self.set_epoch = members, self.set_epoch + 1
        return self.members, self.set_epoch

    async def elect(self, broker_id: int, *, followers: bool = True) -> None:
        self.epoch += 1
        self.set_epoch += 1
        self.master_id, self.members = broker_id, broker_ids({broker_id})
        await self.promote(broker_id)
        if followers:
            for node in self.nodes.values():
                if node.id != broker_id:
                    await self.follow(node.id)

    async def promote(self, broker_id: int) -> None:
        """What ``broker.role.manager`` and its host do when the Controller chose this broker."""
        node = self.nodes[broker_id]
        if node.ha.sync is None:
            await node.ha.become_fenced()
            node.store.truncate_partial_tail()
            node.store.rebuild_queue_offsets()
        node.store.epochs.append(self.epoch, node.store.log.end)
        await node.ha.become_master(
            BrokerId(broker_id), Epoch(self.epoch), self.members, self.set_epoch, self.propose
        )

    async def follow(self, broker_id: int) -> None:
        await self.nodes[broker_id].ha.become_slave(
            BrokerId(broker_id), Epoch(self.epoch), self.master.address
        )

    async def full(self) -> None:
        """Wait until every node is in the SyncStateSet, level, and has the master's epochs."""
        await until(lambda: self.members == frozenset(self.nodes), "the SyncStateSet is full")
        await self.level()
        await until(self._same_epochs, "every slave has the master's epochs")

    async def level(self) -> None:
        master = self.master
        await until(
            lambda: all(
                node.store.log.end == master.store.log.end and node.store.confirmed == master.store.log.end
                for node in self.nodes.values()
            ),
            "every slave has and confirms all",
        )

    def assert_identical(self) -> None:
        logs = {bytes(node.store.log.data) for node in self.nodes.values()}
        assert len(logs) == 1
        assert self._same_epochs()

    def _same_epochs(self) -> bool:
        epochs = [node.store.epochs.entries for node in self.nodes.values()]
        return all(entries == epochs[0] for entries in epochs)


def with_master(test: Callable[[Group, Node], Awaitable[None]], data: bytes = b"") -> None:
    """Run ``test`` with an elected master whose log holds ``data``."""

    async def run() -> None:
        # No heartbeats in between: each frame is one the test caused.
        async with Group(Node(1, ha_heartbeat_ms=60_000, ha_housekeeping_ms=60_000)) as group:
            await group.elect(1)
            if data:
                group.master.store.grow(data)
            await test(group, group.master)

    asyncio.run(run())
