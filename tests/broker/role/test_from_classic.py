"""The promise of docs/operations.md: a group moves between a life with Controllers and one without, in place.
A replica goes on where its bytes are its master's, and keeps all it has where they are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.service import Broker
from model.codes import Request
from model.ids import Epoch, PhysicalOffset
from store.files.epoch_file import EpochEntry
from tests.broker.helpers import client_of, commit, eventually, running
from tests.broker.logs import log_of, put
from tests.fakes.broker.role import FakeControllers, broker_at, full


async def send(broker: Broker, *texts: str) -> None:
    async with client_of(broker) as client:
        for text in texts:
            assert (await client.send("T", text.encode() * 20)).code == 0


@contextlib.asynccontextmanager
async def classic_pair(path: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master and its slave without Controller, in ``path``/1 and /2."""
    async with running(path / "1", inSyncReplicas=2, brokerId=0) as master:
        keys = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": master.config.ha_address}
        async with running(path / "2", **keys) as slave:
            await eventually(lambda: len(master.ha.members) == 2, "the slave is connected")
            yield master, slave


async def classic_alone(path: Path, *texts: str) -> None:
    async with running(path, brokerId=0) as broker:
        await send(broker, *texts)


@contextlib.asynccontextmanager
async def controlled(path: Path, controllers: FakeControllers, *names: str) -> AsyncIterator[list[Broker]]:
    """The brokers of these directories, the first of them master."""
    brokers = [broker_at(path / name, controllers) for name in names]
    try:
        for number, broker in enumerate(brokers):
            await broker.start()
            wanted = "slave" if number else "master"
            await eventually(lambda b=broker, w=wanted: b.role_state.role == w, f"it is {wanted}")
        yield brokers
    finally:
        for broker in brokers:
            await broker.stop()


async def equal(controllers: FakeControllers, brokers: list[Broker]) -> None:
    await full(controllers, brokers)
    await send(brokers[0], "written since")
    await full(controllers, brokers)
    assert len({log_of(broker) for broker in brokers}) == 1
    assert len({tuple(broker.store.epochs.entries) for broker in brokers}) == 1


@pytest.mark.parametrize("behind", [False, True])
async def test_a_classic_group_goes_on_under_controllers_where_its_logs_end(
    tmp_path: Path, behind: bool
) -> None:
    async with classic_pair(tmp_path) as (master, _):
        await send(master, *(f"m{n}" for n in range(200)))
    if behind:
        await classic_alone(tmp_path / "1", "which the slave lacks")
    async with FakeControllers() as controllers, controlled(tmp_path, controllers, "1", "2") as brokers:
        await equal(controllers, brokers)
        assert [e for e in brokers[1].env.events if e.name in ("truncated", "reseeding")] == []
        assert brokers[1].store.epochs.entries == [EpochEntry(Epoch(1), PhysicalOffset(0))]
        # From now on it is a replica like any other.
        for broker in brokers:
            await broker.stop()
        async with controlled(tmp_path, controllers, "2", "1") as others:
            await equal(controllers, others)


