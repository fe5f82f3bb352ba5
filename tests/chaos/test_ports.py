"""The promise of a drill's ports: nobody else is given them as long as its cluster is there."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from admin.local import layout as layouts
from admin.local.layout import HOST, PORTS_EACH
from chaos import faults
from chaos.drills.live import scenario, stores
from chaos.drills.live.scenario import DrillResult, DrillSpec, run_scenario
from chaos.drills.measure import Drill
from chaos.faults import Step
from chaos.history import History
from chaos.live import ports
from chaos.live.outcome import Outcome
from chaos.scenarios import Plan
from model.errors import ConfigError
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster

SPEC = DrillSpec(scenario="x", seed=1, plan=Plan([Step(1, faults.Look("b1"))], load_ms=2))


class Cluster(FakeCluster):
    """It is there at once, and gone at once."""

    async def up(self, **_: Any) -> dict[str, Any]:
        return {}

    def down(self, grace_s: float = 0.0) -> list[str]:
        return []


def always(base: int) -> Any:
    """A chance that draws nothing else."""
    return SimpleNamespace(Random=lambda: SimpleNamespace(randrange=lambda *_: base))


def is_claimed(base: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, base + PORTS_EACH - 1))
        except OSError:
            return True
    return False


def test_ports_that_nobody_listens_at_are_given_to_nobody_else_as_long_as_they_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ports.held(2) as base:
        monkeypatch.setattr(layouts, "random", always(base))
        monkeypatch.setattr(ports, "random", always(base))
        with pytest.raises(ConfigError, match="free ports"):
            layouts.free_base_port(PORTS_EACH)
        with pytest.raises(ConfigError, match="free ports"), ports.held(1):
            pass
    with ports.held(1) as again:
        assert again == base


def test_ports_at_which_somebody_listens_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    with ports.held(1) as base:
        pass
    monkeypatch.setattr(ports, "random", always(base))
    with (
        socket.create_server((HOST, base + 3)),
        pytest.raises(ConfigError, match="free ports"),
        ports.held(1),
    ):
        pass


async def test_a_run_holds_the_ports_of_its_cluster_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that a fault killed listens nowhere, and needs its port again."""
    given: list[int] = []

    def laid_out(env: Any, spec: Any, directory: Path, base: int) -> Cluster:
        given.extend(base + number * PORTS_EACH for number in range(6))
        return Cluster(tmp_path)

    async def strike(*_: Any) -> DrillResult:
        assert all(map(is_claimed, given))
        return DrillResult(Drill(full_again_ms=1.0), Outcome(), History(), {})

    monkeypatch.setattr(scenario, "_laid_out", laid_out)
    monkeypatch.setattr(scenario, "strike", strike)
    monkeypatch.setattr(stores, "damaged", lambda *_, **__: [])
    await run_scenario(OsEnv(seed=1), SPEC, tmp_path, env_of=lambda _: OsEnv(seed=1))
    assert given
    assert not any(map(is_claimed, given))
