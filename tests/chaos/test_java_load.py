"""The promise of a drill under the official Java client: it is begun, asked, heard and ended in order; one
that ends, or says nothing, is told. A script stands in for it here."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin.exits import UNFINISHED
from chaos.drills.live import java_load
from chaos.drills.live.java_load import JAVA, JavaClient, JavaLoad
from chaos.drills.live.scenario import DrillSpec
from chaos.drills.load import DrillPlan
from chaos.history import Invoke
from chaos.scenarios import Plan
from chaos.workload import Load
from chaos.worlds import rocketmq
from chaos.worlds.live import CannotDrill
from client.message import Queue
from runtime.os_env import OsEnv
from tests.live.commands import Shell

QUEUE = Queue("t", "broker-a", 0)
PLAY = """
import json, sys, time
def tell(event, **more):
    print(json.dumps({"event": event, "at_ns": time.monotonic_ns(), **more}), flush=True)
def acked(number, offset):
    named = {"process": "p0", "key": f"k{number}"}
    tell("began", **named, queue=0, body_crc=1)
    tell("acked", **named, status="SEND_OK", broker="broker-a", queue=0, offset=offset, offset_msg_id=STORED)
    tell("received", process="c0", key=f"k{number}", broker="broker-a", queue=0, offset=offset, body_crc=1)
STORED = "7F00000100002A9F0000000000000064"
print("a warning of the JVM", flush=True)
tell("ready")
for line in sys.stdin:
    match line.split():
        case ["ping", number]: tell("pong", number=int(number))
        case ["go"]: acked(0, 0)
        case ["stop"]: tell("stopped")
"""
SILENT = "import sys; print('began'); sys.stdin.read()"
ENDS = "import sys; print('no route', file=sys.stderr); sys.exit(3)"
ENDS_LATER = PLAY.replace("acked(0, 0)", "sys.exit('out of memory')")
TALKS_ROT = PLAY.replace("acked(0, 0)", "print('{rot', flush=True)")
STANDS_STILL = PLAY.replace("import json", "import signal, json") + "\nsignal.pause()"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a script stand in for Java."""
    monkeypatch.setattr(java_load, "PING_S", 0.05)

    def with_script(script: str) -> None:
        monkeypatch.setattr(JavaClient, "_command", lambda *_: [sys.executable, "-S", "-E", "-c", script])

    return with_script


def load(directory: Path, noted: list[int]) -> JavaLoad:
    world = cast(Any, SimpleNamespace(namesrv=["127.0.0.1:1"], group="broker-a"))
    plan = DrillPlan(scenario="x", queues=1, load=Load(queues=1, topic="t"))
    chance = random.Random(1)
    return JavaLoad(lambda number: OsEnv(seed=number), world, plan, [QUEUE], chance, directory, noted.append)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - no event of the asker's
            await asyncio.sleep(0.01)


async def test_it_is_begun_asked_heard_and_ended(tmp_path: Path, play: Callable[[str], None]) -> None:
    play(PLAY)
    noted: list[int] = []
    made = load(tmp_path, noted)
    try:
        await made.start()
        await until(lambda: made._events.counts["received"])
        await made.stop(20)
        assert await made.not_consumed(0) == []
    finally:
        await made.close()
    process = made._client._process
    assert process is not None
    assert (noted, process.returncode) == ([process.pid], 0)
    assert [type(event).type for event in made.history.events] == ["invoke", "ok", "read"]
    begun = next(event for event in made.history.events if isinstance(event, Invoke))
    assert 0.0 <= begun.at_ms + made._events.clock.error_ms <= made.clock()
    assert (made.errors(), made.unsure) == ([], None)
    assert made.described()["received"] == 1
    assert 0.0 < made.described()["clock_error_ms"] < 20_000


@pytest.mark.parametrize(("script", "why"), [(SILENT, "says nothing"), (ENDS, "exit code 3: no route")])
async def test_one_that_does_not_begin_is_told(
    tmp_path: Path, play: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    play(script)
    if script == SILENT:
        monkeypatch.setattr(java_load, "READY_S", 0.1)
    made = load(tmp_path, [])
    try:
        with pytest.raises(CannotDrill, match=why):
            await made.start()
    finally:
        await made.close()


@pytest.mark.parametrize(("script", "why"), [(ENDS_LATER, "out of memory"), (TALKS_ROT, "JSONDecodeError")])
async def test_one_that_ends_before_its_time_is_an_error(
    tmp_path: Path, play: Callable[[str], None], script: str, why: str
) -> None:
    play(script)
    made = load(tmp_path, [])
    try:
        await made.start()
        await until(made.errors)
        await made.stop(20)  # and nobody waits for it
    finally:
        await made.close()
    assert made.errors()[0].startswith("the official Java client: ")
    assert why in made.errors()[0]


async def test_one_that_does_not_end_is_killed(
    tmp_path: Path, play: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(STANDS_STILL)
    monkeypatch.setattr(java_load, "ENDS_S", 0.1)
    made = load(tmp_path, [])
    await made.start()
    await made.close()
    process = made._client._process
    assert process is not None
    assert process.returncode == -9


async def test_clocks_that_went_apart_are_told(tmp_path: Path, play: Callable[[str], None]) -> None:
    play(PLAY.replace("acked(0, 0)", "time.monotonic_ns = lambda: 10**18"))
    made = load(tmp_path, [])
    try:
        await made.start()
        await until(lambda: made.unsure)
    finally:
        await made.close()
    assert "went apart" in (made.unsure or "")


def test_without_java_it_is_refused_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocketmq, "unavailable", lambda: "needs a JDK (java and javac on PATH)")
    code, said = Shell().ended(
        ["drill", "run", "kill_the_master_under_load", "--client", JAVA, "--keep", str(tmp_path / "kept")]
    )
    assert code == UNFINISHED
    assert "needs a JDK" in said
    assert "leave out --client java" in " ".join(said.split())
    assert not (tmp_path / "kept").exists()


def test_a_plan_remembers_whose_client_it_is_of() -> None:
    data = DrillSpec(scenario="x", seed=1, plan=Plan([]), client=JAVA).to_json()
    assert DrillSpec.from_json(data).client == JAVA
    del data["client"]
    assert DrillSpec.from_json(data).client == "keelmq"
    with pytest.raises(CannotDrill, match="no client kotlin"):
        DrillSpec.from_json(data | {"client": "kotlin"})
