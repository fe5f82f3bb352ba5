"""What clients ask for besides sends and reads, while the cluster is being broken, and was it kept?

Delayed messages, transactions, messages given back, offsets, topics and groups, each with a key of its own.
What was answered OK is a promise (docs/replication-modes.md); what was refused or not answered is none.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

from broker.service import Broker
from chaos.checks import Violation
from chaos.sim.cluster import GROUP, SimCluster
from chaos.sim.env import EPOCH_MS
from client.admin import AdminClient
from client.consuming.pull import PullConsumer
from client.message import Message, Queue, SendResult, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.codes import Request
from model.errors import MqError, Unknown
from model.message import parse_message_id
from remoting import bodies
from remoting.headers import EndTransactionHeader

TOPIC: Final = "extras"
SENDERS: Final = "GID_extras_p"
READERS: Final = "GID_extras"
RETRY: Final = f"%RETRY%{READERS}"
QUEUE: Final = Queue(TOPIC, GROUP, 0)
COMMIT, ROLLBACK = 8, 12
DELAY_LEVEL: Final = 1
DELAY_MS: Final = 1000  # what level 1 is
PAUSE_S: Final = 0.12
SHOWN_S: Final = 12.0
"""How long a healed cluster may take to show what was answered."""
KINDS: Final = ("delayed", "transaction", "given_back", "offset", "topic", "group")


class Promise(NamedTuple):
    """A message comes once, or as often as its attempts allow, and not before ``due_ms``."""

    copies_max: int = 1
    due_ms: int = 0


ONCE: Final = Promise()


def _copies_of(sent: SendResult) -> int:
    return 1 + sum(attempt.outcome == "unknown" for attempt in sent.attempts)


def not_kept(
    promised: Mapping[str, Promise], stored: Mapping[str, Sequence[int]], topic: str, *, clocks_true: bool
) -> Iterator[str]:
    """What was answered OK and is missing, too often there, or came too early. ``stored``: when each copy
    came; that says nothing where somebody set a clock."""
    for key, promise in sorted(promised.items()):
        came = stored.get(key, ())
        if not came:
            yield f"{key} was answered OK, not in {topic}"
        elif len(came) > promise.copies_max:
            yield f"{key} is {len(came)} times in {topic}, not {promise.copies_max}"
        elif clocks_true and min(came) < promise.due_ms:
            yield f"{key} came into {topic} {promise.due_ms - min(came)} ms before its time"


class Extras:
    """Works until ``stop``; ``settle`` looks at the healed cluster, ``broken`` says what was not kept."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._node, env = cluster.client("extras")
        namesrvs = cluster.namesrv_addresses
        self._chance: random.Random = cluster.chance("extras")
        options = SendOptions(timeout_s=3.0, poll_ms=1000)
        self._producer = Producer(env, SENDERS, namesrvs, options=options)
        self._consumer = PullConsumer(env, READERS, namesrvs, poll_ms=1000)
        self._admin = AdminClient(env, namesrvs)
        self._number = 0
        self._stopping = False
        self._acts: dict[str, Callable[[str], Awaitable[None]]] = {
            "delayed": self._delayed,
            "transaction": self._transaction,
            "given_back": self._given_back,
            "offset": self._offset,
            "topic": self._topic,
            "group": self._group,
        }
        self.shown: dict[str, dict[str, Promise]] = {
            kind: {} for kind in ("messages", "retries", "topics", "groups")
        }
        """Keys that were answered OK, by where they have to show."""
        self.hidden: set[str] = set()
        """Half messages whose rollback was answered OK, or of which nobody asked for the end."""
        self.hidden_topics: set[str] = set()
        """Topics whose deletion was answered OK."""
        self.offset_tried = 0
        self.done: Counter[str] = Counter()
        self._found: list[str] = []

    def begin(self) -> asyncio.Task[None]:
        return self._cluster.inside(self._node, self._run(), name="extras")

    def stop(self) -> None:
        self._stopping = True

    async def _run(self) -> None:
        for part in (self._producer, self._consumer, self._admin):
            await part.start()
        await self._until_done(lambda: self._make_topic(TOPIC))
        while not self._stopping:
            kind = self._chance.choice(KINDS)
            self._number += 1
            try:
                await self._acts[kind](f"{kind}-{self._number}")
                self.done[f"extra.{kind}"] += 1
            except (MqError, OSError):
                self.done["extra.failed"] += 1  # not answered, or no: nothing was promised
            await asyncio.sleep(self._chance.random() * 2 * PAUSE_S)

    async def _until_done(self, act: Callable[[], Awaitable[object]]) -> None:
        while not self._stopping:
            try:
                await act()
                return
            except (MqError, OSError):
                await asyncio.sleep(0.2)

    # What is asked for

    async def _send(self, message: Message) -> SendResult:
        """Raises Unknown for an answer that is not OK."""
        result = await self._producer.send(message, queue=QUEUE)
        if result.status is not SendStatus.SEND_OK:
            raise Unknown(f"answered {result.status.name}")
        return result

    def _message(self, key: str, delay_level: int = 0, **properties: str) -> Message:
        found = {"UNIQ_KEY": key, **properties}
        return Message(topic=TOPIC, body=key.encode(), properties=found, delay_level=delay_level)

    def _due_ms(self) -> int:
        """When the first message that is delayed now may come at the earliest, by a clock nobody set."""
        return EPOCH_MS + int(self._cluster.loop.now_s * 1000) + DELAY_MS

    async def _delayed(self, key: str) -> None:
        due_ms = self._due_ms()
        sent = await self._send(self._message(key, DELAY_LEVEL))
        self.shown["messages"][key] = Promise(_copies_of(sent), due_ms)

    async def _transaction(self, key: str) -> None:
        self.hidden.add(key)
        half = await self._send(self._message(key, TRAN_MSG="true", PGROUP=SENDERS))
        decision = self._chance.choice((COMMIT, ROLLBACK))
        _, physical = parse_message_id(half.offset_msg_id)
        header = EndTransactionHeader(SENDERS, half.queue_offset, physical, decision, key, key)
        address = half.attempts[-1].address
        if decision == COMMIT:
            self.hidden.remove(key)
        await self._admin.session.call(address, Request.END_TRANSACTION, header.to_ext())
        if decision == COMMIT:
            self.shown["messages"][key] = ONCE  # another half that an open attempt stored has no end

    async def _given_back(self, key: str) -> None:
        """Send one, read it, and give it back: it comes again, in the group's retry topic."""
        sent = await self._send(self._message(key))
        self.shown["messages"][key] = Promise(_copies_of(sent))
        _, physical = parse_message_id(sent.offset_msg_id)
        ext = {
            "offset": str(physical),
            "group": READERS,
            "delayLevel": str(DELAY_LEVEL),
            "originMsgId": key,
            "originTopic": TOPIC,
            "unitMode": "false",
            "maxReconsumeTimes": "16",
            "bname": GROUP,
        }
        due_ms = self._due_ms()
        await self._admin.session.call(sent.attempts[-1].address, Request.CONSUMER_SEND_MSG_BACK, ext)
        self.shown["retries"][key] = Promise(1, due_ms)

    async def _offset(self, key: str) -> None:
        self.offset_tried += 1
        await self._consumer.commit(QUEUE, self.offset_tried)

    async def _make_topic(self, name: str) -> None:
        await self._admin.create_topic(name, 1, brokers=[GROUP])
        self.shown["topics"][name] = ONCE

    async def _topic(self, key: str) -> None:
        await self._make_topic(key)
        if self._chance.random() < 0.3:
            # From here on nobody promises that it is there: what was not answered may have been done.
            del self.shown["topics"][key]
            await self._admin.delete_topic(key)
            self.hidden_topics.add(key)

    async def _group(self, key: str) -> None:
        info = await self._admin.cluster_info()
        master = info.brokers.get(GROUP, {}).get(0)
        if master is None:
            return
        body = bodies.dumps({"groupName": key, "consumeEnable": True, "retryQueueNums": 1})
        await self._admin.session.call(master, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        self.shown["groups"][key] = ONCE

    # Was it kept?

    async def settle(self) -> None:
        """Wait until the healed cluster shows all that was answered, or long enough."""
        loop = self._cluster.loop
        until_s = loop.time() + SHOWN_S
        while True:
            self._found = await self._cluster.inside(self._node, self._look(), name="extras-look")
            if not self._found or loop.time() > until_s:
                return
            await asyncio.sleep(0.5)

    async def _look(self) -> list[str]:
        """Of TOPIC only where its making was answered: what no broker has cannot be read back."""
        if TOPIC not in self.shown["topics"]:
            return list(self._tables())
        found: list[str] = []
        try:
            seen = await self._stored(TOPIC)
            again = await self._stored(RETRY) if self.shown["retries"] else {}
            offset = await self._consumer.committed(QUEUE) if self.offset_tried else None
        except (MqError, OSError) as error:
            return [f"cannot be read back: {error}"]
        clocks_true = not any(node.skew_ms for node in self._cluster.nodes.values())
        found += not_kept(self.shown["messages"], seen, TOPIC, clocks_true=clocks_true)
        found += not_kept(self.shown["retries"], again, RETRY, clocks_true=clocks_true)
        found += [f"{key} was never committed and is in {TOPIC}" for key in sorted(self.hidden & seen.keys())]
        if offset is not None and offset > self.offset_tried:
            found.append(f"offset {offset} of {READERS} was never committed")
        return [*found, *self._tables()]

    def _tables(self) -> Iterator[str]:
        for node in self._cluster.of("broker"):
            if not node.running:
                continue
            broker = cast(Broker, node.server)
            for key in sorted(self.shown["topics"].keys() - set(broker.topics.table)):
                yield f"topic {key} was made and is not at {node.name}"
            for key in sorted(self.hidden_topics & set(broker.topics.table)):
                yield f"topic {key} was deleted and is at {node.name}"
            for key in sorted(self.shown["groups"].keys() - set(broker.groups.table)):
                yield f"group {key} was made and is not at {node.name}"

    async def _stored(self, topic: str) -> dict[str, list[int]]:
        """When each copy of a key came into ``topic``, by its broker's clock."""
        found: dict[str, list[int]] = {}
        for queue in await self._consumer.queues(topic):
            for message in await self._consumer.read_all(queue):
                found.setdefault(message.msg_id, []).append(message.store_timestamp_ms)
        return found

    def broken(self) -> list[Violation]:
        return [Violation("extras", text) for text in self._found]
