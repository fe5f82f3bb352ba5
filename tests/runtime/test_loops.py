"""The promise of a level-triggered loop: it goes on whatever a step does, and no event is lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import pytest

from model.errors import MqError
from runtime import loops
from runtime.backoff import Backoff
from runtime.loops import UNTIL_WOKEN, level_triggered
from tests.lines import lines_of

LONG_S = 60.0


class Loop:
    """A loop whose steps are taken from a list; the last one is repeated."""

    def __init__(
        self, *steps: Callable[[], float | None], period_s: float = LONG_S, first_ms: int = 1
    ) -> None:
        self.steps = steps
        self.wake = asyncio.Event()
        self.done = 0
        self.halted = False
        self.backoff = Backoff(random.Random(1), first_ms, 60_000)
        self.period_s = period_s
        self.noted: list[Exception] | None = None
        self._moved = asyncio.Event()

    async def step(self) -> float | None:
        self.done += 1
        self._moved.set()
        return self.steps[min(self.done, len(self.steps)) - 1]()

    def start(self) -> asyncio.Task[None]:
        note = None if self.noted is None else self.noted.append
        return asyncio.create_task(
            level_triggered(
                self.step,
                self.wake,
                self.period_s,
                self.backoff,
                "the test",
                on_error=note,
                ended=lambda: self.halted,
            )
        )

    async def turns(self, count: int) -> None:
        async with asyncio.timeout(5):
            while self.done < count:
                self._moved.clear()
                await self._moved.wait()

    async def idle(self) -> None:
        done = self.done
        await asyncio.sleep(0.02)
        assert self.done == done


async def during(loop: Loop, main: Callable[[Loop], Awaitable[None]]) -> None:
    task = loop.start()
    try:
        await main(loop)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def nothing() -> None:
    return None


def fails(error: Exception) -> Callable[[], float | None]:
    def step() -> float | None:
        raise error

    return step


async def test_a_turn_comes_with_each_wake_and_otherwise_after_the_period() -> None:
    async def main(loop: Loop) -> None:
        await loop.turns(1)
        await loop.idle()
        loop.wake.set()
        await loop.turns(2)
        await loop.idle()

    await during(Loop(nothing), main)
    await during(Loop(nothing, period_s=0.001), lambda loop: loop.turns(5))


async def test_what_happens_during_a_step_is_looked_at_in_the_next_turn() -> None:
    loop = Loop(lambda: loop.wake.set(), nothing)

    async def main(loop: Loop) -> None:
        await loop.turns(2)
        await loop.idle()

    await during(loop, main)


async def test_a_step_may_say_how_long_to_wait() -> None:
    async def main(loop: Loop) -> None:
        await loop.turns(4)  # at once, after a moment, and at once again
        await loop.idle()
        loop.wake.set()
        await loop.turns(5)

    loop = Loop(lambda: 0.0, lambda: 0.001, lambda: 0.0, lambda: UNTIL_WOKEN, period_s=0.001)
    await during(loop, main)


async def test_a_loop_that_never_rests_leaves_time_for_others() -> None:
    async def main(loop: Loop) -> None:
        await loop.turns(10)

    await during(Loop(lambda: 0.0), main)


async def test_a_loop_whose_steps_wake_it_leaves_time_for_others() -> None:
    """It took all turns of the loop, until the steps found nothing more: seed 953 of the swarm had no end."""

    def wakes() -> None:
        loop.wake.set()

    loop = Loop(*[wakes] * 1000, nothing)

    async def main(loop: Loop) -> None:
        await loop.turns(10)
        assert loop.done < 1000

    await during(loop, main)


@pytest.mark.parametrize("error", [MqError("no"), OSError("no"), ValueError("no"), RuntimeError("no")])
async def test_no_error_ends_it_and_the_next_try_is_soon_then_later(error: Exception) -> None:
    async def main(loop: Loop) -> None:
        await loop.turns(3)

    await during(Loop(fails(error), fails(error), nothing), main)


async def test_a_wake_ends_the_wait_after_an_error() -> None:
    async def main(loop: Loop) -> None:
        await loop.turns(1)
        await loop.idle()
        loop.wake.set()
        await loop.turns(2)

    await during(Loop(fails(MqError("no")), nothing, first_ms=60_000), main)


async def test_a_success_starts_the_waits_anew() -> None:
    async def main(loop: Loop) -> None:
        await loop.turns(3)
        await loop.idle()
        assert loop.backoff.next_s() <= 0.001

    await during(Loop(fails(MqError("no")), fails(MqError("no")), nothing), main)


async def test_the_first_failure_of_a_row_is_news_the_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "runtime.loops")
    no = fails(MqError("refused"))
    loop = Loop(no, no, lambda: 0.0, no, nothing)
    await during(loop, lambda loop: loop.turns(5))
    levels = [record.levelno for record in lines_of(caplog)]
    assert levels == [logging.WARNING, logging.DEBUG, logging.WARNING]
    assert {record.getMessage() for record in lines_of(caplog)} == {"the test: refused"}


async def test_who_is_told_of_expected_errors_hears_no_others(caplog: pytest.LogCaptureFixture) -> None:
    refused = MqError("refused")
    loop = Loop(fails(refused), fails(KeyError("ours")), nothing)
    loop.noted = []
    await during(loop, lambda loop: loop.turns(3))
    assert loop.noted == [refused]
    assert [record.exc_info is not None for record in lines_of(caplog)] == [True]


async def test_it_ends_when_it_is_told_to_and_when_it_is_cancelled() -> None:
    loop = Loop(nothing, period_s=0.001)
    task = loop.start()
    await loop.turns(2)
    loop.halted = True
    async with asyncio.timeout(5):
        await task
    task = (again := Loop(nothing)).start()
    await again.turns(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_row_of_failures_that_is_soon_over_is_no_warning_and_one_that_lasts_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    row = loops._Row("copying", 0.05)
    row.on_error(MqError("not master yet"))
    row.end()
    row.on_error(MqError("not master yet"))
    await asyncio.sleep(0.06)
    row.on_error(MqError("still not"))
    row.on_error(MqError("still not"))
    assert [line.levelname for line in lines_of(caplog)] == ["INFO", "INFO", "WARNING"]
