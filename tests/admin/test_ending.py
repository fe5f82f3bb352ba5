"""The promise of admin.ending: any signal ends a command once, in order, and a second one only hurries it."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from admin import ending
from admin.local import processes


@pytest.fixture(autouse=True)
def nothing_is_ignored() -> Iterator[None]:
    """Under nohup, or in the background of a script, some signals are."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in ending.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted(work: Callable[[], None]) -> None:
    with pytest.raises(KeyboardInterrupt), ending.in_order():
        work()


@pytest.mark.parametrize("number", ending.SIGNALS)
def test_a_signal_cancels_the_task_and_its_finally_block_runs_to_its_end(number: int) -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            steps.append("works")
            signal.raise_signal(number)
            await asyncio.sleep(30)
        finally:
            signal.raise_signal(number)
            await asyncio.sleep(0.01)
            steps.append("mended")

    def ended() -> None:
        try:
            ending.run(work())
        finally:
            steps.append("ended, in a hurry" if ending.hurried() else "ended")

    interrupted(ended)
    assert steps == ["works", "mended", "ended, in a hurry"]
    assert not ending.hurried()


def test_a_signal_between_two_tasks_interrupts_the_code_and_a_second_one_does_not() -> None:
    steps: list[str] = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            steps.append("not reached")
        finally:
            signal.raise_signal(signal.SIGTERM)
            steps.append("ended")

    interrupted(work)
    assert steps == ["ended"]


def test_what_must_not_be_cut_runs_to_its_end_first() -> None:
    steps: list[str] = []

    def work() -> None:
        with ending.uncut():
            signal.raise_signal(signal.SIGHUP)
            steps.append("ended all")
        steps.append("not reached")

    interrupted(work)
    assert steps == ["ended all"]


def test_a_task_that_ends_by_itself_is_not_interrupted_and_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in ending.SIGNALS]

    async def work() -> int:
        return 7

    with ending.in_order():
        assert ending.run(work()) == 7
    assert [signal.getsignal(number) for number in ending.SIGNALS] == before


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending.in_order():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_servers_that_do_not_end_are_killed_as_soon_as_somebody_hurries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf, log = tmp_path / "stubborn.conf", tmp_path / "log"
    monkeypatch.setattr(sys, "executable", _stubborn(tmp_path))
    pid = processes.start_server("broker", conf, log)
    while "deaf" not in log.read_text():
        pass

    def work() -> None:
        with ending.uncut():
            signal.raise_signal(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            assert processes.end_all([(pid, conf)], grace_s=60) == [pid]

    interrupted(work)
    assert not processes.is_ours(pid, conf)


def _stubborn(directory: Path) -> str:
    """A program that does not hear SIGTERM."""
    path = directory / "stubborn"
    path.write_text("#!/bin/sh\ntrap '' TERM\necho deaf\nwhile true; do sleep 0.1; done\n")
    path.chmod(0o755)
    return str(path)
