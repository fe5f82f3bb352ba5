"""An executor of live plans on a cluster of names: nothing is started, and nothing struck."""

from __future__ import annotations

import random
import time
from pathlib import Path

from chaos import faults
from chaos.faults import Step
from chaos.history import LAUNCHED, History
from chaos.live.executor import Executor
from chaos.live.ground import Ground
from chaos.live.onlooker import Onlooker
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster


class World:
    """An executor on a cluster of names, on ground without anything."""

    def __init__(self, directory: Path, stops_after: int = 0) -> None:
        self.cluster = FakeCluster(directory, stops_after)
        self.history = History()
        self.ground = Ground(self.cluster)
        self.onlooker = Onlooker(OsEnv(seed=1), self.cluster, self.history, self.clock)
        self.onlooker.views = {
            "broker-a-0": {"role": "master", "epoch": 1},
            "broker-a-1": {"role": "master", "epoch": 2},
            "broker-a-2": {"role": "slave", "epoch": 2},
            "namesrv-0": {"controller": {"isLeader": True, "term": 4}},
            "namesrv-2": {"controller": {"isLeader": True, "term": 5}},
        }
        self.executor = Executor(
            OsEnv(seed=1),
            self.cluster,
            self.ground,
            self.onlooker,
            self.history,
            self.clock,
            random.Random(1),
        )

    @staticmethod
    def clock() -> float:
        return time.monotonic() * 1000

    async def do(self, fault: faults.Fault, bind: str = "") -> None:
        await self.executor.act(Step(0, fault, bind))

    @property
    def struck(self) -> list[tuple[str, str]]:
        return [(event.node, event.name) for event in self.history.happened() if event.name != LAUNCHED]
