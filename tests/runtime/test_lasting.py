"""The promise about tasks that are to run for ever: one that does not any more is told of."""

from __future__ import annotations

import ast
import asyncio
import logging
from pathlib import Path

import pytest

import runtime
from runtime.report import lasting as module
from runtime.report.lasting import Dead, lasting
from runtime.tasks import Tasks, every

ROOT = Path(runtime.__file__).parent.parent
SERVERS = ("admin/host", "broker", "namesrv", "remoting")
"""A store, and Raft, end with their tasks: ``Tasks`` tells their owners."""


@pytest.fixture(autouse=True)
def dead(monkeypatch: pytest.MonkeyPatch) -> Dead:
    found = Dead()
    monkeypatch.setattr(module, "DEAD", found)
    return found


@lasting
async def failing(error: BaseException | None) -> None:
    await asyncio.sleep(0)
    if error is not None:
        raise error


async def ended(tasks: Tasks, error: BaseException | None) -> None:
    await asyncio.wait([tasks.spawn(failing(error), name="work")])


async def test_a_task_that_died_is_told_of_until_it_begins_again(
    dead: Dead, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = Tasks("server")
    await ended(tasks, OverflowError("too large"))
    assert dead.reason() == "the task server.work died: too large"
    assert "server.work failed" in caplog.text
    await ended(tasks, None)
    assert dead.reason() is None


async def test_one_that_was_cancelled_by_what_it_waited_for_died_and_one_that_was_ended_did_not(
    dead: Dead, caplog: pytest.LogCaptureFixture
) -> None:
    waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await waited

    tasks = Tasks("server")
    task = tasks.spawn(every(0.0, wait, what="waiting"), name="loop")
    other = tasks.spawn(every(60.0, wait, what="waiting"), name="other")
    await asyncio.sleep(0.01)
    waited.cancel()
    await asyncio.wait([task])
    assert dead.why == {"server.loop": "CancelledError"}
    assert [r.levelno for r in caplog.records if "server.loop was cancelled" in r.message] == [logging.ERROR]
    await tasks.cancel()
    assert other.cancelled()
    assert list(dead.why) == ["server.loop"]


async def test_of_many_the_first_is_named_and_the_others_are_counted(dead: Dead) -> None:
    dead.why = {"a": "x", "b": "y", "c": "z"}
    assert dead.reason() == "the task a died: x (and 2 more)"


async def test_no_period_is_too_long_for_a_loop(dead: Dead) -> None:
    tasks = Tasks("server")
    tasks.spawn(every(10**400, lambda: None, what="waiting"), name="loop")
    await asyncio.sleep(0.01)
    assert dead.why == {}
    await tasks.cancel()


def test_whatever_a_server_runs_for_ever_is_lasting() -> None:
    """By its name: ``run``. All others are made of ``every`` and ``level_triggered``."""
    found = 0
    for part in SERVERS:
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.AsyncFunctionDef) and node.name == "run" and not node.args.args[1:]:
                    assert any(getattr(d, "id", "") == "lasting" for d in node.decorator_list), path
                    found += 1
    assert found >= 12
