"""Which tests are live, interop, simulated or quick; which share a worker; how many compute at once?

The folder says which mark a test has (``FOLDERS``); one that starts real processes or the real RocketMQ lies
in that folder, or stands in ``ELSEWHERE``. A test that failed while the machine stood still is tried again.
"""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests import ROOT
from tests.compiled import compile_tests, keep_compiled
from tests.in_memory import use_memory
from tests.in_turn import ON_SPARK, scheduler
from tests.stand_still import Plugin

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# How long an example takes says how busy the machine is, and nothing about the promise.
settings.register_profile("keelmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("keelmq")
# After every edit; ``make test`` draws the default 100.
settings.register_profile("quick", settings.get_profile("keelmq"), max_examples=40)

STAND_STILL: Final = "stand-still"
FOLDERS: Final = {"tests/live/": "live", "tests/interop/": "interop", "tests/sim/": "sim"}
ELSEWHERE: Final = {
    "live": ("tests/cli/test_demo.py", "tests/packaging/test_wheel.py"),
    "spark": ("tests/audit/", "tests/cli/test_demo.py"),
}
"""``sim`` is free: Raft groups and elections under virtual time are tested beside what they test."""
QUICK: Final = (
    "tests/model/",
    "tests/runtime/",
    "tests/remoting/test_codec",
    "tests/remoting/test_headers",
    "tests/remoting/test_bodies",
    "tests/store/files/test_record",
    "tests/store/test_golden",
    "tests/store/files/test_commit_log",
    "tests/store/files/test_consume_queue",
    "tests/store/flow/test_dispatch",
    "tests/store/files/test_index_file",
    "tests/store/files/test_epoch_file",
    "tests/store/test_message_store",
    "tests/store/heal/test_damage",
    "tests/ha/test_ack_policy",
    "tests/ha/test_codec",
    "tests/ha/test_consistent_point",
    "tests/ha/test_follow",
    "tests/ha/test_sync_set",
    "tests/ha/test_set_changes",
    "tests/ha/test_majority",
    "tests/controller/groups/test_core",
    "tests/controller/elections/test_election",
    "tests/controller/elections/test_transcripts",
    "tests/controller/raft/test_packing",
    "tests/controller/groups/test_rules",
    "tests/broker/role/test_machine",
    "tests/broker/requests/test_fast_path",
    "tests/packaging/test_house_rules",
)
"""What ``make quick`` runs after every edit, in a minute: pure deciders, codecs, the store, a few seeds."""
WAITING: Final = ("live", "interop")
"""Tests that mostly wait for processes of their own: they run beside those that compute."""
GARBAGE_AFTER: Final = 7000
"""Objects. After each 700, as is usual, looking for garbage took a twentieth of the computing."""
INTEROP_ALONE: Final = ("oracle", "more")
"""What ``make interop`` alone runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--at-once",
        type=int,
        default=0,
        metavar="N",
        help="with -n: of the tests that compute, run at most N at once; those that wait run beside them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_to_interop(config, items)
    for item in items:
        for folder, mark in FOLDERS.items():
            if item.nodeid.startswith(folder):
                item.add_marker(mark)
        marks = {mark.name for mark in item.iter_markers()}
        for mark in ("live", "interop", "spark"):
            places = tuple(f for f, of in FOLDERS.items() if of == mark) + ELSEWHERE.get(mark, ())
            if mark in marks and not item.nodeid.startswith(places):
                raise pytest.UsageError(f"{item.nodeid} is marked {mark}: such tests lie in {places}")
        if "spark" in marks and not item.nodeid.startswith(ON_SPARK):
            raise pytest.UsageError(
                f"{item.nodeid} is marked spark: name it in ON_SPARK, or it starts another"
            )
        slow = marks & {"live", "interop", "spark", "sim", "slow"}
        if "seeds" in marks or (not slow and item.nodeid.startswith(QUICK)):
            item.add_marker("quick")


def _leave_to_interop(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A pinned release does today what it did yesterday: every run looks at ours, make interop at both."""
    if os.environ.get("KEELMQ_INTEROP") == "all":
        return
    left_out = {item for item in items if any(map(item.get_closest_marker, INTEROP_ALONE))}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return scheduler(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(STAND_STILL):
        config.pluginmanager.register(Plugin(), STAND_STILL)
    use_memory(config)
    keep_compiled(config)
    compile_tests(config)
    if config.option.markexpr == "quick":
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``-m quick`` reads the files alone that have such tests: what the others import is saved."""
    if config.option.markexpr != "quick" or not collection_path.name.startswith("test_"):
        return None
    if collection_path.relative_to(ROOT).as_posix().startswith(QUICK):
        return None
    return "mark.seeds" not in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The tests and their modules stay until the end: no collection of garbage looks through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE_AFTER)
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    at_once = item.config.getoption("--at-once")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if not at_once or not run or any(item.get_closest_marker(mark) for mark in WAITING):
        return (yield)
    with _turn(Path(tempfile.gettempdir()) / f"keelmq-tests-{run}", at_once):
        return (yield)


@contextmanager
def _turn(directory: Path, at_once: int) -> Iterator[None]:
    """One of ``at_once`` places, whichever is free first among all workers of this run."""
    places = _places(directory, at_once)
    while True:
        for place in places:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            try:
                yield
            finally:
                fcntl.flock(place, fcntl.LOCK_UN)
            return
        time.sleep(0.02)


@cache
def _places(directory: Path, at_once: int) -> tuple[int, ...]:
    """Opened once: workers that wait for a turn look fifty times a second."""
    directory.mkdir(exist_ok=True)
    return tuple(os.open(directory / str(number), os.O_RDWR | os.O_CREAT) for number in range(at_once))
