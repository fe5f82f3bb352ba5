"""How does the simulated world carry out a fault that a scenario only names?"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from chaos import faults
from chaos.faults import FAULTS, Fault, OwnFault, Step
from chaos.history import Happened
from chaos.partitions import links_to_cut
from chaos.sim.cluster import SimCluster
from chaos.sim.disk import Machine
from chaos.sim.operator import Operator

BOOT_FILE: Final = "/store/bootId.json"
LOOK_S: Final = 0.05
"""How often it is asked whether the next step may come at once."""


class Nemesis:
    """Carries out the steps of a plan, and notes in the history what each of them hit."""

    def __init__(self, cluster: SimCluster, steps: Sequence[Step]) -> None:
        self._cluster = cluster
        self._steps = steps
        self._bound: dict[str, str] = {}
        self._begun_s: float | None = None
        self._chance: random.Random = cluster.chance("nemesis")
        self._acts: Final[dict[type[Fault], Callable[[str, Fault], bool]]] = {
            faults.Look: lambda name, _: True,
            faults.Kill: lambda name, _: cluster.kill(name),
            faults.Restart: self._restart,
            faults.Stop: lambda name, _: cluster.stop(name) is not None,
            faults.Pause: lambda name, _: cluster.pause(name),
            faults.Resume: lambda name, _: cluster.resume(name),
            faults.PowerFail: lambda name, _: cluster.power_fail(name),
            faults.Isolate: self._isolate,
            faults.Cut: self._cut,
            faults.SlowNetwork: self._slow_network,
            faults.LosePackets: self._spoil,
            faults.DoublePackets: lambda name, _: True,
            faults.ReorderPackets: self._spoil,
            faults.NarrowLinks: self._spoil,
            faults.ResetLinks: self._reset,
            faults.SlowDisk: self._slow_disk,
            faults.DiskFull: self._disk_full,
            faults.NoDescriptors: self._no_descriptors,
            faults.SyncError: self._sync_error,
            faults.WriteError: self._write_error,
            faults.ReadError: self._read_error,
            faults.FlipBit: self._flip_bit,
            faults.ClockJump: self._clock_jump,
            faults.Partition: self._partition,
            faults.LyingSync: self._lying_sync,
            faults.Wipe: self._wipe,
            faults.Snapshot: self._snapshot,
            faults.PutBack: self._put_back,
            faults.Reconfigure: self._reconfigure,
            faults.RollingChange: self._rolling_change,
            faults.Upgrade: lambda name, _: self.operator.change({}),
            faults.HandOver: self._hand_over,
        }
        assert self._acts.keys() == set(FAULTS.values()) - {faults.Heal}, "each fault has what carries it out"
        self.operator = Operator(cluster)
        self.before: list[Callable[[Fault, str], None]] = []
        """Called when a fault is about to strike a node."""
        self.after: list[Callable[[Fault, str], None]] = []
        """Called when a fault struck a node."""
        self.done: dict[str, int] = {}
        """How often each kind of fault hit something."""
        self.skipped_ms = 0.0
        """By so much the steps come earlier than planned: nothing was left to see in between."""

    async def run(self, quiet: Callable[[], bool] = lambda: False) -> None:
        """Carry out all steps. While ``quiet``, the next one comes at once."""
        for step in self._steps:
            await self.wait(step.at_ms, quiet)
            self.act(step)

    async def wait(self, at_ms: int, quiet: Callable[[], bool]) -> None:
        """Return at a time of the plan, or before, once it is ``quiet``."""
        loop = self._cluster.loop
        if self._begun_s is None:
            self._begun_s = loop.time()
        while True:
            left_s = self._begun_s + (at_ms - self.skipped_ms) / 1000 - loop.time()
            if left_s <= LOOK_S:
                await asyncio.sleep(max(0.0, left_s))
                return
            await asyncio.sleep(LOOK_S)
            if quiet():
                self.skipped_ms += max(0.0, left_s - LOOK_S) * 1000

    def act(self, step: Step) -> None:
        """Carry out one step now; one whose target does not exist at the moment does nothing."""
        cluster, fault = self._cluster, step.fault
        if isinstance(fault, faults.Heal):
            cluster.fabric.heal_all()
            self._note(fault, "")
            return
        name = self.resolve(fault.target)
        if name is None:
            return
        for hook in self.before:
            hook(fault, name)
        if isinstance(fault, OwnFault):
            struck = fault.simulated(cluster, name)
        else:
            struck = self._acts[type(fault)](name, fault)
        if not struck:
            return
        if step.bind:
            self._bound[step.bind] = name
        self._note(fault, name)
        for hook in self.after:
            hook(fault, name)

    def resolve(self, target: str) -> str | None:
        """The node a target means now, or None."""
        cluster = self._cluster
        if target.startswith("="):
            return self._bound.get(target[1:])
        if target == "master":
            return cluster.master()
        if target == "leader":
            return cluster.leader()
        if target == "slave":
            slaves = [name for name, status in cluster.brokers().items() if status["role"] == "slave"]
            return self._chance.choice(slaves) if slaves else None
        if target in ("broker", "namesrv"):
            return self._chance.choice([node.name for node in cluster.of(target)])
        return target if target in cluster.nodes else None

    def _note(self, fault: Fault, name: str) -> None:
        self.done[fault.name] = self.done.get(fault.name, 0) + 1
        fields = {key: value for key, value in fault.to_json().items() if key not in ("fault", "target")}
        self._cluster.history.add(Happened(self._cluster.clock(), name, fault.name, fields))

    # Each says whether it hit something.

    def _restart(self, name: str, fault: Fault) -> bool:
        node = self._cluster.nodes[name]
        if node.state not in ("down", "off") and not node.stopping:
            return False
        self._cluster.power_on(name)
        self._cluster.start(name)
        return True

    def _isolate(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.Isolate)
        self._cluster.isolate(name, fault.direction)
        return True

    def _cut(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.Cut)
        if fault.other in ("brokers", "namesrvs"):
            others = [node.name for node in self._cluster.of(fault.other.removesuffix("s"))]
        else:
            others = [other for other in (self.resolve(fault.other),) if other is not None]
        for other in others:
            if other != name:
                self._cluster.cut(name, other, fault.direction)
        return others not in ([], [name])

    def _slow_network(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.SlowNetwork)
        host = self._cluster.nodes[name].host
        for node in self._cluster.nodes.values():
            if node.name != name:
                self._cluster.fabric.slow(host, node.host, fault.extra_ms / 1000)
                self._cluster.fabric.slow(node.host, host, fault.extra_ms / 1000)
        return True

    def _spoil(self, name: str, fault: Fault) -> bool:
        values = {}
        if isinstance(fault, faults.LosePackets):
            values["lost_share"] = fault.share
        elif isinstance(fault, faults.ReorderPackets):
            values["late_s"] = fault.by_ms / 1000
        elif isinstance(fault, faults.NarrowLinks):
            values["bytes_per_s"] = fault.kib_per_s * 1024
        host = self._cluster.nodes[name].host
        for node in self._cluster.nodes.values():
            if node.name != name:
                self._cluster.fabric.spoil(host, node.host, **values)
                self._cluster.fabric.spoil(node.host, host, **values)
        return True

    def _reset(self, name: str, fault: Fault) -> bool:
        host = self._cluster.nodes[name].host
        nodes = self._cluster.nodes.values()
        return sum(self._cluster.fabric.reset(host, node.host) for node in nodes) > 0

    def _slow_disk(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.SlowDisk)
        self._cluster.nodes[name].machine.faults.slow_s = fault.extra_ms / 1000
        return True

    def _disk_full(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.DiskFull)
        self._cluster.nodes[name].machine.faults.full = fault.full
        return True

    def _no_descriptors(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.NoDescriptors)
        self._cluster.nodes[name].machine.faults.no_descriptors = fault.lacking
        return True

    def _sync_error(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.SyncError)
        self._cluster.nodes[name].machine.faults.sync_errors += fault.count
        return True

    def _write_error(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.WriteError)
        self._cluster.nodes[name].machine.faults.write_errors += fault.count
        return True

    def _read_error(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.ReadError)
        self._cluster.nodes[name].machine.faults.read_errors += fault.count
        return True

    def _flip_bit(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.FlipBit)
        return self._cluster.nodes[name].machine.flip_bit(fault.prefix) is not None

    def _clock_jump(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.ClockJump)
        node = self._cluster.nodes[name]
        node.skew_ms += fault.by_ms
        if node.env is not None:
            node.env.skew_ms = node.skew_ms
        return True

    def _partition(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.Partition)
        kinds = {node.name: node.kind for node in self._cluster.nodes.values()}
        for one, other in links_to_cut(fault.shape, name, kinds, self._chance):
            self._cluster.cut(one, other, fault.direction)
        return True

    def _lying_sync(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.LyingSync)
        self._cluster.nodes[name].machine.faults.lying = fault.lying
        return True

    def _wipe(self, name: str, fault: Fault) -> bool:
        node = self._cluster.nodes[name]
        if node.state not in ("down", "off"):
            return False
        node.machine.wipe()
        return True

    def _snapshot(self, name: str, fault: Fault) -> bool:
        self._cluster.nodes[name].machine.keep()
        return True

    def _put_back(self, name: str, fault: Fault) -> bool:
        """One of a broker that was started since is noticed; any other loses what its disk had promised, as
        far as anybody can know (P14 of docs/replication-modes.md)."""
        node = self._cluster.nodes[name]
        if node.state not in ("down", "off"):
            return False
        noticed = self._cluster.starts_known(node) > _starts(node.machine)
        if not node.machine.put_back():
            return False
        if not noticed:
            node.machine.counts.lied += 1
            self._cluster.history.add(Happened(self._cluster.clock(), name, "put_back_unnoticed"))
        return True

    def _reconfigure(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.Reconfigure)
        self._cluster.nodes[name].own.update(fault.values)
        return True

    def _rolling_change(self, name: str, fault: Fault) -> bool:
        assert isinstance(fault, faults.RollingChange)
        return self.operator.change(fault.values)

    def _hand_over(self, name: str, fault: Fault) -> bool:
        return self.operator.hand_over()


def _starts(machine: Machine) -> int:
    """How often the store was opened by its kept copy; more than anybody knows where that is not to be
    read."""
    found = machine.kept[0].get(BOOT_FILE) if machine.kept is not None else None
    try:
        return int(json.loads(found.read(found.size, 0) if found else b"{}").get("starts", 0))
    except ValueError:
        return 1 << 30
