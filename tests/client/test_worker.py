"""The promises of client.consuming.consume: nothing of a queue is passed that was not handled, however a call
ends and wherever the reading goes on.
"""

from __future__ import annotations

import asyncio

import pytest

from client.consuming.consume import GRACE_S
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pull import Pulled, PullStatus
from client.message import Queue, Received
from runtime.os_env import OsEnv
from tests.client.virtual import FakeQueue, cancelled_elsewhere, virtually


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_whose_task_was_cancelled_elsewhere_has_failed(orderly: bool) -> None:
    async def work() -> None:
        queue, calls = FakeQueue(3), list[int]()

        async def listener(messages: list[Received]) -> None:
            calls.append(messages[0].queue_offset)
            if calls.count(1) == 1 and calls[-1] == 1:
                await cancelled_elsewhere()

        worker = queue.worker(listener, orderly=orderly)
        worker.start()
        await asyncio.sleep(5)
        assert calls == ([0, 1, 1, 2] if orderly else [0, 1, 2])
        assert queue.given_back == ([] if orderly else [1])
        assert worker.handled == 3
        await worker.stop()

    virtually(work)


def test_a_call_that_a_stop_breaks_off_is_no_failure() -> None:
    async def work() -> None:
        queue = FakeQueue(1)

        async def listener(messages: list[Received]) -> None:
            await asyncio.sleep(3600)

        worker = queue.worker(listener)
        worker.start()
        await asyncio.sleep(1)
        await worker.stop()
        assert (queue.given_back, worker.handled) == ([], 0)

    virtually(work)


def test_two_resets_at_once_are_one_reading_from_the_last_of_them() -> None:
    async def work() -> None:
        queue, calls = FakeQueue(3), list[int]()

        async def listener(messages: list[Received]) -> None:
            calls.append(messages[0].queue_offset)
            await asyncio.sleep(0.5 if len(calls) < 3 else 0)

        worker = queue.worker(listener)
        worker.start()
        await asyncio.sleep(0.2)
        worker.seek(0)
        await asyncio.sleep(0.1)
        worker.seek(1)
        assert worker.handled == 1
        await asyncio.sleep(5)
        assert calls == [0, 1, 2]
        calls.clear()
        queue.count = 6
        await asyncio.sleep(5)
        assert calls == [3, 4, 5]
        assert worker.handled == 6
        await worker.stop()
        await asyncio.sleep(5)
        pulls = len(queue.pulls)
        await asyncio.sleep(5)
        assert len(queue.pulls) == pulls

    virtually(work)


def test_a_reset_breaks_off_no_call_of_the_reading_that_it_began() -> None:
    async def work() -> None:
        queue, ended = FakeQueue(2), list[int]()

        async def listener(messages: list[Received]) -> None:
            await asyncio.sleep(2 * GRACE_S)
            ended.append(messages[0].queue_offset)

        worker = queue.worker(listener)
        worker.start()
        await asyncio.sleep(0.5)
        queue.pull_s = 0
        worker.seek(0)
        worker.seek(1)
        await asyncio.sleep(60)
        assert (ended, worker.handled) == ([1], 2)
        await worker.stop()

    virtually(work)


def test_a_queue_that_its_broker_moves_back_is_read_from_there_and_nothing_is_jumped_over() -> None:
    async def work() -> None:
        queue, calls = FakeQueue(3), list[int]()

        async def listener(messages: list[Received]) -> None:
            calls.append(messages[0].queue_offset)
            if len(calls) == 3:
                await asyncio.sleep(1)  # the last of those before
            if len(calls) == 5:
                await asyncio.sleep(60)

        worker = queue.worker(listener)
        worker.start()
        await asyncio.sleep(0.3)
        assert (calls, worker.handled) == ([0, 1, 2], 2)
        queue.moved = Pulled(PullStatus.MOVED, [], 0, 0, 3)
        await asyncio.sleep(10)
        assert (calls, worker.handled) == ([0, 1, 2, 0, 1], 1)
        await worker.stop()
        assert worker.handled == 1

    virtually(work)


def test_a_queue_that_an_operator_moves_on_leaves_what_it_cannot_handle() -> None:
    """What is under way is what the reset is to pass over: a poison message, in order."""

    async def work() -> None:
        queue, calls = FakeQueue(1), list[int]()

        async def listener(messages: list[Received]) -> bool:
            calls.append(messages[0].queue_offset)
            return messages[0].queue_offset != 0

        worker = queue.worker(listener, orderly=True)
        worker.start()
        await asyncio.sleep(3)
        assert (set(calls), worker.handled) == ({0}, 0)
        queue.count, queue.moved = 8, Pulled(PullStatus.MOVED, [], 7, 0, 8, reset=True)
        await asyncio.sleep(30)
        assert (calls[-1], worker.handled) == (7, 8)
        await worker.stop()

    virtually(work)


def test_a_queue_that_its_broker_moves_on_waits_for_what_is_under_way() -> None:
    async def work() -> None:
        queue, calls = FakeQueue(1), list[int]()

        async def listener(messages: list[Received]) -> None:
            calls.append(messages[0].queue_offset)
            await asyncio.sleep(10)

        worker = queue.worker(listener)
        worker.start()
        await asyncio.sleep(1)
        queue.count, queue.moved = 8, Pulled(PullStatus.MOVED, [], 7, 7, 8)
        await asyncio.sleep(5)
        assert worker.handled == 0
        await asyncio.sleep(20)
        assert (calls, worker.handled) == ([0, 7], 8)
        await worker.stop()

    virtually(work)


def test_in_order_a_stop_does_not_wait_for_the_next_try() -> None:
    async def work() -> None:
        queue, calls = FakeQueue(1), list[int]()

        async def listener(messages: list[Received]) -> bool:
            calls.append(messages[0].queue_offset)
            return False

        worker = queue.worker(listener, orderly=True, suspend_s=60)
        worker.start()
        await asyncio.sleep(0.5)
        began_s = asyncio.get_running_loop().time()
        await worker.stop()
        assert asyncio.get_running_loop().time() == began_s
        assert (calls, worker.handled) == ([0], 0)

    virtually(work)


def test_queues_that_hang_wait_side_by_side() -> None:
    async def work() -> None:
        async def listener(messages: list[Received]) -> None:
            await asyncio.sleep(3600)

        consumer = PushConsumer(OsEnv(), "g", "nowhere:1", listener, subscriptions={"T": "*"})
        commits: list[int] = []

        async def commit(queue: Queue, offset: int) -> bool:
            commits.append(offset)
            return True

        consumer.puller.commit = commit  # type: ignore[method-assign]
        consumer._routes.on_change.append(consumer._route_changed)
        for number in range(16):
            worker = consumer._workers[Queue("T", "broker-a", number)] = FakeQueue(1).worker(listener)
            worker.start()
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await consumer.stop()
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(GRACE_S)
        assert commits == [0] * 16

    virtually(work)


def test_calls_have_their_grace() -> None:
    assert ConsumeOptions().limits.grace_s == 3.0
    assert ConsumeOptions(orderly=True).limits.grace_s == 20.0
    assert ConsumeOptions(orderly=True, grace_s=0).limits.grace_s == 0
