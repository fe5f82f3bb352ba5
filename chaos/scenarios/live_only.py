"""Faults that only real processes have: the simulated world refuses them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from chaos.faults import OwnFault


@dataclass(frozen=True, slots=True)
class LostLog(OwnFault):
    """A dead broker's CommitLog is gone, and nothing else of its store: its mount did not come up, or was
    replaced. Nothing happens to one that runs."""

    name = "lost_log"

    async def live(self, cluster: Any, node: Any) -> bool:
        log = cluster.store_path(node) / "commitlog"
        if node.role != "broker" or cluster.is_running(node) or not log.is_dir():
            return False
        shutil.rmtree(log)
        log.mkdir()
        return True
