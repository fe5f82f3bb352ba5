"""A broker whose tables are as full as the default configuration admits, in this process, and its clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

from bench.turn_cases.measure import Ask, Peer, Site, until
from broker.context import BrokerContext
from broker.requests.transactions import DISCARDED_TOPIC
from broker.service import Broker
from broker.state.clients import Client
from broker.state.locks import LOCK_LIVES_MS
from broker.tables.modes import MODES_MAX, POP, RequestMode
from broker.tables.topics import DELETED_MAX, QUEUES_MAX
from model.acl.directory import ENTRIES_MAX, USERS_MAX
from model.acl.policies import User, policies_of
from model.codes import Request
from model.config import BrokerConfig
from model.topic import SubscriptionGroupConfig, TopicConfig
from remoting.codec import Command, head_of
from remoting.service import Connection
from runtime.os_env import OsEnv
from store.files.record import NewMessage

WIDE: Final = "wide"
"""A topic with as many queues as one can have."""
LONG: Final = "long"
"""A topic whose queue 0 has ``MESSAGES`` short messages."""
HEAVY: Final = "heavy"
"""A topic of ``HEAVY_MESSAGES`` messages of maxMessageSize with one key."""
STATS: Final = "BenchmarkTest"
"""1,024 queues with a message each."""
MANY: Final = "many"
"""A group with ``MEMBERS`` members, and offsets of every queue of WIDE and of every topic."""
WANTS: Final = "wants"
"""A group with as many subscriptions as a heartbeat holds."""
KEY: Final = "K"
MIB: Final = 1 << 20
BODY_BYTES: Final = 4 * MIB
MESSAGES: Final = 100_000
HEAVY_MESSAGES: Final = 64
COUNTERS: Final = 100_000
LOCKS: Final = 100_000
MEMBERS: Final = 10_000
SUBSCRIPTIONS: Final = 5000
TIMED_TOPICS: Final = 2000
HALVES: Final = 2000
ENTRIES: Final = 50
OPENED: Final = {"recallMessageEnable": "true", "enableLmq": "true", "enableMultiDispatch": "true"}
"""Doors that are closed by default: behind them is work as well."""
PROPERTIES: Final = f"KEYS\x01{KEY}\x02TAGS\x01t\x02UNIQ_KEY\x010123456789ABCDEF0123456789ABCDEF\x02"


def message(topic: str, queue_id: int, body: bytes, properties: str = PROPERTIES) -> NewMessage:
    return NewMessage(topic, queue_id, 0, 0, 1, bytes(8), bytes(8), 0, 0, body, properties)


class Member:
    """A connection as far as tables and those that tell members something need one. It answers at once."""

    closed = False
    goes_first = False

    def __init__(self, number: int) -> None:
        self.remote = f"10.0.{number >> 8}.{number & 255}:1024"
        self.attributes: dict[str, Any] = {}

    def oneway(self, command: Command) -> None:
        head_of(command)  # a long body is not copied for each: it is handed to the system in pieces

    async def call(self, command: Command, timeout_s: float) -> Command:
        await asyncio.sleep(0)
        head_of(command)
        return command.reply(body=b'{"messageQueueTable":{}}')

    def close(self) -> None:
        """Nobody waits at the other end."""


class BrokerSite(Site):
    """One broker, filled."""

    def __init__(self, path: Path, share: float = 1.0) -> None:
        port = free_port()
        super().__init__(port, share)
        self.config = BrokerConfig.from_mapping(
            {"storePathRootDir": str(path), "listenPort": str(port), "enableFastPort": "false", **OPENED}
        )
        self.env = OsEnv(seed=1)
        self.broker = Broker(self.env, self.config)
        # Users are answered, as with ACL 2.0; the port was made without, and asks for no signature.
        self.broker.acl.gate.authenticates = True
        self.heavy: list[int] = []
        self.discarded = 0
        self.held: list[Peer] = []
        self.heartbeaters: list[Peer] = []

    @property
    def context(self) -> BrokerContext:
        return self.broker.context

    @property
    def codes(self) -> set[int]:
        return set(self.broker.processors.handlers)

    def done(self, peer: Peer) -> None:
        super().done(peer)
        for one in self.held:
            one.close()
        self.held.clear()

    async def ask(self, peer: Peer, code: int, ask: Ask) -> Command:
        found = await asyncio.to_thread(peer.exchange, code, ask)
        assert found is not None, f"no answer to {code}"
        return found

    async def fill(self) -> None:
        self._topics()
        self._offsets()
        self._clients()
        self._locks_and_counters()
        self._users()
        await self._messages()
        await self._waiting()

    def _topics(self) -> None:
        context, now_ms = self.context, self.env.monotonic_ms()
        count = self.size(self.config.auto_topics_max)
        context.topics.put(
            TopicConfig(WIDE, QUEUES_MAX, QUEUES_MAX),
            TopicConfig(LONG, 8, 8),
            TopicConfig(HEAVY, 8, 8),
            TopicConfig(DISCARDED_TOPIC, 1, 1),
            *(TopicConfig(f"topic{n:05}", 8, 8) for n in range(count)),
        )
        groups = self.size(self.config.auto_groups_max)
        context.groups.put(
            *(SubscriptionGroupConfig(name) for name in (MANY, WANTS)),
            *(SubscriptionGroupConfig(f"group{n:05}") for n in range(groups)),
        )
        gone = dict.fromkeys(range(8), 0)
        for n in range(self.size(DELETED_MAX)):
            context.topics._deleted.table[f"gone{n:05}"] = dict(gone)
        context.topics._set_all_starts()
        context.groups._forbidden = {f"group{n:05}": {"topic00000": 4} for n in range(groups)}
        for n in range(self.size(MODES_MAX)):
            context.groups.modes.put(f"topic{n:05}", "group00000", RequestMode(POP, 1))
        assert now_ms >= 0

    def _offsets(self) -> None:
        offsets = self.context.offsets
        for queue_id in range(self.size(QUEUES_MAX)):
            offsets.commit(MANY, WIDE, queue_id, 0)
        for n in range(self.size(self.config.auto_topics_max)):
            offsets.commit(MANY, f"topic{n:05}", 0, 0)
        for n in range(self.size(self.config.auto_groups_max)):
            offsets.commit(f"group{n:05}", "topic00000", 0, 0)
        for queue_id in range(1024):
            offsets.commit(MANY, STATS, queue_id, 1)

    def _clients(self) -> None:
        clients, now_ms = self.context.clients, self.env.monotonic_ms()
        subscriptions = [subscription(f"topic{n:05}") for n in range(self.size(SUBSCRIPTIONS))]
        for n in range(self.size(MEMBERS)):
            member = Client(f"client{n:05}", cast(Connection, Member(n)), "JAVA", 401, now_ms + 1e9)
            clients.consumer({"groupName": MANY, "subscriptionDataSet": [subscription(STATS)]}, member)
            clients.consumer({"groupName": f"group{n:05}", "subscriptionDataSet": []}, member)
            clients.producer(MANY, member)
            clients.producer(f"group{n:05}", member)
        one = Client("wanting", cast(Connection, Member(65535)), "JAVA", 401, now_ms + 1e9)
        clients.consumer({"groupName": WANTS, "subscriptionDataSet": subscriptions}, one)

    def _locks_and_counters(self) -> None:
        context, now_ms = self.context, self.env.monotonic_ms()
        held = [("b", "T", n) for n in range(self.size(LOCKS) - 8192)]
        context.locks.lock("holder", "c", held, now_ms + 100 * LOCK_LIVES_MS)
        for n in range(self.size(COUNTERS)):
            context.stats.counters.add("GROUP_GET_NUMS", f"topic{n:05}@{MANY}", 1, now_ms)

    def _users(self) -> None:
        directory = self.context.trust.directory
        policies = policies_of({"policies": [{"policyType": "Custom", "entries": entries(ENTRIES)}]})
        for n in range(min(self.size(USERS_MAX), USERS_MAX - 8)):
            name = f"user{n:05}"
            directory.users[name] = User(name, "password")
            directory.acls[name] = policies
        assert ENTRIES <= ENTRIES_MAX

    async def _messages(self) -> None:
        store = self.context.store
        for at in range(0, self.size(MESSAGES), 1000):
            store.put([message(LONG, 0, b"x" * 32) for _ in range(min(1000, self.size(MESSAGES) - at))])
            await asyncio.sleep(0)
        for queue_id in range(min(1024, self.size(1024))):
            store.put([message(STATS, queue_id, b"x")])
            await asyncio.sleep(0)
        body = bytes(BODY_BYTES - 1024)
        for _ in range(self.size(HEAVY_MESSAGES)):
            (put,) = store.put([message(HEAVY, 0, body, f"{PROPERTIES}{filler(31 * 1024)}")])
            self.heavy.append(put.physical_offset)
            await asyncio.sleep(0)
        (put,) = store.put([message(DISCARDED_TOPIC, 0, body)])
        self.discarded = put.physical_offset
        await until(lambda: store.dispatched >= store.log.end)

    async def _waiting(self) -> None:
        """Halves that have not ended, and timers."""
        store = self.context.store
        half = f"{PROPERTIES}TRAN_MSG\x01true\x02PGROUP\x01pg\x02REAL_TOPIC\x01{LONG}\x02REAL_QID\x010\x02"
        for _ in range(self.size(HALVES)):
            store.put([message("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"x", half)])
        due = self.env.now_ms() + 3_600_000
        for n in range(self.size(TIMED_TOPICS)):
            text = f"{PROPERTIES}TIMER_DELIVER_MS\x01{due}\x02"
            sender = self.broker.processors.sender
            sender.put([sender.timers.place(message(f"topic{n:05}", 0, b"x", text))])
            if n % 100 == 0:
                await asyncio.sleep(0)
        await until(lambda: store.dispatched >= store.log.end)


def subscription(topic: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "subString": "a || b",
        "subVersion": 1,
        "expressionType": "TAG",
        "tagsSet": ["a", "b"],
        "codeSet": [97, 98],
    }


def entries(count: int, name: str = "topic") -> list[dict[str, Any]]:
    return [
        {"resource": f"Topic:{name}{n:05}", "actions": ["Pub", "Sub"], "decision": "Allow"}
        for n in range(count)
    ]


def filler(size: int) -> str:
    """Properties of so many bytes, short ones."""
    return "".join(f"p{n:06}\x01v\x02" for n in range(size // 10))


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def free_port() -> int:
    """One that is free, and so is the next (a broker's HA port); below those that the system gives away."""
    for port in random.SystemRandom().sample(range(15_000, 30_000), 1000):
        try:
            for number in (port, port + 1):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port
    raise OSError("no two ports are free")


@contextlib.asynccontextmanager
async def broker_site(path: Path, share: float = 1.0) -> AsyncIterator[BrokerSite]:
    site = BrokerSite(path, share)
    await site.broker.start()
    try:
        await site.fill()
        yield site
    finally:
        for peer in site.heartbeaters:
            peer.close()
        await site.broker.stop()


async def heartbeater(site: BrokerSite, group: str, client_id: str) -> Peer:
    """A client that beats as a producer and a consumer of ``group``."""
    peer = site.peer()
    site.heartbeaters.append(peer)
    body = {
        "clientID": client_id,
        "consumerDataSet": [{"groupName": group, "subscriptionDataSet": [subscription(LONG)]}],
        "producerDataSet": [{"groupName": group}],
    }
    await site.ask(peer, Request.HEART_BEAT, Ask({}, json_bytes(body)))
    return peer
