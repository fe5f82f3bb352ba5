"""A NameServer and a broker small enough to misbehave on demand, over real sockets on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from model.codes import Request, Response
from model.errors import Refused
from model.message import decode_properties, encode_host, message_id
from remoting import bodies
from remoting.codec import Command
from remoting.headers import PullAnswer, PullHeader, SendAnswer, SendHeader
from remoting.service import Connection, RemotingServer
from runtime.env import Env
from runtime.os_env import OsEnv
from store.files.record import NewMessage, encode

Stall = Callable[[Command], Coroutine[Any, Any, Command | None]]


def run(work: Callable[[Env], Coroutine[Any, Any, None]], *, timeout_s: float = 20.0) -> None:
    """Run one async test with its own environment."""

    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await work(OsEnv(seed=1))

    asyncio.run(bounded())


class FakeNameServer:
    """Answers routes from ``topics`` and ``masters``; both may change at any time."""

    def __init__(self, env: Env) -> None:
        self.server = RemotingServer(env, "fake namesrv", self._handle)
        self.masters: dict[str, dict[int, str]] = {}
        self.topics: dict[str, dict[str, int]] = {}
        self.address = ""
        self.asked: list[int] = []
        self.silent = False
        self.refusals: dict[str, Refused] = {}  # by topic

    async def start(self) -> str:
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', 0)}"
        return self.address

    async def _handle(self, connection: Connection, command: Command) -> Command | None:
        self.asked.append(command.code)
        if self.silent:
            return None
        if command.code == Request.GET_BROKER_CLUSTER_INFO:
            body = {
                "brokerAddrTable": {
                    n: {"brokerAddrs": a, "brokerName": n, "cluster": "C"} for n, a in self.masters.items()
                },
                "clusterAddrTable": {"C": list(self.masters)},
            }
            return command.reply(body=bodies.dumps_dialect(body))
        if command.ext["topic"] in self.refusals:
            raise self.refusals[command.ext["topic"]]
        groups = self.topics.get(command.ext["topic"])
        if groups is None:
            raise Refused("no such topic", Response.TOPIC_NOT_EXIST)
        return command.reply(
            body=bodies.dumps(
                {
                    "brokerDatas": [
                        {"brokerAddrs": self.masters.get(g, {}), "brokerName": g, "cluster": "C"}
                        for g in groups
                    ],
                    "queueDatas": [
                        {
                            "brokerName": g,
                            "perm": 6,
                            "readQueueNums": n,
                            "writeQueueNums": n,
                            "topicSysFlag": 0,
                        }
                        for g, n in groups.items()
                    ],
                }
            )
        )


@dataclass
class Stored:
    queue_id: int
    body: bytes
    properties: dict[str, str]
    record: bytes


@dataclass
class FakeBroker:
    """Stores what it is sent. ``before`` sees each request first and may answer, refuse, or never return."""

    env: Env
    name: str = "broker-a"
    before: Stall | None = None
    log: list[Stored] = field(default_factory=list)
    requests: list[Command] = field(default_factory=list)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    consumers: dict[str, dict[str, Connection]] = field(default_factory=dict)
    locks: dict[tuple[str, int], str] = field(default_factory=dict)
    returned: list[dict[str, str]] = field(default_factory=list)
    address: str = ""

    def __post_init__(self) -> None:
        self.server = RemotingServer(self.env, f"fake {self.name}", self._handle, on_close=self._gone)
        self._grown = asyncio.Event()

    async def start(self, port: int = 0) -> str:
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', port)}"
        return self.address

    def queue(self, topic: str, queue_id: int) -> list[Stored]:
        return [s for s in self.log if s.queue_id == queue_id and s.properties["TEST_TOPIC"] == topic]

    def _gone(self, connection: Connection) -> None:
        for members in self.consumers.values():
            for client, link in list(members.items()):
                if link is connection:
                    del members[client]
        self._notify()

    def _notify(self) -> None:
        for group, members in self.consumers.items():
            for link in members.values():
                if not link.closed:
                    link.oneway(Command(Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}))

    async def _handle(self, connection: Connection, command: Command) -> Command | None:
        self.requests.append(command)
        if self.before is not None:
            answer = await self.before(command)
            if answer is not None:
                return answer
        match command.code:
            case Request.SEND_MESSAGE_V2:
                return self._send(command)
            case Request.SEND_BATCH_MESSAGE:
                return self._send_batch(command)
            case Request.PULL_MESSAGE:
                return await self._pull(command)
            case Request.HEART_BEAT:
                return self._heartbeat(connection, command)
            case Request.GET_CONSUMER_LIST_BY_GROUP:
                members = self.consumers.get(command.ext["consumerGroup"], {})
                if not members:
                    raise Refused("no consumer", 1)
                return command.reply(body=bodies.dumps({"consumerIdList": list(members)}))
            case Request.QUERY_CONSUMER_OFFSET:
                offset = self.offsets.get(self._group_queue(command))
                if offset is None:
                    raise Refused("no offset", Response.QUERY_NOT_FOUND)
                return command.reply(ext={"offset": str(offset)})
            case Request.UPDATE_CONSUMER_OFFSET:
                self.offsets[self._group_queue(command)] = int(command.ext["commitOffset"])
                return command.reply()
            case Request.GET_MIN_OFFSET:
                return command.reply(ext={"offset": "0"})
            case Request.GET_MAX_OFFSET:
                count = len(self.queue(command.ext["topic"], int(command.ext["queueId"])))
                return command.reply(ext={"offset": str(count)})
            case Request.LOCK_BATCH_MQ | Request.UNLOCK_BATCH_MQ:
                return self._lock(command)
            case Request.CONSUMER_SEND_MSG_BACK:
                self.returned.append(command.ext)
                return command.reply()
            case Request.UNREGISTER_CLIENT | Request.UPDATE_AND_CREATE_TOPIC:
                for members in self.consumers.values():
                    members.pop(command.ext.get("clientID", ""), None)
                self._notify()
                return command.reply()
        raise Refused(f"code {command.code}", Response.REQUEST_CODE_NOT_SUPPORTED)

    @staticmethod
    def _group_queue(command: Command) -> tuple[str, str, int]:
        return command.ext["consumerGroup"], command.ext["topic"], int(command.ext["queueId"])

    def _lock(self, command: Command) -> Command:
        body = bodies.loads_object(command.body)
        granted = []
        for queue in body["mqSet"]:
            key = (queue["topic"], queue["queueId"])
            if command.code == Request.UNLOCK_BATCH_MQ:
                if self.locks.get(key) == body["clientId"]:
                    del self.locks[key]
            elif self.locks.setdefault(key, body["clientId"]) == body["clientId"]:
                granted.append(queue)
        return command.reply(body=bodies.dumps({"lockOKMQSet": granted}))

    def _heartbeat(self, connection: Connection, command: Command) -> Command:
        body = bodies.loads_object(command.body)
        for consumer in body["consumerDataSet"]:
            members = self.consumers.setdefault(consumer["groupName"], {})
            if body["clientID"] not in members:
                members[body["clientID"]] = connection
                self._notify()
        return command.reply(ext={"IS_SUPPORT_HEART_BEAT_V2": "true"})

    def _store(
        self, topic: str, queue_id: int, body: bytes, properties: str, sys_flag: int, flag: int
    ) -> int:
        found = {**decode_properties(properties), "TEST_TOPIC": topic}
        offset = len(self.queue(topic, queue_id))
        host = encode_host(self.address)
        physical = sum(len(s.record) for s in self.log)
        now_ms = self.env.now_ms()
        message = NewMessage(
            topic=topic,
            queue_id=queue_id,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=now_ms,
            born_host=host,
            store_host=host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=body,
            properties=properties,
        )
        record = encode(message, offset, physical, now_ms)
        self.log.append(Stored(queue_id, body, found, record))
        self._grown.set()
        return offset

    def _send(self, command: Command) -> Command:
        h = SendHeader.parse(command.code, command.ext)
        offset = self._store(h.topic, h.queue_id, command.body, h.properties, h.sys_flag, h.flag)
        answer = SendAnswer(message_id(encode_host(self.address), offset), h.queue_id, offset)
        return command.reply(ext=answer.to_ext())

    def _send_batch(self, command: Command) -> Command:
        h = SendHeader.parse(command.code, command.ext)
        data, at, ids, first = command.body, 0, [], -1
        while at < len(data):
            total = int.from_bytes(data[at : at + 4], "big")
            flag = int.from_bytes(data[at + 12 : at + 16], "big")
            size = int.from_bytes(data[at + 16 : at + 20], "big")
            body = data[at + 20 : at + 20 + size]
            properties = data[at + 22 + size : at + total].decode()
            offset = self._store(h.topic, h.queue_id, body, properties, 0, flag)
            first = offset if first < 0 else first
            ids.append(message_id(encode_host(self.address), offset))
            at += total
        return command.reply(ext=SendAnswer(",".join(ids), h.queue_id, first).to_ext())

    async def _pull(self, command: Command) -> Command:
        h = PullHeader.parse(command.ext)
        deadline = self.env.monotonic_ms() + h.suspend_timeout_ms
        while True:
            stored = self.queue(h.topic, h.queue_id)
            count = len(stored)
            if h.queue_offset > count:
                code, last, found = Response.PULL_OFFSET_MOVED, count, []
            elif h.queue_offset < count:
                found = stored[h.queue_offset : h.queue_offset + h.count_max]
                code, last = Response.SUCCESS, h.queue_offset + len(found)
            else:
                code, last, found = Response.PULL_NOT_FOUND, count, []
                left_s = (deadline - self.env.monotonic_ms()) / 1000
                if h.suspend and left_s > 0:
                    self._grown.clear()
                    try:
                        async with asyncio.timeout(left_s):
                            await self._grown.wait()
                    except TimeoutError:
                        pass
                    continue
            answer = PullAnswer(last, 0, count)
            body = b"".join(s.record for s in found)
            return command.reply(code, ext=answer.to_ext(), body=body)


async def cluster(env: Env, groups: int = 1, queues: int = 4) -> tuple[FakeNameServer, list[FakeBroker]]:
    """A NameServer and ``groups`` masters with topic ``T``."""
    nameserver = FakeNameServer(env)
    await nameserver.start()
    brokers = [FakeBroker(env, f"broker-{'abc'[i]}") for i in range(groups)]
    for broker in brokers:
        nameserver.masters[broker.name] = {0: await broker.start()}
    nameserver.topics["T"] = {broker.name: queues for broker in brokers}
    return nameserver, brokers


async def stop(*servers: FakeNameServer | FakeBroker) -> None:
    for server in servers:
        await server.server.stop()
