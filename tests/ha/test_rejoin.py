"""The promise after a power failure in a group: the replica that had it joins again, and all are equal.

The disk of one replica is what a crash left before a write of the fixed workload of tests.store; the two
others hold the log their group went on with. Real stores and the real replication run under virtual time.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from chaos.sim.disk import Machine
from chaos.sim.env import SimEnv
from chaos.sim.loop import SimLoop
from chaos.sim.net import Fabric
from ha.service import HaService
from ha.slave.follow import Master
from model.config import BrokerConfig
from model.ids import BrokerId, Epoch, PhysicalOffset
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.plain import broker_ids
from tests.store.crash_workload import KINDS, SETTINGS, Workload, bytes_of, mend, points
from tests.store.support import SEGMENT, config, message, records_of, scrub_all

SEEDS = int(os.environ.get("KEELMQ_CRASH_SEEDS", "2"))
EVERY = max(1, 20 // SEEDS)
"""Of so many crash points of a kind one is followed by a rejoin; with 20 seeds every one is."""
HA_PORT = 10912
MASTER, OTHER, CRASHED = 1, 2, 3
JOIN_S = 30.0


class Replica:
    """One broker's store and replication on its own simulated host."""

    def __init__(self, loop: SimLoop, fabric: Fabric, number: int, disk: FaultyDisk) -> None:
        host = f"127.0.2.{number}"
        self.life = loop.new_life(f"b{number}")
        env = SimEnv(loop, self.life, fabric, Machine(host, 0, lambda: 0), host, seed=number)
        env.disk = disk
        self.number = number
        self.address = f"{host}:{HA_PORT}"
        self.store = MessageStore(env, config(**SETTINGS), controller_mode=True)
        settings = BrokerConfig(
            bind_address=host, ha_listen_port=HA_PORT, segment_bytes=SEGMENT, flush_disk_type="SYNC_FLUSH"
        )
        self.ha = HaService(env, self.store, settings)
        # The workload confirms what it cuts, as a group with a real master may.
        self.ha.next_master = Master(Epoch(0), followed_rocketmq=True)

    async def start(self) -> None:
        await self.store.open()
        await self.ha.start()

    async def stop(self) -> None:
        await self.ha.stop()
        await self.store.close()


class Group:
    """Three replicas in epoch 3, and a Controller that says yes to every proposal."""

    def __init__(self, loop: SimLoop, disks: dict[int, FaultyDisk]) -> None:
        fabric = Fabric(loop, 0)
        self.replicas = {number: Replica(loop, fabric, number, disk) for number, disk in disks.items()}
        self.members = broker_ids({MASTER, OTHER})
        self._set_epoch = 1
        self._loop = loop

    async def run(self, where: str) -> None:
        loop, replicas = self._loop, self.replicas
        for replica in replicas.values():
            await loop.spawn(replica.life, replica.start(), name="start")
        master, crashed = replicas[MASTER], replicas[CRASHED]
        master.store.epochs.append(Epoch(3), master.store.log.end)
        promote = master.ha.become_master(BrokerId(MASTER), Epoch(3), self.members, 1, self._propose)
        await loop.spawn(master.life, promote, name="promote")
        for number in (OTHER, CRASHED):
            replica = replicas[number]
            await loop.spawn(
                replica.life,
                replica.ha.become_slave(BrokerId(number), Epoch(3), master.address),
                name="follow",
            )
        await self._level(where)
        scrub_all(crashed.store)
        await mend(crashed.store, master.store.lookup)
        assert crashed.store.damage.ranges == [], where
        master.store.put(message("after"))
        await self._level(where)
        self._compare(where)
        for replica in replicas.values():
            await loop.spawn(replica.life, replica.stop(), name="stop")

    async def _propose(
        self, members: frozenset[BrokerId], base: int
    ) -> tuple[frozenset[BrokerId], int] | None:
        if base != self._set_epoch:
            return None
        self.members, self._set_epoch = members, self._set_epoch + 1
        return self.members, self._set_epoch

    async def _level(self, where: str) -> None:
        """Wait until all three are in the SyncStateSet and have and dispatched the same."""
        until_s = self._loop.time() + JOIN_S
        while self.members != frozenset(self.replicas) or len(set(self._offsets())) > 1:
            said = f"members {sorted(self.members)}, offsets {self._offsets()}"
            assert self._loop.time() < until_s, f"{where}: {said}, {self.replicas[CRASHED].ha.status()}"
            await asyncio.sleep(0.01)

    def _offsets(self) -> list[int]:
        stores = [replica.store for replica in self.replicas.values()]
        return [at for store in stores for at in (store.log.end, store.confirmed, store.dispatched)]

    def _compare(self, where: str) -> None:
        good, crashed = self.replicas[MASTER].store, self.replicas[CRASHED].store
        begin = crashed.log.min_offset
        assert bytes_of(crashed) == bytes_of(good, begin), f"{where}: the logs differ"
        assert bytes_of(self.replicas[OTHER].store) == bytes_of(good)
        entries = good.epochs.entries
        kept = crashed.epochs.entries
        assert kept
        assert kept == entries[-len(kept) :], f"{where}: {kept}, not {entries}"
        for queue_id in (0, 1):
            first = crashed.min_queue_offset("T", queue_id)
            wanted = [record for record in records_of(good, "T", queue_id) if record.queue_offset >= first]
            assert records_of(crashed, "T", queue_id) == wanted, f"{where}: queue {queue_id} differs"
            # As on becoming master: a slave keeps no table of its own.
            crashed.rebuild_queue_offsets()
            assert crashed.next_offset("T", queue_id) == good.next_offset("T", queue_id), where


def truth_disk(workload: Workload) -> FaultyDisk:
    """The disk of a replica that nothing happened to."""
    env = FaultyEnv()

    async def write() -> None:
        store = MessageStore(env, config(**SETTINGS), controller_mode=True)
        await store.open()
        store.epochs.append(Epoch(1), PhysicalOffset(0))
        store.epochs.append(Epoch(2), PhysicalOffset(workload.cut_at))
        store.append_raw(PhysicalOffset(0), workload.truth)
        store.confirm(store.log.end)
        await store.close()

    asyncio.run(write())
    return env.disk


def rejoin(where: str, crashed: FaultyDisk, truth: FaultyDisk) -> None:
    loop = SimLoop(0)
    try:
        group = Group(loop, {MASTER: truth.copy(), OTHER: truth.copy(), CRASHED: crashed})
        loop.run_until_complete(group.run(where))
    finally:
        loop.close()


@pytest.fixture(scope="module")
def workload() -> Workload:
    return points()


@pytest.mark.sim
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_that_lost_power_joins_again_and_all_are_equal(workload: Workload, kind: str) -> None:
    truth = truth_disk(workload)
    chosen = [point for point in workload.points if point.kind == kind][::EVERY]
    assert chosen
    for point in chosen:
        rejoin(*point.crash(point.number % 7), truth)
    print(f"{len(chosen)} rejoins in {kind}")


@pytest.mark.sim
def test_a_replica_that_keeps_what_its_group_cut_is_found(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_nothing = lambda master, slave, master_end, slave_end: slave_end  # noqa: E731
    monkeypatch.setattr("ha.slave.follow.consistent_point", cut_nothing)
    before_the_cut = next(point for point in workload.points if point.kind == "truncate")
    with pytest.raises(AssertionError, match=r"the logs differ|DamagedRange"):
        rejoin(*before_the_cut.crash(0), truth_disk(workload))
