"""What do the replicas of a live cluster hold in the end? Their CommitLogs, as they lie on the disks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from admin.local.cluster import POLL_S, LocalCluster
from chaos.checks.replicas import ReplicaLog
from store.files import epoch_file

LEVEL_S: Final = 15.0
"""Within so long without a load every replica has confirmed all it holds."""


@dataclass(frozen=True, slots=True)
class Held:
    """The logs that could be read, and the brokers of the SyncStateSet as the Controllers say."""

    logs: Sequence[ReplicaLog] = ()
    members: Sequence[str] = ()


async def level(cluster: LocalCluster) -> tuple[Mapping[str, Mapping[str, Any]], list[str]]:
    """What each broker says of its log, and the members as the Controllers say: once all say the same and are
    members, or after LEVEL_S. The silent are left out."""
    nodes = cluster.layout.broker_nodes
    until = time.monotonic() + LEVEL_S
    while True:
        views = await cluster.views()
        found = {node.name: view for node in nodes if (view := views[node.name])}
        members = _members(cluster.status_of(views))
        ends = {(view["maxOffset"], view["maxOffset"] - view["confirmOffset"]) for view in found.values()}
        level = len(ends) == 1 and not next(iter(ends))[1]
        if (level and len(found) == len(members) == len(nodes)) or time.monotonic() > until:
            return found, members
        await asyncio.sleep(POLL_S)


def _members(status: Mapping[str, Any]) -> list[str]:
    return [
        str(broker["name"])
        for group in status["groups"]
        for broker in group["brokers"]
        if broker["id"] in group["syncStateSet"]
    ]


def read(cluster: LocalCluster, views: Mapping[str, Mapping[str, Any]]) -> list[ReplicaLog]:
    """The logs as far as their brokers say. Raises OSError, DiskError."""
    found = []
    for node in cluster.layout.broker_nodes:
        view = views.get(node.name)
        if view is not None:
            store = cluster.store_path(node)
            begin, data = _bytes(store / "commitlog", int(view["maxOffset"]))
            epochs = epoch_file.decode((store / "epochFileCheckpoint").read_bytes())
            starts = tuple((int(epoch), int(start)) for epoch, start in epochs)
            found.append(ReplicaLog(node.name, begin, data, int(view["confirmOffset"]), starts))
    return found


def _bytes(folder: Path, end: int) -> tuple[int, bytes]:
    """Where the log begins, and all of it."""
    segments = sorted((int(path.name), path) for path in folder.iterdir() if path.name.isdigit())
    if not segments:
        return 0, b""
    parts = []
    for start, path in segments:
        with path.open("rb") as file:
            parts.append(file.read(max(0, end - start)))
    begin = segments[0][0]
    return begin, b"".join(parts)[: end - begin]
