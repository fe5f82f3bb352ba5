"""What is a group promised that pops, while an operator moves it, and others of it pull?

Messages are sent, popped, acknowledged or left alone, hidden for longer; an operator resets the group's
offsets and deletes the group; a member pulls and commits. ``Account`` is what of that has to come (pure);
``Pops`` does it, the same way in any world.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.checks import Violation
from client.admin import AdminClient
from client.consuming.pop.calls import PopCalls, Popped
from client.consuming.pull import PullConsumer
from client.message import Message, Queue, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.session import Session
from model.codes import Request
from model.errors import MqError
from model.pop import NORMAL
from remoting import bodies
from remoting.codec import Command
from runtime.env import Env

TOPIC: Final = "pops"
GROUP: Final = "GID_pops"
QUEUES: Final = 2
POPPERS: Final = 2
PAUSE_S: Final = 0.05
OPERATES_S: Final = 0.7
POLL_MS: Final = 300
COUNTS: Final = (1, 2, 8)
INVISIBLE_MS: Final = (600, 1000, 2000)


@dataclass(slots=True)
class Move:
    """Somebody has the group go on at ``to``. ``sure``: an operator was answered OK. What was not answered
    may be done at any time later."""

    to: int
    begun_ms: float
    ended_ms: float = math.inf
    sure: bool = False


class Account:
    """What was stored, given and acknowledged, and where the group was moved to, by queue."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[int, int]] = {}
        """Queue and offset of each message whose send was answered OK."""
        self.given: dict[str, list[float]] = defaultdict(list)
        self.acked: dict[str, float] = {}
        self.again: list[str] = []
        """Given from its own queue after its acknowledgement was answered OK."""
        self.moves: dict[int, list[Move]] = defaultdict(list)

    def on_given(self, key: str, at_ms: float, *, own: bool) -> None:
        """``own``: from the topic itself, not from the group's retry topic."""
        self.given[key].append(at_ms)
        if own and key in self.acked:
            self.again.append(key)

    def end_of(self, queue_id: int) -> int:
        """Behind the last message of a queue that is known to be stored."""
        return max((at + 1 for queue, at in self.stored.values() if queue == queue_id), default=0)

    def lacking(self, there: set[tuple[str, int, int]]) -> Iterator[str]:
        """Messages that lie ``there`` (key, queue, offset) in the end and should have come, and did not: all
        behind the last place that an operator surely had the group go on at, since then; those that somebody
        may have skipped later need not."""
        for key, (queue_id, at) in sorted(self.stored.items()):
            if (key, queue_id, at) not in there:
                continue
            moves = self.moves[queue_id]
            sure = next((move for move in reversed(moves) if move.sure), Move(0, 0.0))
            bound = max([sure.to, *(move.to for move in moves if move.ended_ms >= sure.begun_ms)])
            if at >= bound and not any(came >= sure.begun_ms for came in self.given[key]):
                since = (
                    f" since {sure.begun_ms:.0f} ms, when it was to go on at {sure.to}" if sure.sure else ""
                )
                yield f"{key} at {queue_id}:{at} was never given to {GROUP}{since}"

    def given_again(self) -> Iterator[str]:
        """Nobody moved the group: what was acknowledged does not come from its own queue again."""
        if not any(self.moves.values()):
            yield from (f"{key} was acknowledged OK and given again from its queue" for key in self.again)


class _Calls(PopCalls):
    """A pop that says when it was born is refused where its broker's clock is ahead by more than it waits, as
    by RocketMQ. These say nothing: what is asked is what brokers give."""

    async def _ask(
        self, topic: str, broker_name: str, code: int, ext: Mapping[str, str], *rest: Any, **how: Any
    ) -> Command:
        unborn = {**ext, "bornTime": "0"} if code == Request.POP_MESSAGE else ext
        return await super()._ask(topic, broker_name, code, unborn, *rest, **how)


@dataclass(slots=True)
class _Now:
    """What goes on: sends and moves, their last one, pops, and pops of all that is left."""

    working: bool = True
    at_work: bool = True
    popping: bool = True
    draining: bool = False


