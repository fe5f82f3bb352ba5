"""The promise about a full disk: messages are refused, roles and tables still change, service comes back."""

from __future__ import annotations

import asyncio
import errno

import pytest

from model.errors import DiskError
from model.ids import Epoch
from runtime.env import DiskUsage, write_file
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import fill, message, opened, records_of
from tests.waiting import until

MIB = 1 << 20


class SmallDisk(FaultyDisk):
    """A file system of ``capacity`` bytes: files that grow beyond it fail with ENOSPC."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.others = 0
        self.fail = self._full

    @property
    def used(self) -> int:
        return self.others + sum(len(node.cache) for node in self.nodes.values())

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(self.capacity, self.free_bytes)

    def _full(self, what: str, path: str) -> int | None:
        self.free_bytes = max(self.capacity - self.used, 0)
        grows = what == "allocate" or (what in ("pwrite", "truncate") and not self._has_blocks(path))
        return errno.ENOSPC if grows and self.free_bytes == 0 else None

    def _has_blocks(self, path: str) -> bool:
        return path in self.nodes and len(self.nodes[path].cache) > 0


async def test_a_full_disk_refuses_messages_but_not_an_election_and_serves_again_with_space() -> None:
    env = FaultyEnv(SmallDisk(8 * MIB))
    disk = env.disk
    assert isinstance(disk, SmallDisk)
    async with opened(env, disk_reserve_megabytes=4) as store:
        await fill(store, 20)
        assert disk.exists("/store/reserve")
        disk.others = disk.capacity  # somebody else fills the disk
        disk.check("pread", "")
        await until(lambda: store.why_not_writable is not None)
        assert "role changes" in (store.why_not_writable or "")
        assert not disk.exists("/store/reserve")
        with pytest.raises(DiskError, match="role changes"):
            store.put(message("refused"))
        disk.others -= 4 * MIB  # what the reserve gave back
        store.epochs.append(Epoch(7), store.log.end)
        write_file(disk, "/store/topics.json", b"{}")
        assert len(records_of(store)) == 10
        await asyncio.sleep(0.05)
        assert store.why_not_writable is not None  # its own reserve is no reason to go on
        disk.others = 0
        disk.check("pread", "")
        await until(lambda: store.why_not_writable is None)
        assert disk.exists("/store/reserve")
        store.put(message("taken"))


async def test_a_segment_that_finds_no_space_gives_the_reserve_free() -> None:
    env = FaultyEnv(SmallDisk(1 << 40))
    disk = env.disk
    assert isinstance(disk, SmallDisk)
    async with opened(env, disk_reserve_megabytes=1) as store:
        await fill(store, 5)
        disk.fail = lambda what, path: errno.ENOSPC if what == "allocate" else None
        with pytest.raises(DiskError, match="No space"):
            await _until_full(store)
        assert not disk.exists("/store/reserve")
        assert store.why_not_writable is not None
        disk.fail = lambda what, path: None
        await until(lambda: store.why_not_writable is None and disk.exists("/store/reserve"))
        await fill(store, 5)


async def _until_full(store: MessageStore) -> None:
    for _ in range(200):
        await fill(store, 1)


async def test_without_a_reserve_there_is_no_file() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 1)
        assert not env.disk.exists("/store/reserve")
