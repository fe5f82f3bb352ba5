"""The promise: every test begins once, waiting beside computing; files in memory leave with their run."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ROOT, in_memory
from tests.in_turn import LONG_FIRST, ON_ONE_CLUSTER, ON_ONE_RUN, ON_SPARK, Order, scheduler, scope_of

SCOPES = {
    scope_of(test): True
    for test in (
        "tests/admin/test_a.py::test_1",
        "tests/ha/test_b.py::test_2",
        "tests/live/test_c.py::test_3",
        "tests/live/test_c.py::test_4",
        "tests/live/test_drills.py::test_5",
        "tests/audit/engines/test_spark.py::test_6",
        "tests/cli/test_demo.py::test_7",
        "tests/sim/test_d.py::test_8",
    )
}


def test_what_starts_something_costly_is_one_scope_and_begins_first() -> None:
    order = Order(SCOPES)
    waiting = [order.take(waits=True, left=SCOPES) for _ in range(2)]
    assert waiting == ["tests/live/test_drills.py", "tests/live/test_c.py"]
    assert Order(SCOPES).take(waits=False, left=SCOPES) == ON_SPARK[0]


def test_when_none_waits_any_more_they_come_from_both_ends_and_each_once() -> None:
    order = Order(SCOPES)
    taken = [order.take(waits=n < 2, left=SCOPES) for n in range(7)]
    admin, ha, sim = (name for name in SCOPES if name.startswith(("tests/admin", "tests/ha", "tests/sim")))
    assert taken[2:] == [sim, ON_SPARK[0], ha, admin, None]


def test_while_some_wait_the_others_come_in_their_order() -> None:
    order = Order(SCOPES)
    taken = [order.take(waits=False, left=SCOPES) for _ in range(4)]
    admin, ha, sim = (name for name in SCOPES if name.startswith(("tests/admin", "tests/ha", "tests/sim")))
    assert taken == [ON_SPARK[0], admin, ha, sim]
    assert order.take(waits=False, left=SCOPES) == "tests/live/test_drills.py"


def test_what_was_given_away_otherwise_is_not_given_again() -> None:
    order = Order(SCOPES)
    assert order.take(waits=True, left={"tests/live/test_c.py"}) == "tests/live/test_c.py"
    assert order.take(waits=True, left={"tests/live/test_c.py"}) is None


class Worker:
    shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        pass

    def shutdown(self) -> None:
        self.shutting_down = True


def test_what_has_ended_is_not_counted_again_after_every_test() -> None:
    """Thousands would be: a third of the CPU of the process that hands tests out."""
    config = SimpleNamespace(getvalue=lambda name: ["popen"], option=SimpleNamespace(loadscopereorder=False))
    given = scheduler(config, None)
    worker: Any = Worker()
    tests = [f"tests/ha/test_a.py::test_{n}" for n in range(20)]
    given.add_node(worker)
    given.add_node_collection(worker, tests)
    given.schedule()
    ended = set()
    while kept := given.assigned_work[worker]:
        assert len(kept) <= 3, "the one that runs, and the next ones"
        ended.add(next(iter(kept)))
        given.mark_test_complete(worker, tests.index(next(iter(kept))))
    assert ended == set(tests)
    assert worker.shutting_down
    assert given.tests_finished
    assert not given.has_pending


def test_every_name_in_the_lists_is_a_test() -> None:
    """A name that nothing has leaves its tests where they are dear: two Sparks at once, a long one last."""
    for name in (*ON_SPARK, *ON_ONE_CLUSTER, *ON_ONE_RUN, *LONG_FIRST):
        file, _, test = name.partition("::")
        found = (
            [file] if test else [str(path) for path in Path(ROOT, file).parent.glob(f"{Path(file).name}*")]
        )
        assert found, name
        assert not test or f"def {test}" in Path(ROOT, file).read_text(), name


def test_a_folder_in_use_is_nobody_elses_to_remove(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = _run(basetemp=None)
    in_memory.use_memory(config)
    (first,) = memory.iterdir()
    monkeypatch.delenv("TMPDIR")
    in_memory.use_memory(_run(basetemp=None)[0])
    monkeypatch.setenv("TMPDIR", os.environ["TMPDIR"])
    assert first.exists()
    assert len(list(memory.iterdir())) == 2


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(in_memory, "MEMORY", tmp_path)
    monkeypatch.setattr(in_memory, "ROOM_BYTES", 0)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("TMPDIR", raising=False)
    return tmp_path


def _run(**options: object) -> tuple[Any, list[Any]]:
    ends: list[Any] = []
    return SimpleNamespace(option=SimpleNamespace(**options), add_cleanup=ends.append), ends


def test_files_lie_in_memory_until_the_run_ends(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (memory / f"{in_memory.PREFIX}of-a-run-that-ended").mkdir()
    config, ends = _run(basetemp=None)
    in_memory.use_memory(config)
    monkeypatch.setenv("TMPDIR", os.environ["TMPDIR"])  # taken back when this test ends
    assert [Path(os.environ["TMPDIR"])] == list(memory.iterdir())
    for end in ends:
        end()
    assert list(memory.iterdir()) == []


def test_what_failed_tests_made_stays(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, ends = _run(basetemp=None)
    in_memory.use_memory(config)
    monkeypatch.setenv("TMPDIR", os.environ["TMPDIR"])
    kept = Path(os.environ["TMPDIR"], "pytest-of-me", "pytest-0", "test_it0")
    kept.mkdir(parents=True)
    ends[0]()
    assert kept.exists()


@pytest.mark.parametrize("why", ["a place was chosen", "no room", "no such place"])
def test_else_they_lie_where_they_always_did(memory: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "no room":
        monkeypatch.setattr(in_memory, "ROOM_BYTES", 1 << 60)
    if why == "no such place":
        monkeypatch.setattr(in_memory, "MEMORY", memory / "none")
    config, ends = _run(basetemp="elsewhere" if why == "a place was chosen" else None)
    in_memory.use_memory(config)
    assert "TMPDIR" not in os.environ
    assert ends == []
    assert list(memory.iterdir()) == []
