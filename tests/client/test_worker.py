"""The promises of client.consuming.consume: nothing of a queue is passed that was not handled, however a call
ends and wherever the reading goes on.
"""

from __future__ import annotations

import asyncio

import pytest

from client.message import Received
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
