"""The promises of runtime.loop_thread: whoever begins something hears of its end, and what is broken off is
taken back to its end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

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


def broken_off(thread: LoopThread, work: Coroutine[Any, Any, None], begun: threading.Event) -> None:
    """As if a Ctrl-C met the caller who waits for ``work``."""
    begin: Callable[[Coroutine[Any, Any, Any]], Future[Any]] = thread.begin

    def first(work: Coroutine[Any, Any, Any]) -> Future[Any]:
        future = begin(work)

        def result() -> None:
            assert begun.wait(10)
            raise KeyboardInterrupt

        patch.setattr(future, "result", result)
        patch.setattr(thread, "begin", begin)
        return future

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread, "begin", first)
        with pytest.raises(KeyboardInterrupt):
            thread.run(work)


def test_what_a_ctrl_c_breaks_off_ends_before_its_loop_does() -> None:
    """A blocking client's start takes back what it began: the end of the loop broke that off, too."""
    thread = LoopThread("broken off")
    begun, undone = threading.Event(), threading.Event()

    async def undo() -> None:
        for _ in range(5):
            await asyncio.sleep(0.001)
        undone.set()

    async def start() -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            await undo()

    broken_off(thread, start(), begun)
    thread.stop()
    assert undone.is_set()


def test_what_does_not_end_when_it_is_broken_off_is_waited_for_no_longer_than_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.loop_thread.GRACE_S", 0.01)
    thread = LoopThread("never ends")
    begun = threading.Event()

    async def start() -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(3600)

    broken_off(thread, start(), begun)
    thread.stop()
