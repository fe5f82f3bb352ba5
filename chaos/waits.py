"""Is what waits kept while clocks are set, topics go and come, and nobody ends a transaction?

Timer messages and delayed ones, some recalled; messages that wait for a topic that is deleted, and perhaps
made again; halves of which only a check says what is to become. ``Account`` is what of that was promised
(P6, P7, P10, P15 of docs/replication-modes.md), pure; ``Waits`` asks for it, the same way in any world.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from chaos.checks import Violation
from client.admin import AdminClient
from client.consuming.pull import PullConsumer
from client.message import Message, Queue, Received, SendResult, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.sending.transactions import Decision
from model.codes import Request
from model.errors import MqError, Unknown
from remoting.headers import MASTER_ONLY, flag
from runtime.env import Env

TOPIC: Final = "waits"
SENDERS: Final = "GID_waits_p"
READERS: Final = "GID_waits"
PAUSE_S: Final = 0.12
KINDS: Final = ("timer", "timer", "level", "recall", "topic", "topic", "check", "check")
LEVELS: Final = (1, 2)
LEVEL_MS_MIN: Final = 1000
"""What each of ``LEVELS`` is at least, in whatever configuration a plan has."""
LEVEL_MS_MAX: Final = 3000
AFTER_MS: Final = (200, 700, 1500, 3000)
AT_ONCE_MS: Final = 60_000
"""A level's message that was stored by a clock so far ahead is delivered at once."""
CHECKED_MS: Final = 3000
"""A half is asked about within so long, and once more."""
SOON_MS: Final = 12_000
SLACK_MS: Final = 3000
"""A turn of the delivery, and a slot of ``timerPrecisionMs``."""


class Site(Protocol):
    group: str
    namesrv: Sequence[str]

    def skews(self) -> Mapping[str, int]:
        """By how many ms the clock of each broker, by its address, is ahead of a clock that nobody set."""

    def true_ms(self) -> int:
        """That clock."""

    async def topics(self) -> Mapping[str, frozenset[str]]:
        """Topics that each broker knows."""


@dataclass(slots=True)
class Wait:
    """``due_ms``: not before, by the clock of whoever delivers it; None: nobody knows which clock it was
    stored by. ``latest_ms``: what it waits for by any clock that it may have been stored by. ``at_once``: a
    clock that is far behind delivers it at once."""

    copies_max: int
    due_ms: int | None = 0
    latest_ms: int = 0
    at_once: bool = False

    def is_early(self, came_ms: int) -> bool:
        if self.due_ms is None or came_ms >= self.due_ms:
            return False
        return not self.at_once or self.due_ms - came_ms < AT_ONCE_MS

    def is_over(self, now_ms: int) -> bool:
        """Whether it has to be there, by the clock of the master."""
        return now_ms >= self.latest_ms + SLACK_MS


@dataclass(slots=True)
class Account:
    """By topic, what has to come; what must not; topics that are gone."""

    shown: dict[str, dict[str, Wait]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)

    def wait(self, topic: str, key: str, wait: Wait) -> None:
        self.shown.setdefault(topic, {})[key] = wait

    def not_kept(
        self, stored: Mapping[str, Mapping[str, Sequence[int]]], now_ms: int, *, once: bool = True
    ) -> Iterator[str]:
        """``stored``: of each topic when the copies of a key came, by the clocks of those that delivered
        them; ``once`` is False where a second copy is excused."""
        for topic, promised in sorted(self.shown.items()):
            for key, wait in sorted(promised.items()):
                came = stored.get(topic, {}).get(key, ())
                if not came and wait.is_over(now_ms):
                    yield f"{key} was answered OK, not in {topic}"
                elif once and len(came) > wait.copies_max:
                    yield f"{key} is {len(came)} times in {topic}, not {wait.copies_max}"
                elif came and wait.is_early(min(came)):
                    yield f"{key} came into {topic} {(wait.due_ms or 0) - min(came)} ms before its time"
            for key in sorted(self.hidden & stored.get(topic, {}).keys()):
                yield f"{key} was recalled or rolled back, and is in {topic}"

    def waits_on(self, now_ms: int) -> bool:
        """Whether some are due soon, and not yet, by a clock that is at ``now_ms``."""
        waits = [wait for waits in self.shown.values() for wait in waits.values()]
        return any(not wait.is_over(now_ms) and wait.is_over(now_ms + SOON_MS) for wait in waits)

    def tables_unlike(self, topics: Mapping[str, frozenset[str]]) -> Iterator[str]:
        for name, known in topics.items():
            for topic in sorted(self.gone & known):
                yield f"topic {topic} was deleted and is at {name}"
            for topic in sorted(self.made - known):
                yield f"topic {topic} was made and is not at {name}"


