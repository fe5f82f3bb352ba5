"""Faults that only real processes have: the simulated world refuses them. ``ground`` is a ``Ground`` of
``chaos.live.ground``, ``node`` a server on it.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.faults import OwnFault
from model.errors import MqError

SECTOR_BYTES: Final = 512
END_S: Final = 10.0
"""A process whose disk is to be mounted anew ends within so long."""


@dataclass(frozen=True, slots=True)
class LiveOnly(OwnFault):
    """One of these."""

    async def strike(self, ground: Any, node: Any) -> bool:
        """Whether it struck anything. Raises MqError or OSError with the reason why it cannot."""
        raise NotImplementedError(self.name)

    async def restore(self, ground: Any, node: Any) -> None:
        """Undo what no later step undid; every server is started after."""


@dataclass(frozen=True, slots=True)
class LostLog(LiveOnly):
    """A dead broker's CommitLog is gone, and nothing else of its store: its mount did not come up, or was
    replaced. Nothing happens to one that runs."""

    name = "lost_log"

    async def strike(self, ground: Any, node: Any) -> bool:
        log = ground.cluster.store_path(node) / "commitlog"
        if node.role != "broker" or ground.cluster.is_running(node) or not log.is_dir():
            return False
        shutil.rmtree(log)
        log.mkdir()
        return True


@dataclass(frozen=True, slots=True)
class Leave(LiveOnly):
    """An operator takes a broker out of the group: it is stopped, forgotten by the Controllers once it is no
    member any more, and its disk is emptied."""

    name = "leave"


@dataclass(frozen=True, slots=True)
class Join(LiveOnly):
    """A broker that left is started, with its empty disk. The operator ends first what is under way."""

    name = "join"


@dataclass(frozen=True, slots=True)
class Replace(LiveOnly):
    """A broker is lost with its disk and begins anew with an empty one; the operator has its former id
    forgotten once the new one is a member."""

    name = "replace"


@dataclass(frozen=True, slots=True)
class ClockDrift(LiveOnly):
    """The target's wall clock goes ``rate`` times as fast, counted from its start: it jumps by what it would
    be off by now. 1 ends it; monotonic clocks go on undisturbed."""

    name = "clock_drift"
    needs = ("libfaketime",)
    rate: float = 1.05

    async def strike(self, ground: Any, node: Any) -> bool:
        return bool(ground.drift(node.name, self.rate))

    async def restore(self, ground: Any, node: Any) -> None:
        ground.drift(node.name, 1.0)


@dataclass(frozen=True, slots=True)
class MemoryLimit(LiveOnly):
    """The process gets ``mib`` more of address space than it has, until ``lacking=False`` or its end."""

    name = "memory_limit"
    needs = ("prlimit",)
    mib: int = 16
    lacking: bool = True

    async def strike(self, ground: Any, node: Any) -> bool:
        if node.pid is None or not ground.cluster.is_running(node):
            return False
        soft, hard = resource.prlimit(node.pid, resource.RLIMIT_AS)
        pages = int(Path(f"/proc/{node.pid}/statm").read_text(encoding="ascii").split()[0])
        wanted = pages * resource.getpagesize() + (self.mib << 20) if self.lacking else hard
        resource.prlimit(node.pid, resource.RLIMIT_AS, (wanted, hard))
        return self.lacking or soft != hard

    async def restore(self, ground: Any, node: Any) -> None:
        await MemoryLimit(node.name, lacking=False).strike(ground, node)


@dataclass(frozen=True, slots=True)
class ReadOnlyDisk(LiveOnly):
    """The target's file system takes no write any more, as after an error of its journal. It is mounted anew
    by ``read_only=False``, once the process has ended, which somebody told it to."""

    name = "read_only_disk"
    needs = ("loop disk",)
    read_only: bool = True

    async def strike(self, ground: Any, node: Any) -> bool:
        disk = ground.disks.get(node.name)
        if disk is None:
            raise MqError(f"{node.name} has no disk of its own")
        if disk.writable is not self.read_only:
            return False
        if self.read_only:
            await asyncio.to_thread(disk.abort)
            return True
        await _its_end(ground, node)
        await asyncio.to_thread(disk.power_on)
        return True

    async def restore(self, ground: Any, node: Any) -> None:
        if ground.disks[node.name].writable:
            return
        ground.cluster.send_signal(node, signal.SIGKILL)
        await _its_end(ground, node)
        await asyncio.to_thread(ground.disks[node.name].power_on)


async def _its_end(ground: Any, node: Any) -> None:
    """Raises MqError when a process does not end: its disk stays as it is."""
    until = time.monotonic() + END_S
    while ground.cluster.is_running(node):
        if time.monotonic() > until:
            raise MqError(f"{node.name} did not end within {END_S:g} s: its disk takes no writes still")
        await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Toxic(LiveOnly):
    """Each connection from and to the target gets a toxic of Toxiproxy, as ``slicer``, ``bandwidth``,
    ``latency`` or ``slow_close``, with its ``attributes``, until links are healed."""

    name = "toxic"
    needs = ("namespaces",)
    kind: str = "slicer"
    attributes: Mapping[str, int] = field(default_factory=dict)

    async def strike(self, ground: Any, node: Any) -> bool:
        detours = ground.network.detours if ground.network is not None else None
        if detours is None:
            raise MqError("needs --links toxiproxy")
        await detours.spoil(node.name, self.kind, self.attributes)
        return True


@dataclass(frozen=True, slots=True)
class TornWrite(LiveOnly):
    """A broker whose machine has no power kept every second sector of what was not synced, as another replica
    has it: eight sectors after the end of its CommitLog. Nothing happens to one that runs."""

    name = "torn_write"
    needs = ("namespaces", "loop disk")

    async def strike(self, ground: Any, node: Any) -> bool:
        disk = ground.disks.get(node.name)
        if disk is None or node.role != "broker" or ground.cluster.is_running(node):
            return False
        await asyncio.to_thread(disk.power_on)
        others = [
            ground.cluster.store_path(one) for one in ground.cluster.layout.broker_nodes if one is not node
        ]
        return await asyncio.to_thread(tear, ground.cluster.store_path(node), others)


def tear(store: Path, others: Sequence[Path]) -> bool:
    """Whether some other store has more of the last segment that holds anything, and a part of that was
    written."""
    for segment in sorted((store / "commitlog").glob("0*"), reverse=True):
        if size := len(segment.read_bytes().rstrip(b"\0")):
            break
    else:
        return False
    first = size // SECTOR_BYTES + 1
    torn = False
    for path in (other / "commitlog" / segment.name for other in others):
        more = path.read_bytes()[first * SECTOR_BYTES :].rstrip(b"\0") if path.is_file() else b""
        with segment.open("r+b") as file:
            for number in range(1, min(8, len(more) // SECTOR_BYTES), 2):
                file.seek((first + number) * SECTOR_BYTES)
                file.write(more[number * SECTOR_BYTES :][:SECTOR_BYTES])
                torn = True
        if torn:
            break
    return torn