async def test_a_classic_slave_with_other_bytes_keeps_them_under_controllers(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as (master, _):
        await send(master, "common")
    await classic_alone(tmp_path / "1", "one end", "and more than the slave has")
    await classic_alone(tmp_path / "2", "two end")
    async with FakeControllers() as controllers, controlled(tmp_path, controllers, "1", "2") as brokers:
        slave = brokers[1]
        await eventually(lambda: slave.ha.needs_reseed is not None, "it tells")
        assert b"two end" in log_of(slave)
        assert slave.store.epochs.entries == []
        assert controllers.group.members == [brokers[0].role.broker_id]


async def test_a_classic_slave_that_is_longer_than_the_first_master_keeps_what_it_has(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as (master, _):
        await send(master, "common")
    await classic_alone(tmp_path / "2", "only here")
    async with FakeControllers() as controllers, controlled(tmp_path, controllers, "1", "2") as brokers:
        slave = brokers[1]
        await eventually(lambda: slave.ha.needs_reseed is not None, "it tells")
        assert b"only here" in log_of(slave)
        assert controllers.group.members == [brokers[0].role.broker_id]


async def test_what_was_written_in_a_time_without_controllers_is_told_from_other_bytes_of_the_same_epoch(
    tmp_path: Path,
) -> None:
    async with FakeControllers() as controllers:
        async with controlled(tmp_path, controllers, "1", "2") as brokers:
            await equal(controllers, brokers)
        await classic_alone(tmp_path / "1", "one")
        await classic_alone(tmp_path / "2", "two")
        async with controlled(tmp_path, controllers, "1", "2") as brokers:
            slave = brokers[1]
            await eventually(lambda: slave.ha.needs_reseed is not None, "it tells")
            assert b"twotwo" in log_of(slave)
            # Its master leads on in the same epoch, with the set of before, until it has seen nothing of it.
            await eventually(lambda: controllers.group.members == [brokers[0].role.broker_id], "it leaves")


@pytest.mark.parametrize("anew", [True, False])
async def test_a_group_that_lived_without_controllers_for_a_while_goes_on_with_them(
    tmp_path: Path, anew: bool
) -> None:
    """Also a replica that was down in that time and has an end nobody else has: it is cut where the time
    without Controllers began, not where its own log ends. ``anew``: whether the Controllers give a new epoch
    to a master that was restarted; real ones do not, and then its log tells nothing of that place."""

    async with FakeControllers() as controllers:
        async with controlled(tmp_path, controllers, "1", "2", "3") as brokers:
            await equal(controllers, brokers)
            since = brokers[0].store.log.end
            await brokers[2].role.stop()  # else it follows again, and its end is cut
            await brokers[2].fence()
            put(brokers[2], "never acknowledged")
        async with classic_pair(tmp_path) as (master, slave):
            assert master.store.epochs.classic_from == slave.store.epochs.classic_from == since
            await send(master, *(f"c{n}" for n in range(20)))
        async with classic_pair(tmp_path) as (master, _):
            await send(master, "a second start changes nothing")
            assert master.store.epochs.classic_from == since
        controllers.group.epoch += anew
        async with controlled(tmp_path, controllers, "1", "2", "3") as brokers:
            if not anew:
                await eventually(lambda: brokers[2].ha.needs_reseed is not None, "it tells")
                assert b"never acknowledged" in log_of(brokers[2])
            await equal(controllers, brokers if anew else brokers[:2])
            assert brokers[0].store.epochs.entries[-1].start == since
            assert [b.store.epochs.classic_from for b in brokers] == [None] * 3
            assert brokers[0].store.epochs.entries[0].start == 0
            assert [e for e in brokers[1].env.events if e.name == "truncated"] == []


async def test_the_tables_of_an_empty_master_do_not_replace_those_of_a_replica_that_holds_the_log(
    tmp_path: Path,
) -> None:
    async with FakeControllers() as controllers, controlled(tmp_path, controllers, "1", "2") as brokers:
        await equal(controllers, brokers)
        async with client_of(brokers[0]) as client:
            brokers[0].groups.find("cg")
            await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("cg", "T", 1))
        before = brokers[1]
        await eventually(lambda: before.offsets.get("cg", "T", 0) == 1, "the offset is copied")
    for name in ("brokerIdentity", "brokerIdentity.crc"):
        (tmp_path / "2" / name).unlink(missing_ok=True)
    async with FakeControllers() as controllers:
        async with controlled(tmp_path, controllers, "new"):
            controllers.group.epoch = 6
        async with controlled(tmp_path, controllers, "new", "2") as brokers:
            slave = brokers[1]
            await eventually(lambda: slave.ha.needs_reseed is not None, "the slave does not follow")
            await asyncio.sleep(0.5)
            assert "T" in slave.topics.table
            assert slave.offsets.get("cg", "T", 0) == 1


async def test_a_replica_is_filled_from_a_log_whose_first_epoch_begins_behind_its_first_byte(
    tmp_path: Path,
) -> None:
    """As a real broker leaves it that was switched from classic to Controllers: its first epoch starts where
    the log ended then."""

    await classic_alone(tmp_path / "1", *(f"m{n}" for n in range(50)))
    async with FakeControllers() as controllers:
        async with controlled(tmp_path, controllers, "1") as (broker,):
            entries = [EpochEntry(Epoch(1), broker.store.log.end)]
            await send(broker, "first of the epoch")
            await broker.fence()
            broker.store.epochs.replace(entries)
        async with controlled(tmp_path, controllers, "1", "empty") as brokers:
            await equal(controllers, brokers)
