"""The promise of broker.discovery.registration: each NameServer that lives knows this broker as it is now."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from broker.discovery.registration import NO_ID, Registration
from broker.tables.topics import DELETED
from model.codes import Request
from model.config import BrokerConfig
from model.topic import DataVersion, TopicConfig
from remoting.bodies import loads
from remoting.codec import Command
from remoting.service import Connection, RemotingClient, RemotingServer
from runtime.os_env import OsEnv
from tests.ports import free_port_of_broker
from tests.waiting import until


class FakeNameServer:
    def __init__(self) -> None:
        self.port = free_port_of_broker()
        self.requests: list[Command] = []
        self.reply_ext: dict[str, str] = {}
        self.refuse = 0
        self._server: RemotingServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeNameServer:
        self._server = RemotingServer(OsEnv(), "namesrv", self._handle)
        await self._server.start("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self._server.stop()

    @property
    def connections(self) -> list[Connection]:
        assert self._server is not None
        return list(self._server.connections)

    async def _handle(self, connection: Connection, request: Command) -> Command | None:
        self.requests.append(request)
        if self.refuse:
            self.refuse -= 1
            return request.reply(1, remark="register broker failed")
        return request.reply(ext=self.reply_ext)

    def ids(self) -> list[tuple[int, str]]:
        return [(request.code, request.ext["brokerId"]) for request in self.requests]


class Broker:
    """What a Registration asks: an id and the topics."""

    def __init__(self, *addresses: str, period_ms: int = 600_000, group_address: str = "") -> None:
        self.id = 1
        self.is_sole_master = True
        self.listening = True
        self.epoch = 3
        self.config = BrokerConfig(
            namesrv_addr=";".join(addresses),
            broker_name="b",
            register_namesrv_ms=period_ms,
            group_address=group_address,
        )
        self.client = RemotingClient(
            OsEnv(), "broker", on_close=lambda connection: self.registration.lost(connection.address)
        )
        self.registration = Registration(
            OsEnv(seed=1),
            self.config,
            self.client,
            self.topics,
            lambda: self.id,
            is_sole_master=lambda: self.is_sole_master,
            listening=lambda: self.listening,
        )

    def topics(self) -> dict[str, Any]:
        names = ("T", "TBW102")
        return {
            "dataVersion": DataVersion(self.epoch, 5, 1).to_json(),
            "topicConfigTable": {name: TopicConfig(name).to_json() for name in names},
            DELETED: {"Gone": {"0": 7}},
        }

    async def __aenter__(self) -> Broker:
        await self.registration.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.registration.stop()
        await self.client.close()


REGISTER, UNREGISTER = int(Request.REGISTER_BROKER), int(Request.UNREGISTER_BROKER)


async def test_a_registration_has_what_a_nameserver_needs() -> None:
    async with FakeNameServer() as server, Broker(server.address) as broker:
        await until(lambda: server.requests)
        request = server.requests[0]
        assert request.ext == {
            "clusterName": "DefaultCluster",
            "brokerName": "b",
            "brokerAddr": broker.config.address,
            "brokerId": "1",
            "haServerAddr": broker.config.ha_address,
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(crc32(request.body) & 0x7FFFFFFF),
        }
        wrapper = loads(request.body)["topicConfigSerializeWrapper"]
        assert wrapper["dataVersion"] == {"counter": 1, "stateVersion": 3, "timestamp": 5}
        assert sorted(wrapper["topicConfigTable"]) == ["T", "TBW102"]
        assert DELETED not in wrapper  # a matter of this group's brokers
        assert wrapper["mappingDataVersion"] == {"counter": 0, "stateVersion": 0, "timestamp": 0}


async def test_nameservers_that_the_configuration_names_now_are_told_and_others_are_left() -> None:
    async with FakeNameServer() as one, FakeNameServer() as other, Broker(one.address) as broker:
        await until(lambda: broker.registration.status() == {one.address: 1})
        broker.config.namesrv_addr = other.address
        broker.registration.reconfigure()
        await until(lambda: broker.registration.status() == {other.address: 1})
        await until(lambda: (UNREGISTER, "1") in one.ids())


async def test_a_nameserver_that_is_named_often_is_one_and_can_be_left() -> None:
    async with FakeNameServer() as server, Broker(server.address, server.address) as broker:
        tasks = broker.registration._tasks._tasks
        await until(lambda: broker.registration.status() == {server.address: 1})
        assert len(tasks) == 1
        for named in (";".join([server.address] * 3), server.address):
            broker.config.namesrv_addr = named
            broker.registration.reconfigure()
            assert len(tasks) == 1
        broker.config.namesrv_addr = ""
        broker.registration.reconfigure()
        await until(lambda: not tasks)
        assert server.ids()[-1] == (UNREGISTER, "1")


async def test_a_change_of_role_is_told_at_once_and_a_stop_unregisters() -> None:
    async with FakeNameServer() as server:
        async with Broker(server.address) as broker:
            await until(lambda: server.ids() == [(REGISTER, "1")])
            broker.id = 0
            broker.registration.soon()
            await until(lambda: broker.registration.status() == {server.address: 0})
            assert server.ids()[-1] == (REGISTER, "0")
        assert server.ids()[-1] == (UNREGISTER, "0")


async def test_a_fenced_broker_is_registered_nowhere() -> None:
    async with FakeNameServer() as server, Broker(server.address) as broker:
        await until(lambda: server.ids() == [(REGISTER, "1")])
        broker.id = NO_ID
        broker.registration.soon()
        await until(lambda: server.ids()[-1] == (UNREGISTER, "1"))
        await until(lambda: broker.registration.status() == {server.address: None})
        broker.id = 2
        broker.registration.soon()
        await until(lambda: server.ids()[-1] == (REGISTER, "2"))


async def test_a_master_registers_the_address_of_its_group_and_never_unregisters_it() -> None:
    async with (
        FakeNameServer() as server,
        Broker(server.address, group_address="10.9.9.9:10000") as broker,
    ):
        own = broker.config.address

        def told() -> list[tuple[int, str, str]]:
            return [(r.code, r.ext["brokerId"], r.ext["brokerAddr"]) for r in server.requests]

        await until(lambda: told() == [(REGISTER, "1", own)])
        broker.id = 0
        broker.registration.soon()
        await until(lambda: len(told()) == 3)
        # Under its former id: a NameServer that tells of the smallest one saw nobody with 0 leave.
        assert told()[1:] == [(REGISTER, "0", "10.9.9.9:10000"), (UNREGISTER, "1", own)]
        (master,) = server.connections
        broker.id = 1
        broker.registration.soon()
        await until(lambda: told()[-1] == (REGISTER, "1", own))
        assert (UNREGISTER, "1", "10.9.9.9:10000") not in told()
        await until(lambda: master not in server.connections, "the entry went with its connection")


async def test_a_master_that_begins_to_listen_at_the_groups_address_takes_its_own_back_not_as_0() -> None:
    async with FakeNameServer() as server:
        broker = Broker(server.address, group_address="10.9.9.9:10000")
        broker.id, broker.listening = 0, False
        async with broker:
            await until(lambda: server.ids() == [(REGISTER, "0")])
            broker.listening = True
            broker.registration.soon()
            await until(lambda: len(server.ids()) == 3)
        assert server.ids()[1:] == [(REGISTER, "0"), (UNREGISTER, "1")]


async def test_a_master_that_may_have_been_replaced_does_not_register_the_address_of_the_group() -> None:
    async with FakeNameServer() as server:
        broker = Broker(server.address, group_address="10.9.9.9:10000", period_ms=10)
        broker.id, broker.is_sole_master = 0, False
        async with broker:
            await asyncio.sleep(0.05)
            assert server.requests == []
            broker.is_sole_master = True
            await until(lambda: bool(server.requests))


async def test_a_dead_nameserver_delays_no_other_and_gets_its_entry_when_it_comes() -> None:
    late = FakeNameServer()
    async with FakeNameServer() as server, Broker(late.address, server.address) as broker:
        await until(lambda: server.requests)
        assert not late.requests
        async with late:
            await until(lambda: late.requests, "tried again long before the period is over")
            # It has the request; its answer may be on the way yet.
            await until(lambda: broker.registration.status() == {late.address: 1, server.address: 1})


async def test_a_nameserver_that_restarts_is_told_again_at_once() -> None:
    server = FakeNameServer()
    async with Broker(server.address):
        for turn in (1, 2):
            async with server:
                await until(lambda turn=turn: len(server.requests) >= turn)  # type: ignore[misc]


async def test_a_refusal_is_tried_again_soon() -> None:
    server = FakeNameServer()
    server.refuse = 2
    async with server, Broker(server.address) as broker:
        await until(lambda: broker.registration.status() == {server.address: 1})
        assert len(server.requests) == 3


def test_an_error_that_nobody_foresaw_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [RuntimeError("nobody foresaw this")]

    def broken(self: Broker) -> dict[str, Any]:
        if failures:
            raise failures.pop()
        return topics(self)

    async def run() -> None:
        async with FakeNameServer() as server, Broker(server.address) as broker:
            await until(lambda: broker.registration.status() == {server.address: 1})
            assert not failures

    topics = Broker.topics
    monkeypatch.setattr(Broker, "topics", broken)
    asyncio.run(run())


async def test_each_period_refreshes_the_entry() -> None:
    async with FakeNameServer() as server, Broker(server.address, period_ms=20):
        await until(lambda: len(server.requests) >= 4)


async def test_a_slave_hears_where_its_master_is() -> None:
    heard: list[tuple[str, str]] = []
    server = FakeNameServer()
    server.reply_ext = {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    async with server, Broker(server.address) as broker:
        broker.registration.on_master.append(lambda *found: heard.append(found))
        await until(lambda: heard)
        assert heard == [("10.0.0.1:10911", "10.0.0.1:10912")]


async def test_a_stop_does_not_wait_for_a_dead_nameserver_nor_call_it_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeNameServer()
    broker = Broker(server.address)
    async with server:
        await broker.registration.start()
        await until(lambda: broker.registration.status() == {server.address: 1})
    async with asyncio.timeout(3):
        await broker.registration.stop()
        await broker.registration.stop()
    await broker.client.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_master_that_was_replaced_while_it_connected_does_not_take_the_groups_address_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real NameServer believes whoever registers an address last, also one of an older epoch."""

    async with FakeNameServer() as server:
        broker = Broker(server.address, group_address="127.0.0.1:10900")
        broker.id, connect = 0, broker.client.connection

        async def slowly(address: str, timeout_s: float = 3.0) -> Connection:
            connection = await connect(address, timeout_s)
            if broker.id == 0:
                broker.id, broker.is_sole_master = 2, False
            return connection

        monkeypatch.setattr(broker.client, "connection", slowly)
        async with broker:
            await until(lambda: bool(server.requests), "it registers")
            assert server.ids() == [(Request.REGISTER_BROKER, "2")]
