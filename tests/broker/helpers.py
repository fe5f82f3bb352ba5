"""A real broker on loopback and a plain client that speaks its wire, for the tests of this package."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from broker.role.host import Elected
from broker.service import Broker
from broker.state.role_state import Role, RoleState
from model.codes import Request
from model.config import BrokerConfig
from model.ids import BrokerId, Epoch
from remoting import bodies
from remoting.codec import Command, decode
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, SendHeader
from remoting.service import Connection, Handler, RemotingClient
from runtime.os_env import OsEnv
from store.files.record import Record, records_in, walk
from tests import GOLDEN
from tests.plain import broker_ids
from tests.ports import free_port_of_broker
from tests.waiting import until


def config_for(path: Path, **keys: object) -> BrokerConfig:
    values = {
        "storePathRootDir": str(path),
        "listenPort": str(free_port_of_broker()),
        "mappedFileSizeCommitLog": str(1 << 20),
        "mappedFileSizeConsumeQueue": str(20 * 1000),
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
        "brokerName": "broker-t",
        "messageDelayLevel": "1s 5s 10s",
        "flushConsumerOffsetInterval": "50",
    }
    values.update({name: str(value) for name, value in keys.items()})
    return BrokerConfig.from_mapping(values)


@contextlib.asynccontextmanager
async def running(path: Path, **keys: object) -> AsyncIterator[Broker]:
    """A broker that serves; stopped in order at the end."""
    config = config_for(path, **keys)
    broker = Broker(OsEnv(seed=1), config)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@contextlib.asynccontextmanager
async def client_of(broker: Broker, handler: Handler | None = None) -> AsyncIterator[Client]:
    client = Client(broker, handler)
    try:
        yield client
    finally:
        await client.remoting.close()


class Client:
    """A remoting client with the few requests most tests need."""

    def __init__(self, broker: Broker, handler: Handler | None = None) -> None:
        self.remoting = RemotingClient(broker.env, "test", handler=handler)
        self.address = f"127.0.0.1:{broker.port}"
        self._sent = 0

    async def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", timeout_s: float = 10.0
    ) -> Command:
        return await self.remoting.call(self.address, Command(int(code), ext or {}, body), timeout_s)

    async def connection(self) -> Connection:
        return await self.remoting.connection(self.address)

    async def send(
        self, topic: str, body: bytes = b"hello", *, queue_id: int = 0, properties: str = "", **header: Any
    ) -> Command:
        self._sent += 1
        text = f"UNIQ_KEY\x01{self._sent:032X}\x02WAIT\x01true\x02" + properties
        ext = SendHeader("pg", topic, queue_id, 1_700_000_000_000, properties=text, **header).to_ext()
        return await self.call(Request.SEND_MESSAGE_V2, ext, body)

    async def pull(
        self,
        topic: str,
        offset: int,
        *,
        queue_id: int = 0,
        group: str = "cg",
        tags: str = "*",
        suspend_ms: int = 0,
        count: int = 32,
    ) -> Command:
        header = PullHeader(
            group,
            topic,
            queue_id,
            offset,
            count,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
            suspend_timeout_ms=suspend_ms,
            subscription=tags,
        )
        return await self.call(Request.PULL_MESSAGE, header.to_ext(), timeout_s=20)

    async def pull_until(self, topic: str, offset: int, count: int, **how: Any) -> list[Record]:
        """Pull from ``offset`` until ``count`` records came."""
        found: list[Record] = []
        while len(found) < count:
            answer = await self.pull(topic, offset, suspend_ms=5000, **how)
            assert answer.code in (0, 19, 20), (answer.code, answer.remark)
            found += records(answer.body)
            offset = int(answer.ext["nextBeginOffset"])
        return found


def records(body: bytes) -> list[Record]:
    """The records of a pull's answer; they need not lie back to back in the log."""
    return list(records_in(body))


def log_records(broker: Broker) -> list[Record]:
    """Everything in the first segment of a broker's log."""
    return list(walk(broker.store.log.read(0, 1 << 30)))


def golden_exchanges(name: str) -> dict[str, tuple[bytes, Command, Command | None]]:
    """name -> (request frame, request, answer) of a file of real exchanges."""
    found: dict[str, tuple[bytes, Command, Command | None]] = {}
    for line in (GOLDEN / "remoting" / name).read_text().splitlines():
        entry = json.loads(line)
        frame = bytes.fromhex(entry["hex"])
        if entry["role"] == "request":
            found[entry["name"]] = (frame, decode(frame), None)
        else:
            found[entry["name"]] = (*found[entry["name"]][:2], decode(frame))
    return found


async def eventually(condition: Any, what: str) -> None:
    """``until``, of which it is said what is waited for."""
    await until(condition, what)


def heartbeat(client_id: str, group: str, *topics: str, producer: str = "") -> bytes:
    """The body of HEART_BEAT: a consumer of ``topics`` in ``group``, and a producer group."""
    subscriptions = [{"topic": t, "subString": "*", "subVersion": 1, "expressionType": "TAG"} for t in topics]
    data: dict[str, Any] = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": []}
    if group:
        data["consumerDataSet"].append(
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": subscriptions,
            }
        )
    if producer:
        data["producerDataSet"].append({"groupName": producer})
    return bodies.dumps(data)


def batch_body(messages: list[tuple[bytes, str, int]]) -> bytes:
    """The body of SEND_BATCH_MESSAGE: (body, properties, flag) of each message."""
    out = []
    for body, properties, flag in messages:
        raw = properties.encode()
        size = 20 + len(body) + 2 + len(raw)
        out.append(
            struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(raw)) + raw
        )
    return b"".join(out)


@contextlib.asynccontextmanager
async def pair(path: Path, **keys: str) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master (id 1, epoch 1) and its slave (id 2), in sync; the test plays the Controller."""
    keys = {"slaveSyncMetadataPeriod": "30", "slaveTimeout": "5000", **keys}
    async with running(path / "one", **keys) as one, running(path / "two", **keys) as two:
        await two.fence()
        await one.lead(elected(1, 1, {1}, 1))
        await two.follow(BrokerId(2), Epoch(1), one.config.address, one.config.ha_address)
        await eventually(lambda: bool(one.status()["slaves"]), "the slave is connected")
        one.ha.adopt(broker_ids({1, 2}), 2)
        await eventually(
            lambda: [s["ackOffset"] for s in one.status()["slaves"]] == [one.store.log.end], "it is level"
        )
        yield one, two


def topic(name: str, queues: int = 3) -> dict[str, str]:
    return {
        "topic": name,
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG",
    }


def commit(group: str, name: str, offset: int) -> dict[str, str]:
    return {"consumerGroup": group, "topic": name, "queueId": "0", "commitOffset": str(offset)}


def elected(broker_id: int, epoch: int, members: Iterable[int], set_epoch: int) -> Elected:
    return Elected(BrokerId(broker_id), Epoch(epoch), broker_ids(members), set_epoch)


def role_state(role: Role, broker_id: int, epoch: int, master_address: str | None = None) -> RoleState:
    return RoleState(role, BrokerId(broker_id), Epoch(epoch), master_address)
