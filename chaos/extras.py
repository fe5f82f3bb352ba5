"""What clients ask for besides sends and reads, while the cluster is being broken, and was it kept?

Delayed messages, transactions, messages given back, offsets, topics and groups, each with a key of its own.
What was answered OK is a promise (docs/replication-modes.md); what was refused or not answered is none. The
same in the simulated world (``chaos/sim/extras``) and on real processes (``chaos/drills/live/extras``).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from chaos.checks import Violation
from client.admin import AdminClient
from client.consuming.pull import PullConsumer
from client.message import Message, Queue, SendResult, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.codes import Request
from model.errors import MqError, Unknown
from model.message import parse_message_id
from remoting import bodies
from remoting.headers import MASTER_ONLY, EndTransactionHeader, flag
from runtime.env import Env

TOPIC: Final = "extras"
SENDERS: Final = "GID_extras_p"
READERS: Final = "GID_extras"
RETRY: Final = f"%RETRY%{READERS}"
COMMIT, ROLLBACK = 8, 12
DELAY_LEVEL: Final = 1
DELAY_MS: Final = 1000  # what level 1 is
PAUSE_S: Final = 0.12
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


class Tables(NamedTuple):
    """What a broker knows by name."""

    topics: Collection[str]
    groups: Collection[str]


class Sight(NamedTuple):
    """What a look at a healed cluster lacked, or why nothing could be seen."""

    missing: Sequence[str] = ()
    unread: str | None = None

    def told(self) -> list[str]:
        return [*self.missing, *([self.unread] if self.unread else [])]


class Site(Protocol):
    """The cluster that is asked, from one client's machine."""

    group: str
    namesrv: Sequence[str]

    def true_ms(self) -> int:
        """The time, by a clock that nobody set."""

    def clocks_true(self) -> bool:
        """Whether nobody set a server's clock."""

    async def tables(self) -> Mapping[str, Tables]:
        """Of every broker that runs, by its name. Raises MqError, OSError."""


class Extras:
    """Works until ``stop``. ``look`` says what a healed cluster does not show, ``broken`` says it again."""

    def __init__(self, site: Site, env: Env, chance: random.Random) -> None:
        self._site, self._chance = site, chance
        self._queue = Queue(TOPIC, site.group, 0)
        namesrvs = site.namesrv
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
        """How often each kind was answered; ``extra.failed``: how often one was refused or not answered."""
        self.sight = Sight()
        """The last look's."""

    def stop(self) -> None:
        self._stopping = True

    async def close(self) -> None:
        for part in (self._producer, self._consumer, self._admin):
            await part.stop()

    async def run(self) -> None:
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
        result = await self._producer.send(message, queue=self._queue)
        if result.status is not SendStatus.SEND_OK:
            raise Unknown(f"answered {result.status.name}")
        return result

    def _message(self, key: str, delay_level: int = 0, **properties: str) -> Message:
        found = {"UNIQ_KEY": key, **properties}
        return Message(topic=TOPIC, body=key.encode(), properties=found, delay_level=delay_level)

    def _due_ms(self) -> int:
        """When the first message that is delayed now may come at the earliest, by a clock nobody set."""
        return self._site.true_ms() + DELAY_MS

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
            "bname": self._site.group,
        }
        due_ms = self._due_ms()
        await self._admin.session.call(sent.attempts[-1].address, Request.CONSUMER_SEND_MSG_BACK, ext)
        self.shown["retries"][key] = Promise(1, due_ms)

    async def _offset(self, key: str) -> None:
        self.offset_tried += 1
        await self._consumer.commit(self._queue, self.offset_tried)

    async def _make_topic(self, name: str) -> None:
        await self._admin.create_topic(name, 1, brokers=[self._site.group])
        self.shown["topics"][name] = ONCE

    async def _topic(self, key: str) -> None:
        await self._make_topic(key)
        if self._chance.random() < 0.3:
            # From here on nobody promises that it is there: what was not answered may have been done.
            del self.shown["topics"][key]
            # Of the cluster's groups only this one: while none of its brokers is registered, a deletion at
            # all there are says nothing of it (seed 11717 of the swarm).
            if (master := await self._master()) is not None:
                ext = {"topic": key, MASTER_ONLY: flag(True)}
                await self._admin.session.call(master, Request.DELETE_TOPIC_IN_BROKER, ext)
                self.hidden_topics.add(key)

    async def _master(self) -> str | None:
        info = await self._admin.cluster_info()
        return info.brokers.get(self._site.group, {}).get(0)

    async def _group(self, key: str) -> None:
        master = await self._master()
        if master is None:
            return
        body = bodies.dumps({"groupName": key, "consumeEnable": True, "retryQueueNums": 1})
        await self._admin.session.call(master, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        self.shown["groups"][key] = ONCE

    # Was it kept?

    async def look(self, *, tables_only: bool = False) -> list[str]:
        """What was answered and does not show, in words; ``broken`` says so, too, also that nothing could be
        read. ``tables_only``: messages may be lost, topics and groups not."""
        try:
            self.sight = Sight(await self._missing(tables_only=tables_only))
        except (MqError, OSError) as error:
            self.sight = Sight(unread=f"cannot be read back: {error}")
        return self.sight.told()

    async def _missing(self, *, tables_only: bool) -> list[str]:
        """Of TOPIC only where its making was answered: what no broker has cannot be read back. Raises
        MqError, OSError."""
        if tables_only or TOPIC not in self.shown["topics"]:
            return [*self._unlike(await self._site.tables())]
        seen = await self._stored(TOPIC)
        again = await self._stored(RETRY) if self.shown["retries"] else {}
        offset = await self._consumer.committed(self._queue) if self.offset_tried else None
        tables = await self._site.tables()
        clocks_true = self._site.clocks_true()
        found = [*not_kept(self.shown["messages"], seen, TOPIC, clocks_true=clocks_true)]
        found += not_kept(self.shown["retries"], again, RETRY, clocks_true=clocks_true)
        found += [f"{key} was never committed and is in {TOPIC}" for key in sorted(self.hidden & seen.keys())]
        if offset is not None and offset > self.offset_tried:
            found.append(f"offset {offset} of {READERS} was never committed")
        return [*found, *self._unlike(tables)]

    def _unlike(self, tables: Mapping[str, Tables]) -> Iterator[str]:
        for name, known in tables.items():
            for key in sorted(self.shown["topics"].keys() - set(known.topics)):
                yield f"topic {key} was made and is not at {name}"
            for key in sorted(self.hidden_topics & set(known.topics)):
                yield f"topic {key} was deleted and is at {name}"
            for key in sorted(self.shown["groups"].keys() - set(known.groups)):
                yield f"group {key} was made and is not at {name}"

    async def _stored(self, topic: str) -> dict[str, list[int]]:
        """When each copy of a key came into ``topic``, by its broker's clock."""
        found: dict[str, list[int]] = {}
        for queue in await self._consumer.queues(topic):
            for message in await self._consumer.read_all(queue):
                found.setdefault(message.msg_id, []).append(message.store_timestamp_ms)
        return found

    def broken(self) -> list[Violation]:
        return [Violation("extras", text) for text in self.sight.told()]
