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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests import ROOT
from tests.compiled import compile_tests, keep_compiled
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
    "tests/store/test_record",
    "tests/store/test_golden",
    "tests/store/test_commit_log",
    "tests/store/test_consume_queue",
    "tests/store/test_dispatch",
    "tests/store/test_index_file",
    "tests/store/test_epoch_file",
    "tests/store/test_message_store",
    "tests/store/test_damage",
    "tests/ha/test_ack_policy",
    "tests/ha/test_codec",
    "tests/ha/test_consistent_point",
    "tests/ha/test_follow",
    "tests/ha/test_sync_set",
    "tests/ha/test_set_changes",
    "tests/ha/test_majority",
    "tests/controller/test_core",
    "tests/controller/test_election",
    "tests/controller/test_transcripts",
    "tests/controller/test_packing",
    "tests/controller/test_rules",
    "tests/broker/test_machine",
    "tests/broker/test_fast_path",
    "tests/packaging/test_house_rules",
)
"""What ``make quick`` runs after every edit, in a minute: pure deciders, codecs, the store, a few seeds."""
WAITING: Final = ("live", "interop")
"""Tests that mostly wait for processes of their own: they run beside those that compute."""
INTEROP_ALONE: Final = ("oracle", "more")
"""What ``make interop`` alone runs."""
WAITING_FOLDERS: Final = ("tests/interop/", "tests/live/")
ON_SPARK: Final = (
    "tests/audit/test_spark",
    "tests/audit/test_commitlog",
    "tests/audit/test_bounded.py::test_of_a_long_queue_spark_collects_the_breaks",
    "tests/audit/test_derived.py::test_both_engines_say_the_same_of_what_is_made_of_a_log",
    "tests/audit/test_entries.py::test_both_engines_name_the_same_entries",
    "tests/audit/test_failover.py::test_both_engines_tell_what_was_promised",
    "tests/audit/test_index.py::test_both_engines_say_the_same_of_an_index",
    "tests/audit/test_phantoms.py::test_both_engines_name_what_nobody_sent",
    "tests/cli/test_demo",
    "tests/packaging/test_wheel",
)
"""They share a worker: one Spark at a time, as each starts as many threads as there are cores."""
ON_ONE_CLUSTER: Final = (
    "tests/interop/test_java_client",
    "tests/interop/test_mqadmin.py",
    "tests/interop/test_pop",
    "tests/interop/test_request_reply",
    "tests/interop/test_trace",
)
"""They share a worker: the cluster of tests/interop/conftest.py starts once."""
LONG_FIRST: Final = (
    "tests/audit/test_spark",
    "tests/interop/test_java_client",
    "tests/live/test_drills",
    "tests/interop/test_acl",
    "tests/interop/test_tls",
    "tests/live/test_tls",
    "tests/interop/test_timers",
    "tests/interop/test_mixed",
    "tests/interop/test_signed_peers",
    "tests/interop/test_store_exchange",
    "tests/interop/test_round_trip",
)
"""Files of a minute and more, the longest first: no worker shall be alone with one at the end."""
LANES: Final = 3
"""So many workers at most run files that wait; the others compute meanwhile."""


def _rank(scope: str) -> int:
    """How early a scope begins."""
    return next((at for at, name in enumerate(LONG_FIRST) if scope.startswith(name)), len(LONG_FIRST))


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
    from xdist.scheduler import LoadScopeScheduling

    class ByCost(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        """Every test goes wherever a worker is free, except files that start something costly: they stay
        together, begin first, and LANES workers at most are busy with those that wait."""

        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ON_ONE_CLUSTER):
                return ON_ONE_CLUSTER[0]
            if nodeid.startswith(WAITING_FOLDERS):
                return nodeid.partition("::")[0]
            return ON_SPARK[0] if nodeid.startswith(ON_SPARK) else nodeid

        def _assign_work_unit(self, node: Any) -> None:
            busy = [n for n, units in self.assigned_work.items() if n is not node and self._waits(units)]
            waits = len(busy) < LANES
            able = [one for one in self.workqueue if one.startswith(WAITING_FOLDERS) is waits]
            chosen = min(able, key=_rank, default=None)
            if chosen is not None:
                self.workqueue.move_to_end(chosen, last=False)
            super()._assign_work_unit(node)

        @staticmethod
        def _waits(units: dict[str, dict[str, bool]]) -> bool:
            return any(
                scope.startswith(WAITING_FOLDERS) and not all(done.values()) for scope, done in units.items()
            )

    return ByCost(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(STAND_STILL):
        config.pluginmanager.register(Plugin(), STAND_STILL)
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
    """5,000 tests and their modules stay until the end: no collection of garbage looks through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
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
    directory.mkdir(exist_ok=True)
    while True:
        for number in range(at_once):
            with (directory / str(number)).open("w") as place:
                try:
                    fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(0.02)
