"""The promise of a producer that is full, or stopped: each send ends, and says how."""

import asyncio

import pytest

from client.message import Message, SendFailed, SendStatus, SendUnknown
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.codes import Request, Response
from remoting.codec import Command
from runtime.env import Env
from tests.fakes.client import cluster, run, stop
from tests.waiting import until

LONG = SendOptions(timeout_s=600, attempt_timeout_s=600)


def message(body: bytes = b"hello", **properties: str) -> Message:
    return Message(topic="T", body=body, properties=dict(properties))


def test_too_many_sends_in_flight_are_refused() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address, options=SendOptions(in_flight_max=2)) as producer:
            futures = [producer.send_async(message()) for _ in range(2)]
            with pytest.raises(SendFailed) as failed:
                producer.send_async(message())
            await asyncio.gather(*futures)
        assert failed.value.code == Response.SYSTEM_BUSY
        await stop(nameserver, broker)

    run(work)


def test_a_stop_waits_for_awaited_sends_and_ends_those_that_are_still_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client.sending.producer.DRAIN_S", 0.2)

    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        nameserver.topics["Z"] = {"broker-z": 1}  # it has no master
        slow, never = asyncio.Event(), asyncio.Event()

        async def hold(command: Command) -> Command | None:
            if command.body in (b"slow", b"never"):
                await (slow if command.body == b"slow" else never).wait()
            return None

        broker.before = hold
        producer = Producer(env, "pg", nameserver.address, options=LONG)
        await producer.start()
        await producer.send(message())
        tasks = [asyncio.create_task(producer.send(message(body))) for body in (b"slow", b"never")]
        tasks.append(asyncio.create_task(producer.send(Message(topic="Z", body=b"nowhere"))))
        tasks.append(asyncio.create_task(producer.send_batch([Message(topic="Z", body=b"nowhere")])))
        oneway = asyncio.create_task(producer.send_oneway(Message(topic="Z", body=b"nowhere")))
        await until(lambda: {b"slow", b"never"} <= {request.body for request in broker.requests})
        stopping = asyncio.create_task(producer.stop())
        await asyncio.sleep(0)
        slow.set()
        await stopping
        stored, unknown, failed, batch = await asyncio.gather(*tasks, return_exceptions=True)
        assert getattr(stored, "status", stored) is SendStatus.SEND_OK
        assert isinstance(unknown, SendUnknown)
        assert [a.outcome for a in unknown.attempts] == ["unknown"]
        assert isinstance(failed, SendFailed)
        assert "stopped" in str(failed)
        assert isinstance(batch, SendFailed)
        with pytest.raises(SendFailed):
            await oneway
        never.set()
        await stop(nameserver, broker)

    run(work)


def test_masters_hear_of_the_producer_and_of_its_end() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address) as producer:
            await producer.send(message())
            await until(lambda: any(r.code == Request.HEART_BEAT for r in broker.requests))
        assert broker.requests[-1].code == Request.UNREGISTER_CLIENT
        assert broker.requests[-1].ext["producerGroup"] == "pg"
        await stop(nameserver, broker)

    run(work)


def test_a_heartbeat_over_a_link_that_had_died_is_sent_again_over_a_new_one() -> None:
    """A machine that lost power says nothing of it: the next heartbeat is the first to meet the broker that
    is there now. The one after it is 30 s away, and until then nobody is asked about transactions."""

    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        beats: list[Command] = []

        async def dies_once(command: Command) -> Command | None:
            if command.code == Request.HEART_BEAT:
                beats.append(command)
                if len(beats) == 1:
                    for connection in list(broker.server.connections):
                        connection.abort()
            return None

        async with Producer(env, "pg", nameserver.address) as producer:
            await producer.send(message())
            await until(lambda: any(r.code == Request.HEART_BEAT for r in broker.requests))
            broker.before = dies_once
            await producer.session.beat()
            assert len(beats) == 2
            await producer.session.beat(broker.address)
            assert len(beats) == 3, "one that is answered is not sent again"
        await stop(nameserver, broker)

    run(work)
