"""The promises of client.consuming.pop.batches: room comes back however a call ends, and what a stop breaks
off goes back to the group.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from client.consuming.pop.batches import Batches
from client.consuming.pop.calls import Popped
from client.consuming.pop.handling import Handler
from client.consuming.pop.in_flight import InFlight
from client.consuming.pop.options import PopOptions
from client.message import Received
from client.trace import Listener
from tests.client.servers import received
from tests.client.virtual import cancelled_elsewhere, virtually


class Clock:
    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


class Calls:
    """Notes what a broker is told."""

    def __init__(self) -> None:
        self.changed: list[tuple[str, int]] = []
        self.failed = 0

    async def change(self, popped: Popped, invisible_ms: int, *, suspend: bool = False) -> None:
        self.changed.append((popped.message.msg_id, invisible_ms))
        self.failed += not suspend


class Acks:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def ack(self, popped: Popped) -> str:
        if self.error is not None:
            raise self.error
        return ""


class World:
    """Two messages in hand of a consumer that may hold two."""

    def __init__(self, listener: Listener) -> None:
        self.calls = Calls()
        clock: Any = Clock()
        calls: Any = self.calls
        self.batches = Batches(Handler(clock, calls, listener, PopOptions()), 1)
        self.in_flight: InFlight[str] = InFlight(2, 1 << 20)
        self.in_flight.open("s")

    def take(self, acks: Any, wanted: tuple[str, ...] = ()) -> None:
        holding = self.in_flight.on_asked("s", 2)
        until_ms = Clock().monotonic_ms() + 60_000
        info: Any = None
        found = [
            Popped(dataclasses.replace(received({}), msg_id=name), "T", "broker-a", info, until_ms)
            for name in "ab"
        ]
        holding.on_answer([one.message.size_bytes for one in found])
        self.batches.take(found, wanted, acks, holding)


def test_a_listener_whose_task_was_cancelled_elsewhere_has_failed_and_frees_its_room() -> None:
    async def work() -> None:
        async def listener(messages: list[Received]) -> None:
            await cancelled_elsewhere()

        world = World(listener)
        world.take(Acks())
        await asyncio.sleep(1)
        assert world.in_flight.room("s") == 2
        assert (world.calls.changed, world.calls.failed) == ([("a", 10_000), ("b", 10_000)], 2)

    virtually(work)


@pytest.mark.parametrize("wanted", [(), ("other",)])
def test_room_comes_back_when_an_end_fails(wanted: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async def listener(messages: list[Received]) -> None:
            pass

        world = World(listener)
        world.take(Acks(RuntimeError("a mistake of our own")), wanted)
        await asyncio.sleep(1)
        assert world.in_flight.room("s") == 2
        assert "a mistake of our own" in caplog.text

    virtually(work)


def test_what_a_stop_breaks_off_goes_back_at_once() -> None:
    async def work() -> None:
        async def listener(messages: list[Received]) -> None:
            await asyncio.sleep(3600)

        world = World(listener)
        world.take(Acks())
        await asyncio.sleep(1)
        await world.batches.finish(0.1)
        await world.batches.give_back()
        assert (world.calls.changed, world.calls.failed) == ([("a", 0), ("b", 0)], 0)

    virtually(work)
