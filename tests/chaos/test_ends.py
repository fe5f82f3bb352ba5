"""The promise of a drill's end: a server that does not end when told to, or ends by itself, is an error."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from admin.local import processes
from admin.local.cluster import ClusterNotReady, LocalCluster
from admin.local.layout import Layout
from admin.local.processes import GRACE_S
from chaos import faults
from chaos.drills.live import scenario, stores
from chaos.drills.live.commands import exit_code
from chaos.drills.live.names import OURS
from chaos.drills.live.scenario import DrillResult, DrillSpec, run_scenario, strike
from chaos.drills.load import DrillLoad
from chaos.drills.measure import VIOLATIONS_SHOWN, Drill
from chaos.faults import Step
from chaos.history import Happened, History, Invoke
from chaos.live.executor import GONE_S
from chaos.live.ground import Ground
from chaos.live.outcome import Outcome
from chaos.scenarios import Plan
from client.message import Queue
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster
from tests.waiting import until

HIT = "broker-a-1"


class Cluster(FakeCluster):
    """All are ready at once, but for the server that ``ends``; ``kills`` had to be killed in the end."""

    def __init__(self, directory: Path, *, ends: str = "", kills: tuple[str, ...] = ()) -> None:
        super().__init__(directory)
        self._ends, self._kills, self.graces_s = ends, kills, list[float]()
        self.log_path(self.layout.node(HIT)).parent.mkdir(parents=True)
        self.log_path(self.layout.node(HIT)).write_text("its last words\n")
        for node in self.layout.nodes:
            node.pid = 4_000_000

    async def up(self, **_: Any) -> dict[str, Any]:
        return {}

    async def wait_ready(self, **_: Any) -> dict[str, Any]:
        if self._ends:
            self.running[self._ends] = 0
            raise ClusterNotReady(f"{self._ends} ended")
        return {}

    def down(self, grace_s: float = GRACE_S) -> list[str]:
        self.graces_s.append(grace_s)
        killed, self._kills = list(self._kills), ()
        return killed


class NoLoad(DrillLoad):
    """Nothing is sent, and nothing is read."""

    def __init__(self, env_of: Any, world: Any, plan: Any, queues: Any, *_: Any) -> None:
        self.queues = queues
        self.history, self._begun = History(), time.monotonic()
        self._running, self._following = [], None

    @property
    def reads_failed(self) -> int:
        return 0

    def clock(self) -> float:
        return (time.monotonic() - self._begun) * 1000

    async def start(self) -> None: ...

    async def stop(self, recover_s: float) -> None: ...

    async def read_back(self, timeout_s: float) -> bool:
        return True

    async def not_consumed(self, within_s: float) -> list[str]:
        return []

    async def close(self) -> None: ...


SPEC = DrillSpec(
    scenario="x", seed=1, plan=Plan([Step(1, faults.Look("b1"))], load_ms=2), go_on=True, stubborn=False
)


async def told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *struck: Happened | Invoke) -> DrillResult:
    """What a run says of which nothing but its servers' ends is real."""

    async def nothing(*_: Any) -> None: ...

    env = OsEnv(seed=1)
    monkeypatch.setattr(scenario, "make_topic", nothing)
    monkeypatch.setattr(scenario, "DrillLoad", NoLoad)
    monkeypatch.setattr(scenario, "_clients_saw", lambda *_, **__: asyncio.sleep(0, []))
    monkeypatch.setattr(scenario, "_logs", lambda *_: asyncio.sleep(0, scenario.NOTHING_HELD))
    monkeypatch.setattr(scenario, "READY_S", {OURS: 0.1})
    if struck:
        monkeypatch.setattr(scenario, "_carry_out", lambda executor, *_: _strike(executor._history, struck))
    return await strike(env, SPEC, cluster, Ground(cluster), lambda _: env, lambda _: None)


async def _strike(history: History, struck: tuple[Happened | Invoke, ...]) -> None:
    for event in struck:
        history.add(event)


