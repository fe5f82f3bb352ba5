"""Calls off the event loop never overlap, also when their callers went away."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from runtime.tasks import SerialCalls


async def _in_a_thread(call: Callable[[], object]) -> object:
    return await asyncio.to_thread(call)


async def test_a_call_begins_when_the_one_of_a_cancelled_caller_has_ended() -> None:
    calls = SerialCalls(_in_a_thread)
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        begun.set()
        assert go_on.wait(30)
        order.append("first")

    cancelled = asyncio.create_task(calls.run(first))
    assert await asyncio.to_thread(begun.wait, 30)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    second = asyncio.create_task(calls.run(lambda: order.append("second")))
    third = asyncio.create_task(calls.run(lambda: order.append("third")))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(second, third)
    assert order == ["first", "second", "third"]


async def test_a_caller_cancelled_while_it_waits_has_no_call_made() -> None:
    calls = SerialCalls(_in_a_thread)
    go_on = threading.Event()
    made: list[str] = []
    first = asyncio.create_task(calls.run(lambda: go_on.wait(30)))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(calls.run(lambda: made.append("never")))
    await asyncio.sleep(0)
    waiting.cancel()
    go_on.set()
    assert await first
    assert await calls.run(lambda: "the next") == "the next"
    assert made == []


async def test_an_error_reaches_its_caller_and_the_next_call_is_made() -> None:
    calls = SerialCalls(_in_a_thread)

    def fail() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        await calls.run(fail)
    assert await calls.run(lambda: 1) == 1
