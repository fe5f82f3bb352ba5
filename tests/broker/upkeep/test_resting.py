"""The promise of a master that has nothing to deliver: it looks once a second, and what comes is in time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from broker.state.resting import IDLE_S
from broker.timers.delivery import TimerService
from broker.upkeep.delay import DelayService
from model.message import TIMER_DELAY_MS
from tests.broker.helpers import client_of, eventually, running


@pytest.mark.parametrize("service", [DelayService, TimerService])
async def test_nothing_waits_nothing_looks_and_what_comes_is_looked_at_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Any
) -> None:
    looks: list[float | None] = []
    turn = service._turn

    async def noted(self: Any) -> float | None:
        looks.append(await turn(self))
        return looks[-1]

    monkeypatch.setattr(service, "_turn", noted)
    monkeypatch.setattr("broker.state.resting.IDLE_S", 600.0)
    async with running(tmp_path, timerPrecisionMs="100") as broker, client_of(broker) as client:
        await eventually(lambda: 600.0 in looks, "it rests")
        before = len(looks)
        await client.send("T", b"for others")
        await asyncio.sleep(0.3)
        assert len(looks) == before, "what goes to another topic is nothing to look at"
        properties = "DELAY\x011\x02" if service is DelayService else f"{TIMER_DELAY_MS}\x01300\x02"
        sent = time.monotonic()
        await client.send("T", b"later", properties=properties)
        await eventually(lambda: len(looks) > before, "it looks again")
        async with asyncio.timeout(30):
            found = await client.pull_until("T", 0, 2)
        assert [record.body for record in found] == [b"for others", b"later"]
        assert time.monotonic() - sent < 600.0, "and not when its rest would have been over"
        await eventually(lambda: looks[-1] == 600.0, "it rests again once all is confirmed")
    assert IDLE_S == 1.0