@pytest.mark.parametrize("struck", [(), (Happened(1.0, HIT, "disk_full", {"full": True}),)])
async def test_a_server_that_ends_while_the_healed_cluster_settles_is_an_error(
    struck: tuple[Happened, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not merely a run without an end: a broker that dies as soon as it is started again is broken. One
    whose disk was full may have ended of that."""
    found = await told(Cluster(tmp_path, ends=HIT), monkeypatch, *struck)
    assert found.drill.unfinished is not None
    errors = [one for one in found.drill.violations if one["checker"] == "no_errors"]
    assert len(errors) == (0 if struck else 1)
    assert all("ended by itself" in one["text"] and "its last words" in one["text"] for one in errors)
    assert exit_code(found) == (3 if struck else 2)


async def test_a_whole_group_is_noted_so_that_no_former_fault_explains_what_comes_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = Happened(1.0, HIT, "disk_full", {"full": True})
    found = await told(Cluster(tmp_path), monkeypatch, hit)
    assert [event.name for event in found.history.happened()] == ["disk_full", "group_full"]
    assert found.drill.violations == []


@pytest.mark.parametrize("struck", [[], [Happened(1.0, HIT, "disk_full")], [Happened(1.0, HIT, "kill")]])
async def test_a_server_that_has_to_be_killed_when_the_cluster_is_taken_down_is_an_error(
    struck: list[Happened], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stands still at every orderly stop loses what an orderly stop writes, too."""
    cluster = Cluster(tmp_path, kills=(HIT,))

    async def struck_and_judged(*_: Any) -> DrillResult:
        return DrillResult(Drill(full_again_ms=1.0), Outcome(), History(struck), {}, broken={"lost": 1})

    monkeypatch.setattr(scenario, "_laid_out", lambda *_: cluster)
    monkeypatch.setattr(scenario, "strike", struck_and_judged)
    damage = {"checker": stores.CHECKER, "text": "damaged"}
    monkeypatch.setattr(stores, "damaged", lambda *_, **__: [damage])
    env = OsEnv(seed=1)
    found = await run_scenario(env, SPEC, tmp_path, env_of=lambda _: env)
    explained = [event.name for event in struck] == ["disk_full"]
    assert found.broken == {"lost": 1, stores.CHECKER: 1} | ({} if explained else {"no_errors": 1})
    assert found.drill.violations[-1] == damage
    if not explained:
        error = found.drill.violations[0]["text"]
        assert error.startswith(f"{HIT} did not end within 20 s of SIGTERM")
        assert "its last words" in error
    assert cluster.graces_s[0] == GONE_S, "as long as is said"
    assert exit_code(found) == 2


@pytest.mark.parametrize(("code", "count"), [(0, 0), (-15, 0), (1, 1), (-11, 1)])
async def test_a_server_that_ends_by_itself_between_the_last_look_and_the_end_is_an_error(
    code: int, count: int, tmp_path: Path
) -> None:
    cluster = LocalCluster(tmp_path, Layout.make(base_port=20_000))
    node = cluster.layout.node(HIT)
    for path in (cluster.conf_path(node), cluster.log_path(node)):
        path.parent.mkdir()
    ends = f"import os; os.kill(os.getpid(), {-code})" if code < 0 else f"raise SystemExit({code})"
    node.pid = processes.start([sys.executable, "-c", ends], cluster.conf_path(node), cluster.log_path(node))
    await until(lambda: not cluster.is_running(node))
    found = scenario._taken_down(cluster, History())
    assert [one["text"].partition(";")[0] for one in found] == [f"{HIT} ended with exit code {code}"] * count


async def test_a_server_that_was_told_of_is_not_told_of_again_when_the_cluster_is_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, ends=HIT)
    await told(cluster, monkeypatch)
    assert cluster.layout.node(HIT).pid is None


async def test_an_outage_that_only_the_healing_ends_lasts_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)

    async def slow(**_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.2)
        return {}

    monkeypatch.setattr(cluster, "wait_ready", slow)
    unanswered = Invoke(1.0, "p", "k", Queue("chaos", "broker-a", 0), 1)
    found = await told(cluster, monkeypatch, Happened(1.0, HIT, "kill"), unanswered)
    assert found.drill.full_again_ms is not None
    assert found.drill.full_again_ms >= 200
    assert found.until_ms >= 200
    assert found.drill.stall_ms == pytest.approx(found.until_ms - 1.0, abs=0.1)


def test_no_more_violations_are_shown_than_a_page_holds() -> None:
    found = DrillResult(Drill(violations=[{}] * VIOLATIONS_SHOWN), Outcome(), History(), {})
    scenario._add(found, [{"checker": "no_errors", "text": "x"}])
    assert len(found.drill.violations) == VIOLATIONS_SHOWN
    assert found.broken == {"no_errors": 1}
