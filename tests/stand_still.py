"""A test that failed while this machine, a shared one, stood still: it says so, and is tried again.

Nothing here promises what happens to a time-out or an election when every process stops for longer than
it; a test's story is another one then. A test of ours that fails on a machine that ran is never tried again.
A test that drives programs not ours (``interop``) is, while more waits for the cores than there are of them:
what those programs do when their own time-outs end is theirs. Each further try is told with its traceback.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Generator
from functools import partial

import pytest

LOOK_S = 0.05
# With a look less than the shortest time that tests give a follower before it stands for election, and than
# what an idle connection, a pull or an invisible message have in many: those wait for real time.
STILL_S = 0.15
# A cluster that several tests share remembers what happened to it before the test that fails.
BEFORE_S = 120.0
TRIES_AGAIN = 2


class StandStills:
    """When nobody here ran or could write for longer than STILL_S, in monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.found: list[tuple[float, float]] = []
        self._last = now

    def look(self, now: float) -> None:
        """Called every LOOK_S; a later call means that it could not be made."""
        missed = now - self._last - LOOK_S
        if missed > STILL_S:
            self.found.append((now, missed))
        self._last = now

    def since(self, began: float) -> bool:
        return any(ended >= began for ended, _ in self.found)

    def text_since(self, began: float, now: float) -> str:
        return "\n".join(
            f"for {missed:.1f} s, {now - ended:.1f} s before the failure was seen"
            for ended, missed in self.found
            if ended >= began - BEFORE_S
        )


def starved(load: float) -> bool:
    """More waited for the cores in the last minute than there are cores?"""
    return load > len(os.sched_getaffinity(0))


class Plugin:
    def __init__(self) -> None:
        self._stills = StandStills(time.monotonic())
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stand-still", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        with tempfile.TemporaryFile() as disk:
            while not self._over.wait(LOOK_S):
                os.pwrite(disk.fileno(), b"still here", 0)
                os.fdatasync(disk.fileno())
                self._stills.look(time.monotonic())

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """pytest-rerunfailures asks and tells in small packets. One that tells is answered by nobody, so the
        next question waited 40 ms for its acknowledgement: before each of thousands of short tests."""
        asking = getattr(getattr(session.config, "failures_db", None), "sock", None)
        if asking is not None:
            asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pytest_unconfigure(self) -> None:
        self._over.set()
        self._thread.join()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            condition = partial(self._counts_for_nothing, item)
            item.add_marker(pytest.mark.flaky(reruns=TRIES_AGAIN, condition=condition))

    def _counts_for_nothing(self, item: pytest.Item) -> bool:
        if self._stills.since(self._began):
            return True
        return item.get_closest_marker("interop") is not None and starved(os.getloadavg()[0])

    def pytest_runtest_logstart(self) -> None:
        """A test begins, for the first time or again."""
        self._began = time.monotonic()

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
