"""The promise of the load: it keeps its rate, notes every send and its end, and reads all it is given."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from chaos.checks import Evidence, check_all
from chaos.clients import Acked, Seen, body_crc
from chaos.history import History, Invoke, Ok, Read
from chaos.sim.loop import SimLoop
from chaos.workload import Jump, Load, ProducerLoad, ReaderLoad, jumps, not_consumed, queues_of
from client.message import Queue, SendFailed, SendUnknown


class Log:
    """A sender and a reader over one list per queue; some sends fail or stay unknown."""

    def __init__(self, *, took_s: float = 0.0) -> None:
        self.queues: dict[Queue, list[Seen]] = {}
        self.took_s = took_s
        self.fail: dict[int, Exception] = {}
        self.count = 0
        self.broken_reads = 0

    async def send(self, key: str, queue: Queue, body: bytes) -> Acked:
        self.count += 1
        await asyncio.sleep(self.took_s)
        error = self.fail.get(self.count)
        if error is not None:
            raise error
        messages = self.queues.setdefault(queue, [])
        messages.append(Seen(key, queue, len(messages), body_crc(body)))
        return Acked(queue, len(messages) - 1, 100 * self.count, "127.0.2.1:10911")

    async def read(self, queue: Queue, offset: int, *, wait_ms: int = 0) -> tuple[list[Seen], int]:
        if self.broken_reads:
            self.broken_reads -= 1
            raise ConnectionResetError("broken")
        found = self.queues.get(queue, [])[offset : offset + 3]
        return found, offset + len(found)

    async def read_all(self, queue: Queue) -> list[Seen]:
        if self.broken_reads:
            self.broken_reads -= 1
            raise ConnectionResetError("broken")
        return list(self.queues.get(queue, []))


LOAD = Load(producers=1, per_second=20.0, queues=3)
QUEUES = queues_of(LOAD, "broker-a")


def simulate(work: Coroutine[Any, Any, None], loop: SimLoop) -> None:
    try:
        loop.run_until_complete(work)
        assert loop.errors == []
    finally:
        loop.close()


def a_producer(loop: SimLoop, log: Log, load: Load = LOAD) -> tuple[ProducerLoad, History]:
    history = History()
    return ProducerLoad(
        "p0", log, QUEUES, load, history, lambda: loop.time() * 1000, random.Random(1)
    ), history


def test_a_producer_keeps_its_rate_and_every_send_has_an_end() -> None:
    loop = SimLoop(1)
    producer, history = a_producer(loop, Log(took_s=0.002))

    async def main() -> None:
        task = loop.create_task(producer.run())
        await asyncio.sleep(10)
        producer.stop()
        await task

    simulate(main(), loop)
    sends = history.sends()
    assert 195 <= len(sends) <= 201
    assert all(send.outcome == "ok" and send.ended_ms is not None for send in sends)
    assert {send.queue for send in sends} == set(QUEUES)


def test_sends_that_take_long_are_not_made_up_for() -> None:
    loop = SimLoop(1)
    producer, history = a_producer(loop, Log(took_s=1.0))

    async def main() -> None:
        task = loop.create_task(producer.run())
        await asyncio.sleep(10)
        producer.stop()
        await task

    simulate(main(), loop)
    assert 9 <= len(history.sends()) <= 11


def test_several_sends_may_be_in_flight() -> None:
    loop = SimLoop(1)
    load = Load(producers=1, per_second=20.0, queues=3, in_flight_max=20)
    producer, history = a_producer(loop, Log(took_s=1.0), load)

    async def main() -> None:
        task = loop.create_task(producer.run())
        await asyncio.sleep(10)
        producer.stop()
        await task

    simulate(main(), loop)
    assert 150 <= len(history.sends()) <= 201


def test_outcomes_are_told_apart() -> None:
    loop = SimLoop(1)
    log = Log()
    log.fail = {1: SendFailed("no", 14, ()), 2: SendUnknown("perhaps", ()), 3: ConnectionResetError("gone")}
    producer, history = a_producer(loop, log)

    async def main() -> None:
        assert [await producer.send_one() for _ in range(4)] == [False, False, False, True]

    simulate(main(), loop)
    sends = history.sends()
    assert [send.outcome for send in sends] == ["fail", "unknown", "unknown", "ok"]
    assert [send.unknown_attempts for send in sends] == [0, 1, 1, 0]
    assert sends[3].address == "127.0.2.1:10911"


def test_a_reader_sees_all_and_a_good_run_passes_every_check() -> None:
    loop = SimLoop(1)
    log = Log(took_s=0.002)
    log.broken_reads = 5
    producer, history = a_producer(loop, log)
    reader = ReaderLoad("consumer", log, QUEUES, LOAD, history, lambda: loop.time() * 1000)

    async def main() -> None:
        tasks = [loop.create_task(producer.run()), loop.create_task(reader.run())]
        await asyncio.sleep(5)
        producer.stop()
        await asyncio.sleep(1)
        reader.stop()
        await asyncio.gather(*tasks)
        log.broken_reads = 2
        assert await reader.read_back(until_s=loop.time() + 5)

    simulate(main(), loop)
    assert reader.errors == 7
    keys = sorted(send.key for send in history.sends())
    for final in (False, True):
        assert sorted(read.key for read in history.reads(final=final)) == keys
    assert check_all(Evidence(history)) == []


@pytest.mark.parametrize(("late_s", "complete"), [(1.0, True), (60.0, False)])
def test_a_reading_back_waits_for_what_was_acknowledged_but_not_for_ever(
    late_s: float, complete: bool
) -> None:
    # A broker answers a send, and the message is in its queue when it is dispatched.
    loop = SimLoop(1)
    log = Log(took_s=0.002)
    producer, history = a_producer(loop, log)
    reader = ReaderLoad("consumer", log, QUEUES, LOAD, history, lambda: loop.time() * 1000)

    async def main() -> None:
        sending = loop.create_task(producer.run())
        await asyncio.sleep(2)
        producer.stop()
        await sending
        late = {queue: messages.pop() for queue, messages in log.queues.items()}
        for queue, message in late.items():
            loop.call_later(late_s, log.queues[queue].append, message)
        assert await reader.read_back(until_s=loop.time() + 10)

    simulate(main(), loop)
    missing = {violation.checker for violation in check_all(Evidence(history))}
    assert missing == (set() if complete else {"lost"})


def test_a_reading_back_that_cannot_succeed_ends() -> None:
    loop = SimLoop(1)
    log = Log()
    log.broken_reads = 10_000
    history = History()
    reader = ReaderLoad("consumer", log, QUEUES, LOAD, history, lambda: loop.time() * 1000)

    async def main() -> None:
        assert not await reader.read_back(until_s=loop.time() + 3)

    simulate(main(), loop)
    assert not any(isinstance(event, Read) for event in history.events)


@pytest.mark.parametrize(
    ("seen", "next_offset", "told"),
    [
        ([5, 6, 7], 8, []),
        ([], 5, []),
        ([], 3, ["at 5 was sent to 3 at 0 ms: back"]),
        ([5], 9, ["at 6 was sent to 9 at 0 ms: past 3 acknowledged messages"]),
        ([7], 8, ["at 5 was sent to 7 at 0 ms: past 2 acknowledged messages"]),
        ([], 13, ["at 5 was sent to 13 at 0 ms: past 6 acknowledged messages"]),
        ([5, 6, 7, 8, 9, 10], 13, []),
    ],
)
def test_a_consumer_that_is_sent_back_or_past_what_was_acknowledged_is_told(
    seen: list[int], next_offset: int, told: list[str]
) -> None:
    queue = QUEUES[0]
    events: list[Any] = []
    for offset in range(11):
        events += [
            Invoke(0.0, "p", f"k{offset}", queue, 1),
            Ok(1.0, "p", f"k{offset}", queue, offset, offset),
        ]
    sent_on = [Jump(0.0, queue, begin, end) for begin, end in jumps(5, seen, next_offset)]
    found = not_consumed(History(events), sent_on, {queue: 11})
    assert found == [f"a consumer of {queue} {text}" for text in told]


def test_a_consumer_that_is_given_nothing_is_told() -> None:
    loop = SimLoop(1)
    log = Log()
    producer, history = a_producer(loop, log)
    reader = ReaderLoad("consumer", log, QUEUES, LOAD, history, lambda: loop.time() * 1000)

    async def main() -> None:
        for _ in range(6):
            await producer.send_one()
        tasks = [loop.create_task(reader.run())]
        await asyncio.sleep(0.5)
        assert not_consumed(history, reader.jumps, reader.at) == []
        log.broken_reads = 10_000
        for _ in range(6):
            await producer.send_one()
        await asyncio.sleep(5)
        reader.stop()
        await asyncio.gather(*tasks)

    simulate(main(), loop)
    told = not_consumed(history, reader.jumps, reader.at)
    assert told
    assert all("was not given" in text for text in told)
