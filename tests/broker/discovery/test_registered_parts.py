"""The promise of broker.discovery.registration: one change of a large table costs a NameServer one entry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.discovery.registration import Registration as BrokerRegistration
from broker.discovery.registration import changes_of
from broker.tables.topics import Topics
from model.codes import Request
from model.config import BrokerConfig, NamesrvConfig
from model.topic import TopicConfig
from namesrv import service as module
from namesrv.codec import parse_registration
from namesrv.core import Registration
from namesrv.service import NameServer
from remoting.codec import Command
from remoting.service import Connection, RemotingClient
from runtime.os_env import OsEnv
from runtime.turns import Slice
from tests.broker.helpers import client_of, running
from tests.ports import free_port_of_broker
from tests.waiting import until

MANY = 150


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Each registration that came: was it a part, and of how many topics?"""
    found: list[tuple[bool, int]] = []

    async def parse(request: Command, slice_: Slice) -> Registration:
        registration = await parse_registration(request, slice_)
        found.append((registration.part, len(registration.topics)))
        return registration

    monkeypatch.setattr(module, "parse_registration", parse)
    return found


def knows(server: NameServer, topic: str) -> bool:
    return server._table.route(topic) is not None


async def test_a_change_of_a_large_table_is_registered_alone(
    tmp_path: Path, heard: list[tuple[bool, int]]
) -> None:
    config = NamesrvConfig(listen_port=free_port_of_broker(), delete_topic_with_registration=True)
    server = NameServer(OsEnv(seed=1), config)
    await server.start()
    async with running(tmp_path, namesrvAddr=server.address) as broker, client_of(broker) as client:
        await until(lambda: heard)
        broker.topics.put(*(TopicConfig(f"T{n}") for n in range(MANY)))
        await until(lambda: knows(server, "T0"))
        heard.clear()
        broker.topics.put(TopicConfig("One"))
        await until(lambda: knows(server, "One"))
        assert heard == [(True, 1)]
        assert knows(server, "T1"), "what a part does not name stays"
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T1"})).code == 0
        await until(lambda: not knows(server, "T1"))
        assert heard[-1] == (True, 0), "a deletion is told alone, too"
        assert knows(server, "T2")

        # A NameServer that knows nothing is told everything, and one that forgot refuses a part.
        await server.stop()
        server = NameServer(OsEnv(seed=2), config)
        await server.start()
        await until(lambda: knows(server, "T5"))
        assert heard[-1] == (False, len(broker.topics.table))
        server._table.unregister(broker.config.address)
        assert not knows(server, "T5")
        broker.topics.put(TopicConfig("Two"))
        await until(lambda: knows(server, "Two"))
        assert heard[-2:] == [(True, 1), (False, len(broker.topics.table))]
        assert knows(server, "T5")
    await server.stop()


async def test_a_small_table_is_registered_as_a_whole(tmp_path: Path, heard: list[tuple[bool, int]]) -> None:
    server = NameServer(OsEnv(seed=1), NamesrvConfig(listen_port=free_port_of_broker()))
    await server.start()
    async with running(tmp_path, namesrvAddr=server.address) as broker:
        await until(lambda: heard)
        broker.topics.put(TopicConfig("One"))
        await until(lambda: knows(server, "One"))
        assert {part for part, _ in heard} == {False}
    await server.stop()