class Waits:
    """Works until ``stop``; ``look`` says what a healed cluster does not show."""

    def __init__(self, site: Site, env: Env, chance: random.Random) -> None:
        self._site, self._chance = site, chance
        options = SendOptions(timeout_s=3.0, poll_ms=1000)
        self._producer = Producer(env, SENDERS, site.namesrv, options=options, check=self._check)
        self._consumer = PullConsumer(env, READERS, site.namesrv, poll_ms=1000)
        self._admin = AdminClient(env, site.namesrv)
        self._number = 0
        self._stopping = False
        self._decisions: dict[str, Decision] = {}
        self._asked: Counter[str] = Counter()
        self._acts: dict[str, Callable[[str], Awaitable[object]]] = {
            "timer": self._timer,
            "level": self._level,
            "recall": self._recall,
            "topic": self._topic,
            "check": self._transaction,
        }
        self.account = Account()
        self.done: Counter[str] = Counter()

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        for part in (self._producer, self._consumer, self._admin):
            await part.start()
        while not self._stopping and TOPIC not in self.account.made:
            try:
                await self._make(TOPIC)
            except (MqError, OSError):
                await asyncio.sleep(0.2)
        while not self._stopping:
            kind = self._chance.choice(KINDS)
            self._number += 1
            try:
                await self._acts[kind](f"waits-{kind}-{self._number}")
                self.done[f"wait.{kind}"] += 1
            except (MqError, OSError):
                self.done["wait.failed"] += 1
            await asyncio.sleep(self._chance.random() * 2 * PAUSE_S)

    async def _make(self, topic: str) -> None:
        await self._admin.create_topic(topic, 1, brokers=[self._site.group])
        self.account.made.add(topic)

    # What waits

    async def _send(self, message: Message) -> tuple[SendResult, int | None]:
        """The answer, and the skew of the clock that it was stored by. Raises Unknown unless it is OK."""
        before = self._site.skews()
        queue = Queue(message.topic, self._site.group, 0)
        result = await self._producer.send(message, queue=queue)
        if result.status is not SendStatus.SEND_OK:
            raise Unknown(f"answered {result.status.name}")
        address = result.attempts[-1].address
        skew = before.get(address)
        return result, skew if skew == self._site.skews().get(address) else None

    def _wait(self, sent: SendResult, begun_ms: int, after_ms: int, skew: int | None, *, level: bool) -> Wait:
        copies = 1 + sum(attempt.outcome == "unknown" for attempt in sent.attempts)
        skews = [0, *self._site.skews().values()] if skew is None or copies > 1 else [skew]
        longest = LEVEL_MS_MAX if level else after_ms
        due_ms = begun_ms + after_ms + min(skews) if skew is not None else None
        return Wait(copies, due_ms, self._site.true_ms() + longest + max(skews), level)

    async def _timer(self, key: str, topic: str = TOPIC) -> SendResult:
        after_ms, begun_ms = self._chance.choice(AFTER_MS), self._site.true_ms()
        properties = {"UNIQ_KEY": key}
        message = Message(topic=topic, body=key.encode(), properties=properties, deliver_after_ms=after_ms)
        sent, skew = await self._send(message)
        if topic == TOPIC:
            self.account.wait(topic, key, self._wait(sent, begun_ms, after_ms, skew, level=False))
        return sent

    async def _level(self, key: str, topic: str = TOPIC) -> None:
        begun_ms = self._site.true_ms()
        properties, level = {"UNIQ_KEY": key}, self._chance.choice(LEVELS)
        message = Message(topic=topic, body=key.encode(), properties=properties, delay_level=level)
        sent, skew = await self._send(message)
        if topic == TOPIC:
            self.account.wait(topic, key, self._wait(sent, begun_ms, LEVEL_MS_MIN, skew, level=True))

    async def _recall(self, key: str) -> None:
        sent = await self._timer(key)
        if sent.recall_handle is None or len(sent.attempts) > 1:
            return
        # What is not answered may be done: from here on nobody promises that it comes, or that it does not.
        del self.account.shown[TOPIC][key]
        await self._producer.recall(TOPIC, sent.recall_handle)
        self.account.hidden.add(key)

    async def _topic(self, key: str) -> None:
        """Messages wait for a topic that is deleted: they do not bring it back. Made again, it keeps what is
        sent then."""
        account = self.account
        await self._make(key)
        for number in range(2):
            send = self._timer if self._chance.random() < 0.5 else self._level
            await send(f"{key}-{number}", key)
        account.made.discard(key)  # what is not answered may be done
        info = await self._admin.cluster_info()
        master = info.brokers.get(self._site.group, {}).get(0)
        if master is None:
            return
        ext = {"topic": key, MASTER_ONLY: flag(True)}
        await self._admin.session.call(master, Request.DELETE_TOPIC_IN_BROKER, ext)
        account.gone.add(key)
        if self._chance.random() < 0.5:
            return
        account.gone.discard(key)
        await asyncio.sleep(self._chance.choice((0.0, 0.3, 1.5)))
        await self._make(key)
        for number in range(2, 5):
            again = f"{key}-{number}"
            properties = {"UNIQ_KEY": again}
            sent, _ = await self._send(Message(topic=key, body=again.encode(), properties=properties))
            account.wait(key, again, Wait(1 + sum(one.outcome == "unknown" for one in sent.attempts)))
            self.done["wait.made_again"] += 1

    async def _check(self, message: Received) -> Decision:
        """Some are asked about again."""
        self.done["wait.checked"] += 1
        self._asked[message.msg_id] += 1
        first = self._asked[message.msg_id] == 1
        return (
            Decision.UNKNOWN
            if first and self._chance.random() < 0.3
            else self._decisions.get(message.msg_id, Decision.ROLLBACK)
        )

    async def _transaction(self, key: str) -> None:
        self._decisions[key] = self._chance.choice((Decision.COMMIT, Decision.ROLLBACK))
        if self._decisions[key] is Decision.ROLLBACK:
            self.account.hidden.add(key)

        async def work(_: SendResult) -> Decision:
            return Decision.UNKNOWN

        message = Message(topic=TOPIC, body=key.encode(), properties={"UNIQ_KEY": key})
        done = await self._producer.send_in_transaction(
            message, work, queue=Queue(TOPIC, self._site.group, 0)
        )
        if done.sent.status is not SendStatus.SEND_OK:
            raise Unknown(f"answered {done.sent.status.name}")
        if self._decisions[key] is Decision.COMMIT:
            copies = 1 + sum(attempt.outcome == "unknown" for attempt in done.sent.attempts)
            skews = [0, *self._site.skews().values()]
            # The time after which it is asked about is by the clock of who asks.
            asked_ms = self._site.true_ms() + max(skews) + CHECKED_MS
            self.account.wait(TOPIC, key, Wait(copies, None, asked_ms))

    # Was it kept?

    def waits_on(self, now_ms: int) -> bool:
        return self.account.waits_on(now_ms)

    async def look(self, now_ms: int, *, tables_only: bool, once: bool) -> list[str]:
        """What was answered and does not show; ``now_ms``: by the master's clock."""
        try:
            found = list(self.account.tables_unlike(await self._site.topics()))
            if tables_only or TOPIC not in self.account.made:
                return found
            stored: dict[str, dict[str, list[int]]] = {}
            for topic in self.account.shown:
                stored[topic] = await self._stored(topic)
            return [*found, *self.account.not_kept(stored, now_ms, once=once)]
        except (MqError, OSError) as error:
            return [f"cannot be read back: {error}"]

    async def _stored(self, topic: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for message in await self._consumer.read_all(Queue(topic, self._site.group, 0)):
            found.setdefault(message.msg_id, []).append(message.store_timestamp_ms)
        return found

    def broken(self, told: Sequence[str]) -> list[Violation]:
        return [Violation("waits", text) for text in told]
