"""The promise of gathered sends: few requests, and each caller hears what became of its own message."""

import asyncio

import pytest

from client.message import Message, Queue, SendFailed, SendResult, SendStatus, SendUnknown
from client.sending.gathering import parts
from client.sending.options import Gather, SendOptions
from client.sending.producer import Producer
from model.codes import Request, Response
from model.errors import Refused
from remoting.codec import Command
from runtime.env import Env
from tests.fakes.client import FakeBroker, cluster, run, stop
from tests.waiting import until

SLOW = Gather(wait_ms=60_000)
"""Nothing is sent before it is large enough, or the producer stops."""


def message(body: bytes = b"hello") -> Message:
    return Message(topic="T", body=body)


def sends(broker: FakeBroker) -> list[int]:
    wanted = (Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE)
    return [request.code for request in broker.requests if request.code in wanted]


def options(gather: Gather) -> SendOptions:
    return SendOptions(gather=gather)


def test_sends_of_many_callers_are_one_request_and_each_has_its_own_result() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address, options=options(SLOW)) as producer:
            asked = [asyncio.create_task(producer.send(message(b"%d" % n))) for n in range(5)]
            asked.append(asyncio.ensure_future(producer.send_async(message(b"5"))))
            await asyncio.sleep(0.01)
            assert sends(broker) == []
        results = [task.result() for task in asked]
        assert sends(broker) == [Request.SEND_BATCH_MESSAGE]
        assert [stored.body for stored in broker.log] == [b"%d" % n for n in range(6)]
        assert [result.queue_offset for result in results] == list(range(6))
        assert [result.msg_id for result in results] == [s.properties["UNIQ_KEY"] for s in broker.log]
        assert len({result.offset_msg_id for result in results}) == 6
        await stop(nameserver, broker)

    run(work)


def test_a_request_goes_when_it_is_large_enough_and_one_message_goes_as_itself() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        gather = Gather(wait_ms=60_000, bytes_max=2_000)
        async with Producer(env, "pg", nameserver.address, options=options(gather)) as producer:
            first = [producer.send_async(message(bytes(700))) for _ in range(2)]
            last = producer.send_async(message(bytes(700)))
            await asyncio.gather(*first)
            assert not last.done()
        assert (await last).queue_offset >= 0
        assert sends(broker) == [Request.SEND_BATCH_MESSAGE, Request.SEND_MESSAGE_V2]
        await stop(nameserver, broker)

    run(work)


def test_a_request_is_no_larger_than_a_message_may_be() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        limits = SendOptions(gather=Gather(wait_ms=20), message_bytes_max=1_000)
        async with Producer(env, "pg", nameserver.address, options=limits) as producer:
            results = await asyncio.gather(*(producer.send(message(bytes(n))) for n in (400, 400, 400, 999)))
        assert len(broker.log) == len(results) == 4
        batches = [r for r in broker.requests if r.code == Request.SEND_BATCH_MESSAGE]
        assert [len(request.body) <= 1_000 for request in batches] == [True]
        await stop(nameserver, broker)

    run(work)


def test_a_request_goes_when_it_is_old_enough() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address, options=options(Gather(wait_ms=1))) as producer:
            await asyncio.gather(producer.send(message()), producer.send(message()))
            assert sends(broker) == [Request.SEND_BATCH_MESSAGE]
        await stop(nameserver, broker)

    run(work)


def test_one_sharding_key_is_one_batch_in_its_queue() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address, options=options(SLOW)) as producer:
            tasks = [
                asyncio.create_task(producer.send(message(key.encode()), sharding_key=key))
                for key in ("a", "b", "a", "b")
            ]
            await asyncio.sleep(0.01)
        async with Producer(env, "pg", nameserver.address) as producer:
            plain = [(await producer.send(message(), sharding_key=key)).queue for key in ("a", "b")]
        assert [task.result().queue for task in tasks] == [*plain, *plain]
        assert sends(broker)[:2] == [Request.SEND_BATCH_MESSAGE] * 2
        await stop(nameserver, broker)

    run(work)


def test_what_no_batch_may_hold_goes_alone_at_once() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        limits = SendOptions(gather=SLOW, compress_over_bytes=1_000)
        async with Producer(env, "pg", nameserver.address, options=limits) as producer:
            await producer.send(Message(topic="T", body=b"late", delay_level=1))
            await producer.send(message(b"x" * 1_001))
            await producer.send(message(), timeout_s=3.0)
            with pytest.raises(ValueError, match="body"):
                await producer.send(message(b""))
        assert sends(broker) == [Request.SEND_MESSAGE_V2] * 3
        await stop(nameserver, broker)

    run(work)


@pytest.mark.parametrize(
    ("code", "ends"), [(Response.NO_PERMISSION, SendFailed), (Response.SYSTEM_ERROR, SendUnknown)]
)
def test_each_caller_hears_that_it_is_not_stored_or_unknown(code: int, ends: type[Exception]) -> None:
    async def refuse(command: Command) -> None:
        if command.code == Request.SEND_BATCH_MESSAGE:
            raise Refused("no", code)

    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        broker.before = refuse
        async with Producer(env, "pg", nameserver.address, options=options(SLOW)) as producer:
            tasks = [asyncio.create_task(producer.send(message())) for _ in range(3)]
            await asyncio.sleep(0.01)
        assert [type(task.exception()) for task in tasks] == [ends] * 3
        await stop(nameserver, broker)

    run(work)


def test_no_caller_waits_for_ever_when_the_producer_stops_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client.sending.producer.DRAIN_S", 0.05)

    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        silence = asyncio.Event()

        async def silent(command: Command) -> None:
            if command.code == Request.SEND_BATCH_MESSAGE:
                await silence.wait()

        broker.before = silent
        producer = Producer(env, "pg", nameserver.address, options=SendOptions(gather=Gather(wait_ms=0)))
        await producer.start()
        tasks = [asyncio.create_task(producer.send(message())) for _ in range(2)]
        await until(lambda: sends(broker) == [Request.SEND_BATCH_MESSAGE])
        await producer.stop()
        assert [type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)] == [
            SendUnknown,
            SendUnknown,
        ]
        silence.set()
        await stop(nameserver, broker)

    run(work)


def test_an_id_with_a_comma_is_no_two_ids_and_keeps_no_other_caller_waiting() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address, options=options(SLOW)) as producer:
            asked = [asyncio.create_task(producer.send(message())) for _ in range(2)]
            odd = Message(topic="T", body=b"odd", properties={"UNIQ_KEY": "a,b"})
            assert (await producer.send(odd)).msg_id == "a,b"
            assert sends(broker) == [Request.SEND_MESSAGE_V2]
        assert all(task.result().status is SendStatus.SEND_OK for task in asked)
        await stop(nameserver, broker)

    run(work)


def test_a_broker_that_names_the_first_id_only_is_understood() -> None:
    batch = SendResult(SendStatus.SEND_OK, Queue("T", "broker-a", 0), 7, "A,B", "first")
    assert [(part.msg_id, part.offset_msg_id, part.queue_offset) for part in parts(batch)] == [
        ("A", "first", 7),
        ("B", "", 8),
    ]


@pytest.mark.parametrize("wrong", [{"wait_ms": -1.0}, {"bytes_max": 0}])
def test_options_that_gather_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Gather(**wrong)  # type: ignore[arg-type]
