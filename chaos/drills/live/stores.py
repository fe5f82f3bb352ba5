"""Is every store whole once its broker has stopped? What ``keelmq store verify`` says: its queues, index and
epochs agree with its log."""

from __future__ import annotations

from typing import Any, Final

from admin.local.cluster import LocalCluster
from chaos.drills.live.disks import lied
from chaos.faults import FlipBit
from chaos.history import History
from model.errors import DiskError
from runtime.os_env import OsDisk
from store.offline.verify import verify

CHECKER: Final = "store_whole"
SHOWN: Final = 3


def judged(cluster: LocalCluster, history: History) -> bool:
    """Whether anything is asked of any store."""
    return bool({node.name for node in cluster.layout.broker_nodes} - _excused(history))


def _excused(history: History) -> set[str]:
    return {*lied(history.events), *(event.node for event in history.happened(FlipBit.name))}


def damaged(cluster: LocalCluster, history: History, *, full: bool) -> list[dict[str, Any]]:
    """What is damaged in which store, as the checks tell it. Of a disk that lied and lost power, or of which
    a bit was flipped, nothing is asked. ``full``: the group was whole, so each store can be read at all."""
    excused = _excused(history)
    found = []
    for node in cluster.layout.broker_nodes:
        if node.name not in excused:
            try:
                damage = verify(OsDisk(), str(cluster.store_path(node)))["damage"]
            except (DiskError, OSError) as error:
                if full:
                    found.append(f"the store of {node.name} cannot be read: {error}")
                continue
            if damage:
                told = "; ".join(_place(one) for one in damage[:SHOWN])
                found.append(f"the store of {node.name} is damaged in {len(damage)} places: {told}")
    return [{"checker": CHECKER, "text": text} for text in found]


def _place(damage: dict[str, Any]) -> str:
    text = f"{damage['kind']}: {damage['file']} {damage['physicalOffset']}..{damage['until']}"
    return f"{text} {damage.get('text', '')}".rstrip()