class Pops:
    """Works until ``stop``; then ``drain``, of which ``broken`` says what did not come. ``parts``: "reset",
    "delete", "pull" and "hide" beside pops and acknowledgements."""

    def __init__(
        self,
        env: Env,
        broker_name: str,
        namesrv: Sequence[str],
        parts: Sequence[str],
        chance: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self._broker_name, self._parts, self._chance, self._clock = broker_name, parts, chance, clock
        options = SendOptions(timeout_s=3.0, poll_ms=1000, unknown_retries=0)
        self._producer = Producer(env, "GID_pops_p", namesrv, options=options)
        self._puller = PullConsumer(env, GROUP, namesrv, poll_ms=1000)
        self._admin = AdminClient(env, namesrv)
        self._session = Session(env, namesrv, poll_ms=1000)
        self._calls = _Calls(env, self._session, GROUP)
        self._now = _Now()
        self.account = Account()
        self.done: Counter[str] = Counter()
        self.ready = False
        """Whether topic and group were made: before, nothing is promised."""

    def stop(self) -> None:
        """No more is sent, moved or pulled; what was sent is popped on until ``close``."""
        self._now.working = False

    async def run(self) -> None:
        """Until ``close``."""
        for part in (self._producer, self._puller, self._admin, self._session):
            await part.start()
        while self._now.working and not self.ready:
            try:
                await self._admin.create_topic(TOPIC, QUEUES, brokers=[self._broker_name])
                await self._make_group()
                self.ready = True
            except (MqError, OSError):
                await asyncio.sleep(0.2)
        if self.ready:
            await asyncio.gather(self._work(), *(self._pop() for _ in range(POPPERS)))

    async def _work(self) -> None:
        """All that ends with ``stop``."""
        works = [self._send()]
        works += [self._operate()] if {"reset", "delete"} & set(self._parts) else []
        works += [self._pull()] if "pull" in self._parts else []
        await asyncio.gather(*works)
        self._now.at_work = False

    # Sending, popping

    async def _send(self) -> None:
        number = 0
        while self._now.working:
            number += 1
            key, queue = f"pop-{number}", Queue(TOPIC, self._broker_name, number % QUEUES)
            message = Message(topic=TOPIC, body=key.encode(), properties={"UNIQ_KEY": key})
            try:
                result = await self._producer.send(message, queue=queue)
            except (MqError, OSError):
                continue
            finally:
                await asyncio.sleep(self._chance.random() * 2 * PAUSE_S)
            if result.status is SendStatus.SEND_OK:
                self.account.stored[key] = (result.queue.queue_id, result.queue_offset)
                self.done["pop.sent"] += 1

    async def _pop(self) -> None:
        chance = self._chance
        while self._now.popping:
            try:
                found = await self._calls.pop(
                    TOPIC,
                    self._broker_name,
                    chance.choice(COUNTS),
                    invisible_ms=chance.choice(INVISIBLE_MS),
                    poll_ms=POLL_MS,
                    from_first=True,
                )
            except (MqError, OSError):
                await asyncio.sleep(0.05)
                continue
            for one in found:
                self.account.on_given(one.message.msg_id, self._clock(), own=one.info.kind == NORMAL)
                self.done["pop.given"] += 1
            await self._end(found)
            await asyncio.sleep(chance.random() * 2 * PAUSE_S)

    async def _end(self, found: Sequence[Popped]) -> None:
        """Acknowledge, hide for longer, or leave alone what was given."""
        chance = self._chance
        acks = []
        for one in found:
            lot = 1.0 if self._now.draining else chance.random()
            if lot < 0.15:
                continue
            if lot < 0.3 and "hide" in self._parts:
                try:
                    await self._calls.change(one, chance.choice(INVISIBLE_MS))
                    self.done["pop.hidden"] += 1
                except (MqError, OSError):
                    continue
                if chance.random() < 0.5:
                    continue
            acks.append(one)
        by_place: dict[str, list[Popped]] = defaultdict(list)
        for one in acks:
            by_place[one.info.kind].append(one)
        for ones in by_place.values():
            for part in [ones] if chance.random() < 0.3 else [[one] for one in ones]:
                await self._ack(part)

    async def _ack(self, ones: Sequence[Popped]) -> None:
        try:
            await self._calls.ack(ones)
        except (MqError, OSError):
            return
        if len(ones) > 1:
            return  # the answer to a batch does not say which
        for one in ones:
            if one.info.kind == NORMAL:
                self.account.acked.setdefault(one.message.msg_id, self._clock())
            self.done["pop.acked"] += 1

    # Moving

    async def _operate(self) -> None:
        kinds = [part for part in self._parts if part in ("reset", "delete")]
        while self._now.working:
            await asyncio.sleep(self._chance.random() * 2 * OPERATES_S)
            try:
                await (self._reset() if self._chance.choice(kinds) == "reset" else self._delete())
            except (MqError, OSError):
                self.done["pop.move_failed"] += 1

    async def _master(self) -> str | None:
        info = await self._admin.cluster_info()
        return info.brokers.get(self._broker_name, {}).get(0)

    async def _reset(self) -> None:
        master = await self._master()
        queue_id = self._chance.randrange(QUEUES)
        end = self.account.end_of(queue_id)
        if master is None or end == 0:
            return
        to = self._chance.randint(max(0, end - 30), end)
        ext = {
            "group": GROUP,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "timestamp": "0",
            "offset": str(to),
        }
        move = Move(to, self._clock())
        self.account.moves[queue_id].append(move)
        await self._admin.session.call(master, Request.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        move.sure, move.ended_ms = True, self._clock()
        self.done["pop.reset"] += 1

    async def _make_group(self) -> None:
        master = await self._master()
        if master is None:
            raise OSError("no master")
        body = bodies.dumps({"groupName": GROUP, "consumeEnable": True})
        await self._admin.session.call(master, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    async def _delete(self) -> None:
        """The group begins anew, at its queues' begin."""
        master = await self._master()
        if master is None:
            return
        moves = [Move(0, self._clock()) for _ in range(QUEUES)]
        for queue_id, move in enumerate(moves):
            self.account.moves[queue_id].append(move)
        ext = {"groupName": GROUP, "cleanOffset": "true"}
        try:
            await self._admin.session.call(master, Request.DELETE_SUBSCRIPTIONGROUP, ext)
            for move in moves:
                move.sure, move.ended_ms = True, self._clock()
            self.done["pop.deleted"] += 1
        finally:
            await self._make_group_surely()

    async def _make_group_surely(self) -> None:
        while self._now.popping:
            try:
                await self._make_group()
                return
            except (MqError, OSError):
                await asyncio.sleep(0.1)

    async def _pull(self) -> None:
        """A member of the same group that pulls from where the group is, and commits what it had."""
        while self._now.working:
            queue = Queue(TOPIC, self._broker_name, self._chance.randrange(QUEUES))
            try:
                at = await self._puller.committed(queue) or 0
                pulled = await self._puller.pull(queue, at, count_max=3, master_only=True)
                for message in pulled.messages:
                    self.account.on_given(message.msg_id, self._clock(), own=False)
                    self.done["pop.pulled"] += 1
                if pulled.next_offset > at and self._chance.random() < 0.7:
                    move = Move(pulled.next_offset, self._clock())
                    self.account.moves[queue.queue_id].append(move)
                    await self._puller.commit(queue, pulled.next_offset)
                    move.ended_ms = self._clock()
            except (MqError, OSError):
                pass
            await asyncio.sleep(self._chance.random() * 6 * PAUSE_S)

    # Was it kept?

    async def drain(self, until: Callable[[], bool]) -> None:
        """Pop on until all has come, or ``until`` says that it was time enough."""
        self._now.draining = True
        while not until():
            if not self._now.at_work and not await self._left():
                return
            await asyncio.sleep(0.3)

    async def close(self) -> None:
        self._now.popping = False

    async def _left(self) -> list[str]:
        try:
            there = await self._there()
        except (MqError, OSError) as error:
            return [f"{TOPIC} cannot be read back: {error}"]
        return list(self.account.lacking(there))

    async def _there(self) -> set[tuple[str, int, int]]:
        found = set()
        for number in range(QUEUES):
            for message in await self._puller.read_all(Queue(TOPIC, self._broker_name, number)):
                found.add((message.msg_id, number, message.queue_offset))
        return found

    async def broken(self, *, all_is_there: bool) -> list[Violation]:
        """``all_is_there``: nothing that was answered may have been lost, acknowledgements either."""
        told = await self._left()
        told += self.account.given_again() if all_is_there else ()
        return [Violation("pops", text) for text in told]