class Original:
    """A NameServer of RocketMQ, as far as registrations go: it knows nothing of parts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bodies: list[set[str]] = []
        self.marked = 0
        known = parse_registration

        async def parse(request: Command, slice_: Slice) -> Registration:
            self.marked += "keelmqPart" in request.ext
            request.ext.pop("keelmqPart", None)
            found = await known(request, slice_)
            found.gone = []
            self.bodies.append(set(found.topics))
            return found

        async def register(server: NameServer, connection: Connection, request: Command) -> Command:
            answer = await registered(server, connection, request)
            answer.ext.pop("keelmqPart", None)
            return answer

        registered = NameServer._register
        monkeypatch.setattr(module, "parse_registration", parse)
        monkeypatch.setattr(NameServer, "_register", register)


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_nameserver_of_rocketmq_is_told_what_changed_alone_unless_it_forgets_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """As the original broker does it (registerIncrementBrokerData), and the whole table now and then."""
    original = Original(monkeypatch)
    server = NameServer(
        OsEnv(seed=1),
        NamesrvConfig(listen_port=free_port_of_broker(), delete_topic_with_registration=forgets),
    )
    await server.start()
    keys = {"registerNameServerPeriod": "1000", "enableSingleTopicRegister": str(forgets).lower()}
    async with running(tmp_path, namesrvAddr=server.address, **keys) as broker:
        await until(lambda: original.bodies)
        broker.topics.put(*(TopicConfig(f"T{n}") for n in range(MANY)))
        await until(lambda: knows(server, "T0"))
        before = len(original.bodies)
        broker.topics.put(TopicConfig("One"), TopicConfig("T3", 9, 9))
        await until(lambda: knows(server, "One"))
        everything = set(broker.topics.table)
        assert original.bodies[before] == (everything if forgets else {"One", "T3"})
        assert all(knows(server, name) for name in everything)
        await until(lambda: original.bodies[before + 1 :])
        assert original.bodies[-1] == everything, "by and by it is told everything again"
        assert original.marked == 0
    await server.stop()


async def test_a_slave_registers_no_table_for_a_change_it_copied(
    tmp_path: Path, heard: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three thousand topics of two slaves at three NameServers, for each change of one: nobody reads them."""
    server = NameServer(OsEnv(seed=1), NamesrvConfig(listen_port=free_port_of_broker()))
    await server.start()
    async with running(tmp_path, namesrvAddr=server.address) as broker:
        await until(lambda: heard)
        await asyncio.sleep(0.1)
        heard.clear()
        monkeypatch.setattr(type(broker.role_state), "is_master", False)
        broker.topics.put(TopicConfig("Copied"))
        await asyncio.sleep(0.2)
        assert heard == []
        monkeypatch.undo()
        monkeypatch.setattr(module, "parse_registration", parse_registration)
        broker.topics.put(TopicConfig("Own"))
        await until(lambda: knows(server, "Own"))
    await server.stop()


class Member:
    """One broker of a group, as far as registrations go, with a large table."""

    def __init__(self, namesrv: str, port: int, broker_id: int) -> None:
        self.id = broker_id
        self.config = BrokerConfig(namesrv_addr=namesrv, broker_name="b", listen_port=port)
        self.topics = Topics(self.config, lambda: 0)
        self.topics.put(*(TopicConfig(f"T{n}") for n in range(MANY)))
        self.client = RemotingClient(OsEnv(), "broker")
        self.registration = BrokerRegistration(
            OsEnv(seed=1),
            self.config,
            self.client,
            self.topics.to_text,
            lambda: self.id,
            changes=changes_of(self.topics),
        )

    def to_epoch(self, epoch: int, broker_id: int) -> None:
        self.id = broker_id
        self.topics.set_epoch(epoch)
        self.registration.soon()

    async def __aenter__(self) -> Member:
        await self.registration.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.registration.stop()
        await self.client.close()


async def test_a_slave_that_becomes_master_says_so_before_it_tells_of_all_topics(
    heard: list[tuple[bool, int]],
) -> None:
    """Clients wait for the route: 6 MB of 20,000 topics took three NameServers more than a second."""
    server = NameServer(OsEnv(seed=1), NamesrvConfig(listen_port=free_port_of_broker()))
    await server.start()

    def brokers() -> dict[str, str]:
        found: dict[str, str] = server.status()["brokers"].get("b", {})
        return found

    ports = free_port_of_broker(), free_port_of_broker()
    async with Member(server.address, ports[0], 0) as former, Member(server.address, ports[1], 1) as other:
        await until(lambda: len(heard) == 2 and len(brokers()) == 2)
        other.to_epoch(1, 1)
        await until(lambda: len(heard) >= 3)
        assert heard[2] == (True, 0), "a slave whose table is known tells of no topic"
        other.topics.put(TopicConfig("Own", 3, 3), TopicConfig("T3", 5, 5))
        other.to_epoch(2, 0)
        await until(lambda: len(heard) >= 4)
        await until(lambda: brokers()["0"] == other.config.address)
        assert heard[3] == (True, 0)
        assert knows(server, "T1"), "the topics of the group stay"
        await until(lambda: knows(server, "Own"))
        assert heard[4] == (False, len(other.topics.table))

        def queues_of_t3() -> list[int]:
            route = server._table.route("T3")
            return [] if route is None else [one["readQueueNums"] for one in route["queueDatas"]]

        # The topics of a long registration count in slices, one after the other.
        await until(lambda: queues_of_t3()[:1] == [5])  # what the former master had not told counts
        former.to_epoch(2, 2)
        await until(lambda: brokers().get("2") == former.config.address)
        assert brokers()["0"] == other.config.address
    await server.stop()
