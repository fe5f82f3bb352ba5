"""The promises of a master and a slave without Controller: found by the NameServer, copied, read from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from broker.service import Broker
from model.codes import Request
from model.config import NamesrvConfig
from namesrv.service import NameServer
from runtime.os_env import OsEnv
from tests.broker.helpers import client_of, commit, config_for, eventually, log_records, topic
from tests.ports import free_port_of_broker


@contextlib.asynccontextmanager
async def name_server(env: OsEnv) -> AsyncIterator[tuple[NameServer, dict[str, str]]]:
    """A NameServer, and the keys of brokers that register there."""
    port = free_port_of_broker()
    server = NameServer(env, NamesrvConfig(listen_port=port))
    await server.start()
    try:
        yield server, {"namesrvAddr": f"127.0.0.1:{port}", "registerNameServerPeriod": "100"}
    finally:
        await server.stop()


async def test_a_classic_slave_finds_its_master_copies_all_and_serves_consumers(tmp_path: Path) -> None:
    env = OsEnv(seed=1)
    async with name_server(env) as (namesrv, keys):
        master = Broker(env, config_for(tmp_path / "m", inSyncReplicas=2, brokerId=0, **keys))
        slave = Broker(env, config_for(tmp_path / "s", brokerRole="SLAVE", brokerId=1, **keys))
        try:
            await slave.start()
            assert slave.status()["role"] == "slave"
            await master.start()
            await eventually(lambda: len(master.ha.members) == 2, "the slave is connected")
            await eventually(
                lambda: slave.topics.version == master.topics.version, "the slave copied the tables"
            )
            async with client_of(master) as client, client_of(slave) as reader:
                assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
                assert slave.topics.table["T"] == master.topics.table["T"], "answered means copied"
                for number in range(10):
                    assert (await client.send("T", b"m%d" % number)).code == 0
                    assert slave.store.log.end == master.store.log.end
                assert log_records(slave) == log_records(master)
                read = await reader.pull_until("T", 0, 10)
                assert [r.body for r in read] == [b"m%d" % number for number in range(10)]
                assert (await reader.send("T")).code != 0, "writes go to the master"
                master.groups.find("cg")
                await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("cg", "T", 7))
                await eventually(lambda: slave.offsets.get("cg", "T", 0) == 7, "the offset is copied")
                assert namesrv.status()["brokers"] == {
                    "broker-t": {"0": master.config.address, "1": slave.config.address}
                }
                await master.stop()
                assert [r.body for r in await reader.pull_until("T", 9, 1)] == [b"m9"]
        finally:
            await slave.stop()
            await master.stop()


async def test_the_tables_of_an_empty_master_do_not_replace_those_of_a_slave_that_holds_the_log(
    tmp_path: Path,
) -> None:
    """The master's disk was replaced: log, topics and offsets of the group are at the slave only."""

    env = OsEnv(seed=1)
    async with name_server(env) as (_, keys):
        port = free_port_of_broker()
        master = Broker(env, config_for(tmp_path / "m", listenPort=port, inSyncReplicas=2, **keys))
        slave = Broker(
            env,
            config_for(tmp_path / "s", brokerRole="SLAVE", brokerId=1, slaveSyncMetadataPeriod=100, **keys),
        )
        try:
            await slave.start()
            await master.start()
            await eventually(lambda: len(master.ha.members) == 2, "the slave is connected")
            async with client_of(master) as client:
                assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
                assert (await client.send("T")).code == 0
                master.groups.find("cg")
                await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("cg", "T", 1))
            await eventually(lambda: slave.offsets.get("cg", "T", 0) == 1, "the offset is copied")
            await master.stop()
            master = Broker(env, config_for(tmp_path / "new", listenPort=port, **keys))
            await master.start()
            await eventually(lambda: slave.ha.needs_reseed is not None, "the slave does not follow")
            await asyncio.sleep(0.5)  # time for some more requests for tables
            assert slave.offsets.get("cg", "T", 0) == 1
            assert "T" in slave.topics.table
            assert slave.store.log.end > 0
        finally:
            await slave.stop()
            await master.stop()


async def test_a_slave_stays_with_a_master_that_serves_it_when_another_name_server_names_another(
    tmp_path: Path,
) -> None:
    env = OsEnv(seed=1)
    ports = free_port_of_broker(), free_port_of_broker()
    servers = [NameServer(env, NamesrvConfig(listen_port=port)) for port in ports]
    for server in servers:
        await server.start()
    masters = [
        Broker(env, config_for(tmp_path / f"m{port}", namesrvAddr=f"127.0.0.1:{port}")) for port in ports
    ]
    both = ";".join(f"127.0.0.1:{port}" for port in ports)
    keys = {"namesrvAddr": both, "registerNameServerPeriod": "100"}
    slave = Broker(env, config_for(tmp_path / "s", brokerRole="SLAVE", brokerId=1, **keys))
    told: list[tuple[str, str]] = []
    slave.registration.on_master.append(
        lambda master, ha: told.append((master, slave.ha.status()["following"]["master"]))
    )
    try:
        for master in masters:
            await master.start()
        await slave.start()
        await eventually(lambda: slave.ha.follows, "it follows one of them")
        followed = slave.ha.status()["following"]["master"]
        told.clear()
        await eventually(
            lambda: len(told) > 6 and len({name for name, _ in told}) == 2, "it hears of both again"
        )
        assert {at_the_time for _, at_the_time in told} == {followed}
        first = next(master for master in masters if master.config.ha_address == followed)
        await first.stop()
        await eventually(lambda: slave.ha.status()["following"]["master"] != followed, "that one is gone")
    finally:
        await slave.stop()
        for master in masters:
            await master.stop()
        for server in servers:
            await server.stop()


async def test_name_servers_that_name_different_dead_masters_do_not_have_a_slave_register_in_circles(
    tmp_path: Path,
) -> None:
    """Each answer to a registration names a master: were that a reason to register, it would never end."""

    slave = Broker(OsEnv(seed=1), config_for(tmp_path, brokerRole="SLAVE", brokerId=1))
    registered: list[None] = []
    try:
        await slave.start()
        slave.role.on_change.append(lambda: registered.append(None))
        for port in (1, 2, 1, 2):
            slave.role.on_ha_address(f"127.0.0.1:{port}", f"127.0.0.1:{port + 10}")
            await eventually(
                lambda port=port: slave.role_state.master_address == f"127.0.0.1:{port}",
                "it looks for the one it heard of last",
            )
        assert registered == []
    finally:
        await slave.stop()
