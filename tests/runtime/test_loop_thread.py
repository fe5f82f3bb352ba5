"""The promise of runtime.loop_thread: whoever begins something hears of its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from runtime.loop_thread import LoopThread


async def nothing() -> None:
    pass


def test_what_begins_while_it_is_stopped_is_refused_and_who_waits_hears_of_it() -> None:
    thread = LoopThread("stops")
    go = asyncio.Event()
    begun, ending = threading.Event(), threading.Event()
    heard: list[BaseException] = []

    async def slow_to_end() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ending.set()
            await go.wait()

    def wait() -> None:
        try:
            thread.run(slow_to_end())
        except BaseException as error:  # noqa: BLE001
            heard.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert begun.wait(10)
    stopper = threading.Thread(target=thread.stop)
    stopper.start()
    assert ending.wait(10)
    with pytest.raises(RuntimeError, match="it is stopped"):
        thread.begin(nothing())
    thread._loop.call_soon_threadsafe(go.set)
    stopper.join(10)
    waiter.join(10)
    thread.stop()
    assert [str(error) for error in heard] == ["it was stopped"]
    assert isinstance(heard[0], RuntimeError)
