"""The promise of a group: what was acknowledged stays, and all logs end identical."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from model.config import BrokerConfig
from model.message import encode_host
from runtime.os_env import OsEnv
from store.files.record import NewMessage
from store.message_store import MessageStore
from tests.fakes.ha.group import Group, Node
from tests.fakes.ha.store import FakeStore
from tests.waiting import until

HOST = encode_host("127.0.0.1:10911")


def message(text: str) -> NewMessage:
    return NewMessage(
        topic="T",
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host=HOST,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=text.encode(),
        properties="",
    )


def contents(store: Any) -> bytes:
    """The whole log; records are compared with their bytes, so with their offsets."""
    if isinstance(store, FakeStore):
        return bytes(store.log.data)
    found, at = b"", store.log.min_offset
    while data := store.log.read(at, 1 << 20):
        found += data
        at += len(data)
    return found


def write(store: Any, text: str) -> None:
    if isinstance(store, FakeStore):
        store.grow(f"{text:>10}".encode())
    else:
        store.put(message(text * 20))


class Story:
    """Random elections, cuts and writes; as with a Controller, only members of the set are elected."""

    def __init__(self, group: Group, seed: int) -> None:
        self.group = group
        self.random = random.Random(seed)
        self.acknowledged = b""
        self.parted: list[str] = []
        self.elections = 0
        self.written = 0
        self.down: set[int] = set()

    def watch(self, node: Node) -> None:
        def replicated(offset: int) -> None:
            prefix = contents(node.store)[:offset]
            both = min(len(prefix), len(self.acknowledged))
            if prefix[:both] != self.acknowledged[:both]:
                # Noted, not raised: who called may log it and go on.
                self.parted.append(f"{node.id} acknowledges other bytes before {offset}")
            if len(prefix) > len(self.acknowledged):
                self.acknowledged = prefix

        node.ha.on_replicated.append(replicated)

    async def step(self) -> None:
        group, chance = self.group, self.random
        match chance.choice(["write", "write", "write", "cut", "heal", "elect", "wait"]):
            case "write":
                for _ in range(chance.randrange(1, 30)):
                    self.written += 1
                    write(group.master.store, f"{self.written}")
                    if chance.random() < 0.3:
                        await asyncio.sleep(0)
            case "cut":
                slaves = sorted(set(group.nodes) - self.down - {group.master_id})
                if slaves:
                    slave = chance.choice(slaves)
                    self.down.add(slave)
                    await group.nodes[slave].ha.become_fenced()
            case "heal":
                for slave in sorted(self.down - {group.master_id}):
                    await group.follow(slave)
                self.down.clear()
            case "elect":
                able = sorted(group.members - self.down)
                winner = chance.choice(able)
                self.elections += 1
                loser = group.master
                if winner != group.master_id and chance.random() < 0.5:
                    await group.elect(winner, followers=False)  # the loser has not heard of it yet
                    write(loser.store, "lost")
                    await asyncio.sleep(chance.random() * 0.02)
                else:
                    await group.elect(winner, followers=False)
                for node in group.nodes.values():
                    if node.id != winner and node.id not in self.down:
                        await group.follow(node.id)
            case _:
                await asyncio.sleep(chance.random() * 0.05)

    async def end(self) -> None:
        group = self.group
        for node in group.nodes.values():
            if node.id != group.master_id:
                await group.follow(node.id)
        await until(lambda: group.members == frozenset(group.nodes), "all are in the SyncStateSet")
        await group.level()
        logs = {contents(node.store) for node in group.nodes.values()}
        assert len(logs) == 1
        assert self.parted == []
        # All that was not cut is acknowledged in the end, and the story was one: else this proves nothing.
        assert logs.pop() == self.acknowledged
        assert len(self.acknowledged) > 100
        assert self.elections > 1

        def same_epochs() -> bool:
            first, *others = [node.store.epochs.entries for node in group.nodes.values()]
            return all(other == first for other in others)

        # An epoch without a byte reaches a slave with the next frame, which may be a heartbeat.
        await until(same_epochs, "all know the same epochs")


async def tell(group: Group, seed: int, steps: int) -> None:
    story = Story(group, seed)
    for node in group.nodes.values():
        story.watch(node)
    await group.elect(1)
    for _ in range(steps):
        await story.step()
    await story.end()


@pytest.mark.parametrize("seed", range(20))
async def test_random_elections_and_cuts_lose_nothing_acknowledged(seed: int) -> None:
    async with Group(Node(1), Node(2), Node(3)) as group:
        await tell(group, seed, 60)


@pytest.mark.parametrize("seed", range(4))
async def test_the_same_with_the_store_on_disk(seed: int, tmp_path: Path) -> None:
    nodes = []
    for broker_id in (1, 2, 3):
        settings: dict[str, Any] = {
            "store_path": str(tmp_path / str(broker_id)),
            "segment_bytes": 65536,
            "flush_disk_type": "SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH",
        }
        store = MessageStore(OsEnv(), BrokerConfig(**settings), controller_mode=True)
        await store.open()
        nodes.append(Node(broker_id, store, **settings))
    try:
        async with Group(*nodes) as group:
            await tell(group, seed, 60)
            for node in nodes:
                await node.store.caught_up()
                assert node.store.dispatched == node.store.log.end
            counts = {node.store.max_queue_offset("T", 0) for node in nodes}
            assert len(counts) == 1
            assert counts.pop() > 10
            queues = [b"".join(node.store.get("T", 0, 0, 1 << 20, 1 << 26, None).chunks) for node in nodes]
            assert queues[0] == queues[1] == queues[2]
    finally:
        for node in nodes:
            await node.store.close()
