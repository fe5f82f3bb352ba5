"""A broker of either kind on one store, asked over its wire: what do clients see of it?"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from admin.local.layout import free_base_port
from broker.tables.topics import HALF_TOPIC, OP_HALF_TOPIC
from chaos.worlds import rocketmq
from client.message import Message, pack_batch
from model.codes import Request, Response
from model.message import SCHEDULE_TOPIC, parse_message_id, retry_topic
from remoting.codec import Command
from remoting.headers import PULL_SUBSCRIPTION, EndTransactionHeader, PullHeader, SendBackHeader, SendHeader
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from store.files.record import Record, decode
from tests import ROOT

GROUP, PRODUCERS = "round_trip", "round_trip_producers"
TOPIC, DELAYED = "RoundTrip", "RoundTripDelayed"
QUEUES = 4
COMMIT, ROLLBACK = 8, 12
WAIT_S = 60.0
SETTINGS = {
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "namesrvAddr": "",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 100),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "messageDelayLevel": "1s 6s 1h",
    "transactionTimeOut": "3600000",
    "flushConsumerOffsetInterval": "500",
}
SOON, LATER, NEVER = 1, 2, 3


@dataclass
class Stored:
    """What clients are told of a store. ``queues``: (physical offset, raw bytes) by (topic, queue id)."""

    queues: dict[tuple[str, int], list[tuple[int, bytes]]] = field(default_factory=dict)
    by_key: dict[tuple[str, str], dict[int, bytes]] = field(default_factory=dict)
    by_id: dict[int, bytes] = field(default_factory=dict)
    by_time: dict[tuple[int, int, str], int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The first physical offset nothing is known of."""
        return max(at for rows in self.queues.values() for at, _ in rows) + 1


