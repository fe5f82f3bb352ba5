"""What do clients do to a cluster while it is being broken? Rated sends over queues, and one reader.

Everything they do and are told goes into a ``History``. Both worlds run this code: it needs a clock in ms, a
seeded random source, and something that sends or reads.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.clients import Acked, Reader, Seen, Sender, body_crc
from chaos.history import Fail, History, Invoke, Ok, Read, Unknown
from client.message import Queue, SendFailed
from model.errors import MqError

Clock = Callable[[], float]
"""Milliseconds of the clock the history is written by."""

# How long a queue may take to show what was acknowledged; what it does not show then is missing.
SETTLE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """``per_second`` and ``in_flight_max`` are per producer; a body is ``body_bytes`` random bytes.

    Sends that fell due while one took long are made up for when they are at most ``make_up_s`` late; 0 makes
    the rate a ceiling.
    """

    topic: str = "chaos"
    producers: int = 4
    per_second: float = 25.0
    queues: int = 8
    body_bytes: tuple[int, int] = (16, 256)
    in_flight_max: int = 1
    read_wait_ms: int = 1000
    make_up_s: float = 0.0


def queues_of(load: Load, group: str) -> list[Queue]:
    return [Queue(load.topic, group, number) for number in range(load.queues)]


class ProducerLoad:
    """One producer: sends until ``stop``, at its rate, but never more than ``in_flight_max`` at once.

    Queues are taken at random, so that one producer's messages interleave with the others' in each queue.
    """

    def __init__(
        self,
        name: str,
        sender: Sender,
        queues: Sequence[Queue],
        load: Load,
        history: History,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self.name = name
        self._sender, self._queues, self._load = sender, queues, load
        self._history, self._clock, self._chance = history, clock, chance
        self._number = 0
        self._stopping = False

    def stop(self) -> None:
        """No further send begins."""
        self._stopping = True

    async def run(self) -> None:
        """Send until ``stop``; returns when every send has ended."""
        workers = [self._work() for _ in range(self._load.in_flight_max)]
        await asyncio.gather(*workers)

    async def _work(self) -> None:
        period_s = self._load.in_flight_max / self._load.per_second
        loop = asyncio.get_running_loop()
        # A random phase: producers that start together would send together for ever.
        due = loop.time() + self._chance.random() * period_s
        while not self._stopping:
            await asyncio.sleep(max(0.0, due - loop.time()))
            if self._stopping:
                return
            await self.send_one()
            due = max(due + period_s, loop.time() - self._load.make_up_s)

    async def send_one(self) -> bool:
        """One send, noted in the history; whether it was acknowledged."""
        self._number += 1
        key = f"{self.name}-{self._number:06d}"
        queue = self._queues[self._chance.randrange(len(self._queues))]
        body = self._chance.randbytes(self._chance.randint(*self._load.body_bytes))
        self._history.add(Invoke(self._clock(), self.name, key, queue, body_crc(body)))
        try:
            acked: Acked = await self._sender.send(key, queue, body)
        except SendFailed as error:
            self._history.add(Fail(self._clock(), self.name, key, str(error)))
            return False
        except (MqError, OSError) as error:
            attempts = getattr(error, "attempts", ())
            unknown = sum(attempt.outcome == "unknown" for attempt in attempts)
            text = str(error) or type(error).__name__
            self._history.add(Unknown(self._clock(), self.name, key, text, max(1, unknown)))
            return False
        now_ms = self._clock()
        self._history.add(
            Ok(
                now_ms,
                self.name,
                key,
                acked.queue,
                acked.queue_offset,
                acked.physical_offset,
                acked.address,
                acked.unknown_attempts,
            )
        )
        return True


@dataclass(frozen=True, slots=True)
class Jump:
    """A consumer that asked for offset ``begin`` of a queue was sent to ``end``: it got nothing between."""

    at_ms: float
    queue: Queue
    begin: int
    end: int


class ReaderLoad:
    """One consumer that follows all queues and notes what it is given. ``errors``: reads that failed; ``at``:
    what it asks for next, by queue; ``jumps``: where it was sent elsewhere than on."""

    def __init__(
        self,
        name: str,
        reader: Reader,
        queues: Sequence[Queue],
        load: Load,
        history: History,
        clock: Clock,
    ) -> None:
        self.name = name
        self._reader, self._queues, self._load = reader, queues, load
        self._history, self._clock = history, clock
        self._stopping = False
        self.errors = 0
        self.at = dict.fromkeys(queues, 0)
        self.jumps: list[Jump] = []

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        """Follow every queue until ``stop``; an error is counted, and the queue tried again."""
        await asyncio.gather(*(self._follow(queue) for queue in self._queues))

    async def _follow(self, queue: Queue) -> None:
        offset = 0
        while not self._stopping:
            try:
                seen, next_offset = await self._reader.read(queue, offset, wait_ms=self._load.read_wait_ms)
            except (MqError, OSError):
                self.errors += 1
                await asyncio.sleep(0.2)
                continue
            self._note(seen, final=False)
            for begin, end in jumps(offset, [message.queue_offset for message in seen], next_offset):
                self.jumps.append(Jump(self._clock(), queue, begin, end))
            self.at[queue] = next_offset
            if next_offset == offset:
                # An answer without anything new may come at once; asking again at once would spin.
                await asyncio.sleep(0.05)
            offset = next_offset

    async def read_back(self, *, until_s: float) -> bool:
        """Read all queues from their start as the final state; False when that failed until ``until_s`` (of
        the loop's clock).

        A message is in its queue a moment after its send is answered: a queue that ends before what was
        acknowledged there is read again for SETTLE_S.
        """
        loop = asyncio.get_running_loop()
        ends: dict[Queue, int] = {}
        for event in self._history.events:
            if isinstance(event, Ok):
                ends[event.queue] = max(ends.get(event.queue, 0), event.queue_offset + 1)
        settled_s = loop.time() + SETTLE_S
        found: list[Seen] = []
        for queue in self._queues:
            while True:
                try:
                    seen = await self._reader.read_all(queue)
                except (MqError, OSError):
                    self.errors += 1
                    if loop.time() > until_s:
                        return False
                else:
                    end = seen[-1].queue_offset + 1 if seen else 0
                    if end >= ends.get(queue, 0) or loop.time() > settled_s:
                        break
                await asyncio.sleep(0.2)
            found += seen
        self._note(found, final=True)
        return True

    def _note(self, seen: Sequence[Seen], *, final: bool) -> None:
        now_ms = self._clock()
        for message in seen:
            self._history.add(
                Read(
                    now_ms,
                    self.name,
                    message.key,
                    message.queue,
                    message.queue_offset,
                    message.body_crc,
                    final,
                )
            )


def jumps(offset: int, seen: Sequence[int], next_offset: int) -> list[tuple[int, int]]:
    """Where a reading from ``offset`` that gave the offsets ``seen`` did not go on one by one."""
    found, due = [], offset
    for given in (*seen, next_offset):
        if given != due:
            found.append((due, given))
        due = given + 1
    return found


def not_consumed(history: History, sent_on: Sequence[Jump], at: Mapping[Queue, int]) -> list[str]:
    """What a consumer was kept from, in words: sent back, sent past what was acknowledged, or, with what it
    asks for next, not given to the end."""
    acked: dict[Queue, list[int]] = {}
    for event in history.events:
        if isinstance(event, Ok):
            acked.setdefault(event.queue, []).append(event.queue_offset)
    told = []
    for jump in sent_on:
        way = f"a consumer of {jump.queue} at {jump.begin} was sent to {jump.end} at {jump.at_ms:.0f} ms"
        missed = sum(jump.begin <= offset < jump.end for offset in acked.get(jump.queue, ()))
        if jump.end < jump.begin:
            told.append(f"{way}: back")
        elif missed:
            told.append(f"{way}: past {missed} acknowledged messages")
    for queue, due in at.items():
        left = sum(offset >= due for offset in acked.get(queue, ()))
        if left:
            told.append(f"a consumer of {queue} is at {due}: it was not given {left} acknowledged messages")
    return told
