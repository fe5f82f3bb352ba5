"""The promises of a client's limits: what is in hand has a number and a size; slow brokers are avoided."""

from __future__ import annotations

import asyncio

import pytest

from client.consuming.allocate import average_by_circle
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.message import Message, Received, SendFailed
from client.sending.in_flight import InFlight
from client.sending.latency import Latencies
from client.sending.options import Gather, SendOptions
from client.sending.producer import Producer
from model.codes import Request, Response
from remoting.codec import Command
from runtime.env import Env
from tests.fakes.client import cluster, run, stop
from tests.waiting import until


def test_sends_in_flight_are_bounded_by_bytes_and_room_waits_for_an_end() -> None:
    async def work(env: Env) -> None:
        held = InFlight(count_max=10, bytes_max=100)
        first = held.add(150)  # one alone may be larger
        with pytest.raises(SendFailed, match="150 bytes are in flight") as refused:
            held.add(1)
        assert refused.value.code == Response.SYSTEM_BUSY
        waiting = asyncio.create_task(held.room(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        first.cancel()
        await asyncio.sleep(0)
        assert held.why_full(60), "who gives up waiting for a send does not end it"
        held.end(first)
        await waiting
        held.add(60)
        held.add(40)
        assert held.why_full(1)

    run(work)


def test_sends_in_flight_are_bounded_by_number() -> None:
    async def work(env: Env) -> None:
        held = InFlight(count_max=1, bytes_max=100)
        held.add(1)
        with pytest.raises(SendFailed, match="1 sends are in flight"):
            held.add(1)

    run(work)


def test_a_producer_waits_for_room() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        options = SendOptions(in_flight_bytes_max=10)
        async with Producer(env, "pg", nameserver.address, options=options) as producer:
            futures = []
            for n in range(5):
                message = Message(topic="T", body=b"%08d" % n)
                await producer.room(message)
                futures.append(producer.send_async(message))
                assert sum(not future.done() for future in futures) == 1
            await asyncio.gather(*futures)
        assert len(broker.log) == 5
        await stop(nameserver, broker)

    run(work)


@pytest.mark.parametrize("gather", [None, Gather(wait_ms=0)])
def test_sends_that_nobody_waits_for_any_more_are_out_until_their_end(gather: Gather | None) -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        go = asyncio.Event()

        async def hold(command: Command) -> Command | None:
            await go.wait()
            return None

        message = Message(topic="T", body=b"x")
        options = SendOptions(in_flight_max=2, gather=gather)
        async with Producer(env, "pg", nameserver.address, options=options) as producer:
            await producer.send(message)
            broker.before = hold
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(producer.send_async(message), 0.01)
            with pytest.raises(SendFailed, match="2 sends are in flight"):
                producer.send_async(message)
            go.set()
            await producer.room(message)
            for _ in range(3):
                await asyncio.gather(producer.send_async(message), producer.send_async(message))
        await stop(nameserver, broker)

    run(work)


@pytest.mark.parametrize(("held_max", "held_bytes_max"), [(40, 1 << 20), (1_000, 40 * 10)])
def test_a_queue_is_not_asked_for_more_than_a_consumer_may_hold(held_max: int, held_bytes_max: int) -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env, queues=1)
        async with Producer(env, "pg", nameserver.address) as producer:
            for _ in range(4):
                await producer.send_batch([Message(topic="T", body=bytes(10)) for _ in range(32)])
        go, seen = asyncio.Event(), []

        async def listener(messages: list[Received]) -> None:
            await go.wait()
            seen.extend(messages)

        def pulls() -> list[int]:
            return [
                int(request.ext["queueOffset"])
                for request in broker.requests
                if request.code == Request.PULL_MESSAGE and request.ext["topic"] == "T"
            ]

        # As many calls as messages: what bounds them is what is in hand.
        options = ConsumeOptions(
            from_first=True, concurrency=200, held_max=held_max, held_bytes_max=held_bytes_max
        )
        async with PushConsumer(
            env, "cg", nameserver.address, listener, subscriptions={"T": "*"}, options=options
        ):
            await until(lambda: 32 in pulls())
            await asyncio.sleep(0.05)
            assert 64 not in pulls()  # 40 of the 64 in hand are allowed
            go.set()
            await until(lambda: len(seen) == 128)
        await stop(nameserver, broker)

    run(work)


def test_queues_by_circle_are_shared_whole_and_of_every_broker() -> None:
    queues = [(broker, n) for broker in "ab" for n in range(4)]
    members = ["x", "y", "z"]
    shares = [average_by_circle(queues, members, one) for one in members]
    assert sorted(queue for share in shares for queue in share) == queues
    assert [len(share) for share in shares] == [3, 3, 2]
    assert all({broker for broker, _ in share} == {"a", "b"} for share in shares)
    assert average_by_circle(queues, members, "other") == []


class Clock:
    now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


@pytest.mark.parametrize(("took_ms", "avoid_ms"), [(549, 0), (550, 2_000), (4_000, 6_000), (20_000, 30_000)])
def test_a_broker_is_avoided_for_as_long_as_its_answer_says(took_ms: float, avoid_ms: float) -> None:
    clock = Clock()
    latencies = Latencies(clock)  # type: ignore[arg-type]
    latencies.note("a", took_ms)
    assert latencies.is_slow("a") == (avoid_ms > 0)
    clock.now_ms = avoid_ms - 1
    assert latencies.is_slow("a") == (avoid_ms > 0)
    clock.now_ms = avoid_ms
    assert not latencies.is_slow("a")


def test_a_quick_answer_ends_the_verdict() -> None:
    latencies = Latencies(Clock())  # type: ignore[arg-type]
    latencies.note("a", 600)
    latencies.note("a", 5)
    assert not latencies.is_slow("a")


def test_sends_avoid_a_slow_broker_unless_they_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    slow: set[str] = set()
    monkeypatch.setattr(Latencies, "note", lambda _, address, took_ms: noted.append(address))
    monkeypatch.setattr(Latencies, "is_slow", lambda _, address: address in slow)

    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=2, queues=2)
        options = SendOptions(avoid_slow=True)
        async with Producer(env, "pg", nameserver.address, options=options) as producer:
            queues = await producer.queues("T")
            message = Message(topic="T", body=b"x")
            await producer.send(message, queue=queues[0])
            assert noted == [brokers[0].address]
            slow.add(brokers[0].address)
            results = [await producer.send(message) for _ in range(4)]
            assert {result.queue.broker_name for result in results} == {brokers[1].name}
            assert (await producer.send(message, queue=queues[0])).queue == queues[0]
            slow.add(brokers[1].address)
            assert await producer.send(message)  # avoided, never shut out
        await stop(nameserver, *brokers)

    run(work)


def test_a_producer_keeps_no_latencies_unasked() -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=2, queues=1)
        async with Producer(env, "pg", nameserver.address) as producer:
            results = [await producer.send(Message(topic="T", body=b"x")) for _ in range(4)]
        assert len({result.queue for result in results}) == 2
        await stop(nameserver, *brokers)

    run(work)
