"""Which tests hold only on a machine that never stops? ``pytest -p tests.jitter`` makes this one stop.

From one seed (``KEELMQ_JITTER``, else by chance), and where time is real: simulations have their own loop.

- A turn of an event loop begins late now and then, and so does, or ends, what a thread does for it.
- Of the sockets that can be read or written some wait for a later turn, and none has to come first.
- ``until`` sees what it waits for as soon as it is so, between any two turns, or some turns later. A test
  that waits for one thing and asserts another, which comes a turn after, fails here.
- The tests come in another order: one that leaves something behind is found by those after it.

It costs no computing: what stands still sleeps. Callbacks keep their order, as asyncio promises it.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from asyncio import base_events, events
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from selectors import DefaultSelector
from typing import Any, Final, TypeVar

import pytest

from tests import waiting
from tests.in_turn import scope_of

T = TypeVar("T")

SEED: Final = "KEELMQ_JITTER"
TURNS_LATE: Final = 0.02
CALLS_LATE: Final = 0.1
SHORTEST_S, LONGEST_S = 0.002, 0.12  # less than what counts as a machine that stood still
MOST_OF_THE_TIME: Final = 0.3
HELD_BACK: Final = 0.2
EAGER: Final = 0.7
TURNS_LATER: Final = 8
LOOK_S: Final = 0.002


class Jitter:
    """What one test meets; its own seed is made of the run's and of its name."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.stood: list[float] = []

    def stand_still(self, how_often: float) -> None:
        with self._lock:
            if self._random.random() >= how_often:
                return
            stall_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** self._random.random()
            if sum(self.stood) > 0.1 + MOST_OF_THE_TIME * (time.monotonic() - self._began):
                return
            self.stood.append(stall_s)
        time.sleep(stall_s)

    def look(self) -> tuple[bool, int]:
        """Does an ``until`` look after every turn? How many turns after it saw its condition does it end?"""
        with self._lock:
            eager = self._random.random() < EAGER
            return eager, 0 if eager else self._random.randrange(TURNS_LATER)

    def pick(self, events: list[T]) -> list[T]:
        """Of what a selector found; it finds again what is left out."""
        with self._lock:
            if self._random.random() < HELD_BACK:
                events = [one for one in events if self._random.random() < 0.5]
            self._random.shuffle(events)
            return events

    def text(self) -> str:
        return f"{len(self.stood)} stand-stills, together {sum(self.stood):.2f} s"


class Turns:
    """Counts what a loop runs, so that ``until`` looks again after each turn that did anything else."""

    def __init__(self) -> None:
        self._run = 0
        self._looks = 0
        self._waiting: list[asyncio.Future[None]] = []

    def ran(self) -> None:
        self._run += 1

    def ended(self, loop: asyncio.AbstractEventLoop) -> None:
        others, self._run, self._looks = self._run - self._looks, 0, 0
        if others > 0 and self._waiting:
            mine = [waiter for waiter in self._waiting if waiter.get_loop() is loop]
            self._waiting = [waiter for waiter in self._waiting if waiter.get_loop() is not loop]
            for waiter in mine:
                _come(waiter)

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        timer = loop.call_later(LOOK_S, _come, waiter)  # what a thread brings about ends no turn
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self._looks += 1


def _come(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Plugin:
    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._turns = Turns()
        self._jitter: Jitter | None = None
        self._patches = pytest.MonkeyPatch()

    def install(self) -> None:
        plugin, turns = self, self._turns
        run_once: Callable[[Any], None] = base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]
        run: Callable[[Any], None] = events.Handle._run
        submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit
        select: Callable[..., list[Any]] = DefaultSelector.select

        def late_turn(loop: asyncio.BaseEventLoop) -> None:
            if plugin._jitter is not None:
                plugin._jitter.stand_still(TURNS_LATE)
            run_once(loop)
            turns.ended(loop)

        def counted(handle: events.Handle) -> None:
            turns.ran()
            run(handle)

        def late_call(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
            jitter = plugin._jitter
            if jitter is not None:
                jitter.stand_still(CALLS_LATE)
            try:
                return function(*arguments, **named)
            finally:
                if jitter is not None:
                    jitter.stand_still(CALLS_LATE)

        def late_submit(executor: Any, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
            return submit(executor, late_call, function, *arguments, **named)

        def picked(selector: Any, timeout: float | None = None) -> list[Any]:
            found = select(selector, timeout)
            return found if plugin._jitter is None else plugin._jitter.pick(found)

        self._patches.setattr(base_events.BaseEventLoop, "_run_once", late_turn)
        self._patches.setattr(events.Handle, "_run", counted)
        self._patches.setattr(ThreadPoolExecutor, "submit", late_submit)
        self._patches.setattr(DefaultSelector, "select", picked)
        self._patches.setattr(waiting, "brought_about", self._brought_about)

    async def _brought_about(self, condition: Callable[[], T], each_s: float = LOOK_S) -> T:
        real = isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)
        eager, later = self._jitter.look() if real and self._jitter is not None else (False, 0)
        while not (value := condition()):
            await (self._turns.next() if eager else asyncio.sleep(each_s))
        for _ in range(later):
            await asyncio.sleep(0)
        return value

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files that share a cluster or a Spark session stay together (``tests/in_turn.py``)."""
        random.Random(self._seed).shuffle(items)
        at = {scope: place for place, scope in enumerate(scope_of(item.nodeid) for item in items)}
        items.sort(key=lambda item: at[scope_of(item.nodeid)])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._jitter = Jitter(f"{self._seed} {item.nodeid}")
        try:
            return (yield)
        finally:
            self._jitter = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and self._jitter is not None:
            report.sections.append((f"{SEED}={self._seed}", self._jitter.text()))
        return report

    def pytest_report_header(self) -> str:
        return f"jitter: {SEED}={self._seed}"

    def pytest_unconfigure(self) -> None:
        self._patches.undo()


def pytest_configure(config: pytest.Config) -> None:
    seed = os.environ.setdefault(SEED, str(random.SystemRandom().randrange(1_000_000)))  # the workers' too
    plugin = Plugin(seed)
    plugin.install()
    config.pluginmanager.register(plugin, "jitter")
