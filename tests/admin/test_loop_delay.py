"""The promise of admin.host.loop_delay to who looks for the cause of an election: a loop that was held by no
request says what it did instead."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Any

import pytest

from admin.host import loop_delay
from admin.host.loop_delay import LATE_S, LoopDelay, Meter, Usage


def test_a_loop_that_came_late_says_what_its_thread_did_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    delays = LoopDelay()
    with caplog.at_level(logging.WARNING):
        delays.look(LATE_S - 0.1, Usage(1.0, 2.0), Usage(1.1, 2.0))
        assert not caplog.records
        delays.look(1.5, Usage(1.0, 2.0), Usage(1.3, 2.4))
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop came 1.5 s late to what was due: meanwhile it worked for 0.3 s, waited for a CPU for"
        " 0.4 s, and for 0.8 s at least in a call of the system (a disk), or was stopped"
    ]
    assert delays.seen.to_json()["counts"][-1] == 2


def test_a_call_of_the_system_that_waits_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from within: the loop stands still in a call until another thread lets it go."""
    seen: list[Any] = []
    monkeypatch.setattr(loop_delay, "PERIOD_S", 0.01)
    let_go, looked = threading.Event(), asyncio.Event()

    def look(delays: LoopDelay, *what: Any) -> None:
        seen.append(what)
        looked.set()

    monkeypatch.setattr(LoopDelay, "look", look)

    async def body() -> None:
        running = asyncio.create_task(LoopDelay().run())
        await asyncio.sleep(0)
        threading.Timer(0.3, let_go.set).start()
        let_go.wait()
        await looked.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(body())
    late_s, before, now = seen[0]
    assert late_s > 0.2
    assert now.worked_s - before.worked_s < late_s / 2


def test_where_the_system_does_not_tell_what_a_thread_waited_for_its_work_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_delay, "_SCHEDULED", "/nowhere")
    meter = Meter()
    usage = meter.now()
    meter.close()
    assert usage.worked_s > 0
    assert usage.waited_s == 0


async def test_what_is_looked_at_beside_it_fails_and_all_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_delay, "PERIOD_S", 0.01)
    looked, again = 0, asyncio.Event()

    def also() -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise OSError("no such device")
        again.set()

    delays = LoopDelay(also)
    running = asyncio.create_task(delays.run())
    async with asyncio.timeout(30):
        await again.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert delays.seen.to_json()["counts"][-1] >= 2
    assert [
        record.exc_info[1].args for record in caplog.records if record.exc_info and record.exc_info[1]
    ] == [("no such device",)]