class Peer:
    """A broker of either kind, asked over its wire."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._env = OsEnv()
        self._remoting = RemotingClient(self._env, "round-trip")

    async def close(self) -> None:
        await self._remoting.close()

    async def ask(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, accept: tuple[int, ...] = (0,)
    ) -> Command:
        answer = await self._remoting.call(self.address, Command(int(code), ext, body), 20)
        assert answer.code in accept, f"{self.address} answered {code}: {answer.code} {answer.remark}"
        return answer

    async def serves(self) -> bool:
        try:
            await self.ask(Request.GET_BROKER_RUNTIME_INFO, {})
        except (OSError, AssertionError):
            return False
        return True

    # Writing

    async def create(self, topic: str) -> None:
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        await self.ask(Request.UPDATE_AND_CREATE_TOPIC, ext)

    async def send(self, number: int, topic: str = TOPIC, **more: Any) -> Command:
        """Message ``number``: two keys, a tag, a property; with a delay level or as a half transaction."""
        properties = {"colour": "grün", **more.pop("properties", {})}
        message = Message(
            topic=topic,
            body=f"body {number} ".encode() * (1 + number % 50),
            tags="even" if number % 2 == 0 else "odd",
            keys=[f"key-{number}", f"shared-{number % 7}"],
            properties=properties,
            **more,
        )
        text = message.wire_properties(unique(topic, number))
        header = SendHeader(
            PRODUCERS, topic, number % QUEUES, self._env.now_ms(), flag=number, properties=text
        )
        if "TRAN_MSG" in properties:
            header.sys_flag = 4  # prepared
        return await self.ask(Request.SEND_MESSAGE_V2, header.to_ext(), message.body)

    async def send_batch(self, numbers: range) -> None:
        parts = []
        for number in numbers:
            one = Message(topic=TOPIC, body=b"part %d" % number, keys=[f"key-{number}"])
            parts.append((one, one.wire_properties(unique(TOPIC, number))))
        header = SendHeader(PRODUCERS, TOPIC, 1, self._env.now_ms(), properties="", batch=True)
        await self.ask(Request.SEND_BATCH_MESSAGE, header.to_ext(), pack_batch(parts))

    async def half(self, number: int) -> Command:
        return await self.send(number, properties={"TRAN_MSG": "true", "PGROUP": PRODUCERS})

    async def end(self, half: Command, decision: int) -> None:
        header = EndTransactionHeader(
            PRODUCERS,
            int(half.ext["queueOffset"]),
            parse_message_id(half.ext["msgId"])[1],
            decision,
            half.ext["transactionId"],
            half.ext["transactionId"],
            topic=TOPIC,
        )
        await self.ask(Request.END_TRANSACTION, header.to_ext())

    async def send_back(self, answer: Command) -> None:
        """As a consumer of GROUP that could not handle the message."""
        offset = parse_message_id(answer.ext["msgId"])[1]
        header = SendBackHeader(offset, GROUP, SOON, answer.ext["msgId"], TOPIC, max_reconsume_times=16)
        await self.ask(Request.CONSUMER_SEND_MSG_BACK, header.to_ext())

    async def commit(self, queue_id: int, offset: int) -> None:
        ext = {**self._queue(TOPIC, queue_id), "consumerGroup": GROUP, "commitOffset": str(offset)}
        await self.ask(Request.UPDATE_CONSUMER_OFFSET, ext)

    # Reading

    @staticmethod
    def _queue(topic: str, queue_id: int) -> dict[str, str]:
        return {"topic": topic, "queueId": str(queue_id)}

    async def rows(self, topic: str, queue_id: int) -> list[tuple[int, bytes]]:
        """All records of a queue, in order of their queue offsets, which have no gap."""
        found: list[tuple[int, bytes]] = []
        at = 0
        while True:
            header = PullHeader(GROUP, topic, queue_id, at, 32, sys_flag=PULL_SUBSCRIPTION, subscription="*")
            answer = await self.ask(
                Request.PULL_MESSAGE,
                header.to_ext(),
                accept=(Response.SUCCESS, Response.PULL_NOT_FOUND, Response.PULL_OFFSET_MOVED),
            )
            if answer.code != Response.SUCCESS:
                return found
            for record, raw in _records(answer.body):
                assert record.queue_offset == len(found), f"{topic}/{queue_id}"
                found.append((record.physical_offset, raw))
            at = int(answer.ext["nextBeginOffset"])

    async def query(self, topic: str, key: str, *, unique_key: bool = False) -> dict[int, bytes]:
        ext = {"topic": topic, "key": key, "maxNum": "64", "beginTimestamp": "0"}
        ext |= {"endTimestamp": str(1 << 62), "_UNIQUE_KEY_QUERY": "true" if unique_key else "false"}
        answer = await self.ask(
            Request.QUERY_MESSAGE, ext, accept=(Response.SUCCESS, Response.QUERY_NOT_FOUND)
        )
        return {record.physical_offset: raw for record, raw in _records(answer.body)}

    async def offset_at(self, queue_id: int, timestamp_ms: int, boundary: str) -> int:
        ext = {**self._queue(TOPIC, queue_id), "timestamp": str(timestamp_ms), "boundaryType": boundary}
        return int((await self.ask(Request.SEARCH_OFFSET_BY_TIMESTAMP, ext)).ext["offset"])

    async def look(self, numbers: range, below: int | None = None) -> Stored:
        """Everything there is to be told, of what lies below a physical offset when that is given, or of what
        was there first: a delayed message may come meanwhile."""
        stored = Stored()
        system = [(SCHEDULE_TOPIC, level - 1) for level in (SOON, LATER, NEVER)]
        system += [(HALF_TOPIC, 0), (OP_HALF_TOPIC, 0), (retry_topic(GROUP), 0)]
        plain = [(topic, queue_id) for topic in (TOPIC, DELAYED) for queue_id in range(QUEUES)]
        if below is None:
            below = await self._end_of([*plain, *system])
        for topic, queue_id in [*plain, *system]:
            stored.queues[topic, queue_id] = [
                row for row in await self.rows(topic, queue_id) if row[0] < below
            ]
        for topic, some in ((TOPIC, numbers), (DELAYED, (0, 4, 8))):
            for number in some:
                for key, is_unique in ((f"key-{number}", False), (unique(topic, number), True)):
                    found = await self.query(topic, key, unique_key=is_unique)
                    stored.by_key[topic, key] = {a: r for a, r in found.items() if a < below}
        for number in range(7):
            found = await self.query(TOPIC, f"shared-{number}")
            stored.by_key[TOPIC, f"shared-{number}"] = {a: r for a, r in found.items() if a < below}
        for rows in list(stored.queues.values()):
            for at, _ in rows:
                answer = await self.ask(Request.VIEW_MESSAGE_BY_ID, {"topic": TOPIC, "offset": str(at)})
                stored.by_id[at] = answer.body
        await self._look_by_time(stored)
        for queue_id in range(QUEUES):
            ext = {**self._queue(TOPIC, queue_id), "consumerGroup": GROUP}
            answer = await self.ask(Request.QUERY_CONSUMER_OFFSET, ext, accept=(0, Response.QUERY_NOT_FOUND))
            stored.committed[queue_id] = int(answer.ext.get("offset", -1))
        return stored

    async def _end_of(self, queues: list[tuple[str, int]]) -> int:
        """Behind the last record of these queues."""
        return max([at + len(raw) for queue in queues for at, raw in await self.rows(*queue)], default=0)

    async def _look_by_time(self, stored: Stored) -> None:
        for queue_id in range(QUEUES):
            times = sorted({decode(raw).store_timestamp_ms for _, raw in stored.queues[TOPIC, queue_id]})
            chosen = sorted({t + step for t in [*times[:4], *times[-4:]] for step in (-1, 0, 1)})
            for timestamp_ms in [0, *chosen]:
                if timestamp_ms > times[-1]:
                    continue  # the next server may have appended by now
                for boundary in ("LOWER", "UPPER"):
                    at = await self.offset_at(queue_id, timestamp_ms, boundary)
                    stored.by_time[queue_id, timestamp_ms, boundary] = at

    async def until(self, what: str, topic: str, queue_id: int, count: int) -> list[Record]:
        """Wait until a queue has so many records."""
        for _ in range(int(WAIT_S * 10)):
            rows = await self.rows(topic, queue_id)
            if len(rows) >= count:
                return [decode(raw) for _, raw in rows]
            await asyncio.sleep(0.1)
        raise AssertionError(f"{what}: {len(rows)} of {count} records in {topic}/{queue_id}")


def unique(topic: str, number: int) -> str:
    return f"{'7F00' if topic == TOPIC else '7F01'}{number:028X}"


def _records(body: bytes) -> list[tuple[Record, bytes]]:
    found, at = [], 0
    while at < len(body):
        record = decode(body, at)
        found.append((record, body[at : at + record.size]))
        at += record.size
    return found


# -- the two systems -------------------------------------------------------------------------------------


@asynccontextmanager
async def served(
    kind: str, base: Path, *, kill: bool = False, more: Mapping[str, str] | None = None
) -> AsyncIterator[Peer]:
    """The store ``base/store`` served by a broker of ``kind``; stopped in order, or killed."""
    settings = {**SETTINGS, **(more or {})}
    port = free_base_port(10) + 2
    home = base / kind
    if kind == "rocketmq":
        server: Any = rocketmq.broker_node(
            home, port, "", base / "store", **{**SETTINGS, **rocketmq.QUICK_BROKER, **settings}
        )
    else:
        server = _Keelmq(home, {**settings, "listenPort": str(port), "storePathRootDir": str(base / "store")})
    server.start()
    peer = Peer(f"127.0.0.1:{port}")
    try:
        async with asyncio.timeout(WAIT_S):
            while not await peer.serves():
                assert server.process.poll() is None, server.tail()
                await asyncio.sleep(0.05)
        yield peer
    finally:
        await peer.close()
        await asyncio.to_thread(server.stop, signal.SIGKILL if kill else signal.SIGTERM)


class _Keelmq(rocketmq.ServerProcess):
    def __init__(self, directory: Path, values: dict[str, str]) -> None:
        self.directory = directory
        self.process = None
        self._values = values

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "cli.main", "broker"]
        for name, value in self._values.items():
            command += ["--set", f"{name}={value}"]
        with (self.directory / "out").open("ab") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)


# -- what is written -------------------------------------------------------------------------------------

PLAIN = range(120)
BATCH = range(120, 130)
COMMITTED, ROLLED_BACK, PENDING, PENDING_TOO = range(130, 134)
NUMBERS = range(140)
