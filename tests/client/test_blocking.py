"""The promise of client.blocking: a program without asyncio has the same clients; nothing stays behind."""

from __future__ import annotations

import asyncio
import queue
import threading
from pathlib import Path

import pytest

from client.blocking import BlockingPopConsumer, BlockingProducer, BlockingPushConsumer
from client.consuming.consumer import ConsumeOptions
from client.consuming.pop.options import PopOptions
from client.message import Message, Received, SendFailed, SendResult
from client.routes import Route
from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.sending.transactions import Decision
from tests.client.servers import Pair, run
from tests.waiting import until


def test_plain_functions_send_and_consume_on_threads_of_their_own(tmp_path: Path) -> None:
    def program(namesrv: str) -> None:
        arrived: queue.Queue[tuple[str, bytes]] = queue.Queue()
        failed: set[bytes] = set()

        def listener(messages: list[Received]) -> bool:
            if messages[0].body == b"twice" and b"twice" not in failed:
                failed.add(b"twice")
                raise RuntimeError("the first time fails")
            arrived.put((threading.current_thread().name, messages[0].body))
            return True

        with BlockingProducer("pg", namesrv) as producer:
            producer.send(Message(topic="Letters", body=b"once"))
            producer.send_batch([Message(topic="Letters", body=b"twice")])
        options = PopOptions(from_first=True, retry_after_s=(0.1,))
        with BlockingPopConsumer(
            "pops", namesrv, listener, subscriptions={"Letters": "*"}, options=options
        ) as popping:
            found = sorted(arrived.get(timeout=20) for _ in range(2))
        popping.stop()  # once more does no harm
        assert [body for _, body in found] == [b"once", b"twice"]
        assert all("pops worker" in name for name, _ in found)
        with BlockingPushConsumer(
            "pushes",
            namesrv,
            listener,
            subscriptions={"Letters": "*"},
            options=ConsumeOptions(from_first=True),
        ):
            assert sorted(arrived.get(timeout=20)[1] for _ in range(2)) == [b"once", b"twice"]

    async def work(servers: Pair) -> None:
        await asyncio.to_thread(program, servers.namesrv)
        # A worker that has nothing to do ends by itself.
        await until(lambda: not [t.name for t in threading.enumerate() if t.name.startswith("keelmq ")])

    run(tmp_path, work, revive_interval_ms=100)


def test_sends_that_are_not_waited_for_end_in_futures_and_wait_for_room(tmp_path: Path) -> None:
    def program(namesrv: str) -> None:
        options = SendOptions(in_flight_bytes_max=2)
        with BlockingProducer("pg", namesrv, options) as producer:
            futures = [producer.send_async(Message(topic="Letters", body=b"%d" % n)) for n in range(5)]
            results = [future.result(timeout=20) for future in futures]
            producer.send_oneway(Message(topic="Letters", body=b"and gone"))
        assert len({result.msg_id for result in results}) == 5

    async def work(servers: Pair) -> None:
        await asyncio.to_thread(program, servers.namesrv)

    run(tmp_path, work)


def test_the_work_of_a_transaction_is_a_plain_function_that_may_send(tmp_path: Path) -> None:
    def program(namesrv: str) -> None:
        names: list[str] = []

        def work(prepared: SendResult) -> Decision:
            names.append(threading.current_thread().name)
            producer.send(Message(topic="Letters", body=b"meanwhile"))
            return Decision.COMMIT

        with BlockingProducer("pg", namesrv, check=lambda message: Decision.ROLLBACK) as producer:
            done = producer.send_in_transaction(Message(topic="Letters", body=b"booked"), work)
        assert (done.decision, done.told) == (Decision.COMMIT, True)
        assert [name.startswith("keelmq pg worker") for name in names] == [True]

    async def work(servers: Pair) -> None:
        await asyncio.to_thread(program, servers.namesrv)

    run(tmp_path, work)


def test_what_fails_is_raised_and_a_stopped_one_says_so() -> None:
    producer = BlockingProducer("pg", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="not started"):
        producer.queues("T")
    with pytest.raises(ValueError, match="no NameServer"), BlockingProducer("pg", []):
        raise AssertionError("not reached")
    producer.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        producer.start()


def test_a_send_that_a_stop_meets_on_another_thread_ends_as_sends_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.sending.producer.DRAIN_S", 0.05)
    producer = BlockingProducer("pg", "127.0.0.1:1")
    producer.start()
    ended: queue.Queue[BaseException] = queue.Queue()

    def send() -> None:
        try:
            producer.send(Message(topic="Letters", body=b"one"))
        except BaseException as error:  # noqa: BLE001
            ended.put(error)

    begun = threading.Event()
    targets = producer.client._targets
    route = targets.route

    async def looked_for(topic: str) -> Route:
        begun.set()
        return await route(topic)

    monkeypatch.setattr(targets, "route", looked_for)
    sender = threading.Thread(target=send)
    sender.start()
    assert begun.wait(10)
    producer.stop()
    sender.join()
    assert isinstance(ended.get_nowait(), SendFailed)


def test_a_stopped_client_leaves_no_task_behind(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        before = asyncio.all_tasks()
        async with Producer(servers.env, "pg", servers.namesrv) as producer:
            await producer.send(Message(topic="Letters", body=b"one"))
        left = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not {name for name in left if name.startswith(("routes", "client", "producer"))}
        await asyncio.sleep(0)
        await until(lambda: not [t for t in asyncio.all_tasks() if t.get_name().startswith("routes")])

    run(tmp_path, work)
