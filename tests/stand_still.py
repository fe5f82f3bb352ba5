"""Tells of a failed test whether this machine stood still meanwhile: a shared one may, for seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

LOOK_S = 0.25
WORTH_TELLING_S = 1.0
# A cluster that several tests share remembers what happened to it before the test that fails.
BEFORE_S = 120.0


class StandStills:
    """When nobody here ran for longer than WORTH_TELLING_S, in monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.found: list[tuple[float, float]] = []
        self._last = now

    def look(self, now: float) -> None:
        """Called every LOOK_S; a later call means that it could not be made."""
        missed = now - self._last - LOOK_S
        if missed > WORTH_TELLING_S:
            self.found.append((now, missed))
        self._last = now

    def text_since(self, began: float, now: float) -> str:
        return "\n".join(
            f"for {missed:.1f} s, {now - ended:.1f} s before the failure was seen"
            for ended, missed in self.found
            if ended >= began - BEFORE_S
        )


class Plugin:
    def __init__(self) -> None:
        self._stills = StandStills(time.monotonic())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stand-still", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self._stills.look(time.monotonic())

    def pytest_unconfigure(self) -> None:
        self._over.set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            now = time.monotonic()
            text = self._stills.text_since(now - call.duration, now)
            if text:
                report.sections.append(("the machine stood still", text))
        return report
