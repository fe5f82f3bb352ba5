"""The promise of make jitter: a test that waits for one thing and asserts another, a turn later, fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chaos.sim.loop import START_S, SimLoop
from tests import jitter
from tests.jitter import LONGEST_S, MOST_OF_THE_TIME, Jitter
from tests.waiting import until

TURNS = 3


class Settled(Jitter):
    """Decides as it was told to."""

    def __init__(self, *, eager: bool, stands_still: bool = False) -> None:
        super().__init__("1")
        self._eager = eager
        self._stands_still = stands_still
        self.asked = 0

    def look(self) -> tuple[bool, int]:
        return self._eager, 0 if self._eager else 2 * TURNS

    def stand_still(self, how_often: float) -> None:
        self.asked += 1
        super().stand_still(1.0 if self._stands_still else 0.0)


@pytest.fixture
def plugin() -> Iterator[jitter.Plugin]:
    plugin = jitter.Plugin("1")
    plugin.install()
    yield plugin
    plugin.pytest_unconfigure()


async def replies(state: dict[str, Any]) -> None:
    """As an answer comes some turns after what it tells of."""
    await asyncio.sleep(0.01)
    state["applied"] = True
    for _ in range(TURNS):
        await asyncio.sleep(0)
    state["known"] = True


@pytest.mark.parametrize("eager", [True, False])
async def test_until_ends_before_what_comes_a_turn_later_or_after_it(
    plugin: jitter.Plugin, eager: bool
) -> None:
    plugin._jitter = Settled(eager=eager)
    for _ in range(5):
        state: dict[str, Any] = {}
        answer = asyncio.ensure_future(replies(state))
        await until(lambda state=state: state.get("applied"))  # type: ignore[misc]
        assert ("known" in state) is not eager
        await answer


async def test_what_a_thread_brings_about_is_seen_too(plugin: jitter.Plugin) -> None:
    plugin._jitter = Settled(eager=True, stands_still=True)
    done: list[int] = []
    call = asyncio.get_running_loop().run_in_executor(None, lambda: done.append(1))
    await until(lambda: done)
    await call
    assert plugin._jitter.stood
    assert "stand-stills" in plugin._jitter.text()


def test_it_stands_still_for_less_than_a_third_of_the_time() -> None:
    begun = time.monotonic()
    one = Jitter("1")
    for _ in range(30):
        one.stand_still(1.0)
    took_s = time.monotonic() - begun
    assert 0 < sum(one.stood) <= 0.1 + MOST_OF_THE_TIME * took_s + LONGEST_S


def test_virtual_time_is_left_alone(plugin: jitter.Plugin) -> None:
    plugin._jitter = settled = Settled(eager=True)
    loop = SimLoop(1)
    try:
        loop.run_until_complete(until(lambda: loop.time() > START_S + 5))
    finally:
        loop.close()
    assert settled.asked == 0
