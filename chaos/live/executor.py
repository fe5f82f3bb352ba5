"""How are the steps of a schedule carried out on a cluster of real processes?

The values are those of ``chaos/faults.py``, the targets those of the simulated world: a role, which is looked
up at the moment of the fault, a bound name, ``n0`` for the first NameServer, ``b1`` for the first broker.
What this machine cannot do is refused with the reason, and counted.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from admin.local.cluster import POLL_S, LocalCluster
from admin.local.layout import Node
from chaos import faults
from chaos.checks.liveness import FULL
from chaos.faults import FAULTS, Fault, OwnFault, Step
from chaos.history import ENDED_FAULT, GOES_ON, LAUNCHED, Happened, History
from chaos.live.ground import Ground, flip_bit, is_mended
from chaos.live.means import needs_of, refusal
from chaos.live.network import CLIENTS, Network
from chaos.live.onlooker import Onlooker
from chaos.live.operator import Ended, Operator
from chaos.live.outcome import Outcome, unexplained
from chaos.live.releases import this
from chaos.live.tracing import READS, SYNCS, WRITES, Tracer
from chaos.partitions import links_to_cut
from chaos.scenarios.live_only import Join, Leave, Replace
from chaos.worlds.live import named
from model.errors import MqError
from runtime.env import Env
from runtime.tasks import Tasks

GONE_S: Final = 20.0
"""After so long a process that was told to end is killed, as supervisors do."""
KILLED_S: Final = 60.0
"""After so long nothing ends it any more: a disk that hangs keeps a process."""
ENDED: Final = ("stopping", "ending", "off")
"""States in which a process may still be there for a moment."""
ENDED_ALONE: Final = "ended by itself"
LINKS_CUT: Final = (faults.Isolate, faults.Cut, faults.Partition)

Act = Callable[[Node, Any], Awaitable[bool]]


class Refused(MqError):
    """A fault that cannot be carried out here; the text says why."""


class Executor:
    """Carries out steps on one cluster, and notes in the history what each of them hit."""

    def __init__(
        self,
        env: Env,
        cluster: LocalCluster,
        ground: Ground,
        onlooker: Onlooker,
        history: History,
        clock: Callable[[], float],
        chance: random.Random,
    ) -> None:
        self._cluster, self._ground = cluster, ground
        self._onlooker, self._history, self._clock, self._chance = onlooker, history, clock, chance
        self._nodes = named(cluster)
        self._bound: dict[str, Node] = {}
        self._state: dict[str, str] = {}
        """``stopping``: told to end in order, and not started since; ``ending``: killed, or told while it
        stood still; ``off``: without power; ``paused``."""
        self._tracers: dict[str, Tracer] = {}
        self._starting: dict[str, asyncio.Lock] = {node.name: asyncio.Lock() for node in cluster.layout.nodes}
        self._tasks = Tasks("executor")
        self._operator = Operator(env, cluster, self._operator_refused)
        self.outcome = Outcome()
        # A fault without a method of its name ends the drill before it began.
        kinds: list[type[Fault]] = [*FAULTS.values(), Leave, Join, Replace]
        self._acts: dict[type[Fault], Act] = {
            kind: getattr(self, f"_{kind.name}") for kind in kinds if kind is not faults.Heal
        }

    async def run(
        self, steps: Sequence[Step], scale: float, whole: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Each step at its time, or when the one before is done. ``scale``: real milliseconds to one of the
        plan. ``whole``, if given, is awaited before each step at which nothing is broken any more and that is
        no part of the strike before, on what that hit: the times of that step and of later ones are moved by
        what it took. Who cancels this stops no step half way."""
        begun_ms, before_ms = self._clock(), 0
        for step in steps:
            goes_on = step.fault.target.startswith("=")
            if whole is not None and before_ms and not goes_on and await self._mended():
                await whole()
                self.full_again()
                begun_ms = self._clock() - before_ms * scale
            await asyncio.sleep(max(0.0, begun_ms + step.at_ms * scale - self._clock()) / 1000)
            await self._to_its_end(step)
            before_ms = step.at_ms

    async def _to_its_end(self, step: Step) -> None:
        """A step that is cancelled half way would leave what nobody knows of: it ends first."""
        acting = self._tasks.spawn(self.act(step), name=step.fault.name)
        try:
            await asyncio.shield(acting)
        except asyncio.CancelledError:
            await asyncio.wait([acting])
            raise

    async def _mended(self) -> bool:
        """Whether every fault has ended."""
        await asyncio.sleep(0)  # a start that was asked for begins
        for lock in self._starting.values():
            async with lock:
                pass
        await self._operator.wait()
        cut = self._ground.network is not None and self._ground.network.harmed
        unfit = any(disk.full or not disk.writable for disk in self._ground.disks.values())
        return not (self._state or self._tracers or self._ground.short or unfit or cut)

    async def act(self, step: Step) -> None:
        """Carry out one step now."""
        fault, node, self.outcome.step_ms = step.fault, None, step.at_ms
        if not isinstance(fault, faults.Heal):
            node = self.resolve(fault.target)
            if node is None:
                self.outcome.missed[fault.name] += 1
                return
        begun_ms = round(self._clock(), 1)
        try:
            if (reason := self._lacking(type(fault))) is not None:
                raise Refused(reason)
            struck = True
            if node is None:
                await self._network().heal()
            elif isinstance(fault, OwnFault) and type(fault) not in self._acts:
                struck = await self._ground.strike_own(node, fault)
            else:
                struck = await self._acts[type(fault)](node, fault)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's fault raises, the run goes on
            self.outcome.refuse(step.at_ms, fault, error)
            return
        if not struck:
            self.outcome.missed[fault.name] += 1
            return
        if step.bind and node is not None:
            self._bound[step.bind] = node
        self._struck(fault, node, begun_ms)

    def _struck(self, fault: Fault, node: Node | None, begun_ms: float) -> None:
        self.outcome.struck(fault)
        values = {key: value for key, value in fault.to_json().items() if key not in ("fault", "target")}
        values |= {GOES_ON: True} if fault.target.startswith("=") else {}
        values |= {"pairs": self._network().cut_last} if isinstance(fault, LINKS_CUT) else {}
        self._history.add(Happened(begun_ms, node.name if node else "", fault.name, values))

    async def revive(self) -> None:
        """Undo everything: heal links and disks, resume the paused, start what does not run."""
        await self._mend()
        await self._operator.wait()
        for node in self._cluster.layout.nodes:
            await self._resume(node, faults.Resume(node.name))
        await asyncio.gather(*map(self._start_again, self._cluster.layout.nodes))

    async def _start_again(self, node: Node) -> None:
        """As ``_start``; one that cannot be started is told, and is no reason to leave the others."""
        try:
            await self._start(node)
        except (MqError, OSError) as error:
            self.outcome.refuse(self.outcome.step_ms, faults.Restart(node.name), error)

    def full_again(self) -> None:
        """All replicas are members again: no fault of before explains what a server does from now on."""
        self._history.add(Happened(round(self._clock(), 1), "", FULL))

    def note_ended(self) -> None:
        """Note which servers have ended that nobody told to. Once: none of them is started again, and who
        ends later is asked for when the cluster is taken down."""
        for node in self._cluster.layout.nodes:
            if node.pid is None or self._cluster.is_running(node):
                continue
            if self._state.get(node.name) is None:
                self._unexplained(node, ENDED_ALONE)
            node.pid = None

    async def _mend(self) -> None:
        for name in list(self._tracers):
            await self._untrace(name)
        if self._ground.network is not None:
            await self._ground.network.heal()
        await self._mend_own()
        for name in list(self._ground.short):
            self._ground.limit(name, None)
        for name, disk in self._ground.disks.items():
            if self._state.get(name) != "off":
                disk.fill(False)

    async def _mend_own(self) -> None:
        """What faults of other packages have broken, the last first."""
        while self._ground.own:
            node, fault = self._ground.own.pop()
            if (wrong := await self._ground.mend_own(node, fault)) is not None:
                self.outcome.errors.append(wrong)
            if is_mended(fault):
                self._ended(node.name, fault.name)

    async def stop(self) -> None:
        """End what still works in the background, and let the servers hear each other: they stop in order."""
        await self._operator.stop()
        for name in list(self._tracers):
            await self._untrace(name)  # while who counts what they did is there
        await self._tasks.cancel()
        await self._mend()

    def resolve(self, target: str) -> Node | None:
        """The node a target means now, or None."""
        if target.startswith("="):
            return self._bound.get(target[1:])
        if target in ("broker", "namesrv"):
            return self._chance.choice([n for n in self._cluster.layout.nodes if n.role == target])
        if target == "slave":
            slaves = sorted(set(self._onlooker.slaves()) - self._state.keys())
            target = self._chance.choice(slaves) if slaves else ""
        elif target == "master":
            target = self._onlooker.master(self._state) or ""
        elif target == "leader":
            target = self._onlooker.leader(self._state) or ""
        return self._nodes.get(target)

    def _lacking(self, kind: type[Fault]) -> str | None:
        lacks = self._ground.lacks
        return refusal(kind) or next((lacks[n] for n in needs_of(kind) if n in lacks), None)

    def _network(self) -> Network:
        if self._ground.network is None:
            raise Refused("the cluster was laid out without a network of its own")
        return self._ground.network

    # Each says whether it hit something. Processes:

    async def _look(self, node: Node, fault: Fault) -> bool:
        return True

    async def _kill(self, node: Node, fault: Fault) -> bool:
        return self._end(node, signal.SIGKILL)

    async def _stop(self, node: Node, fault: Fault) -> bool:
        return self._end(node, signal.SIGTERM)

    def _end(self, node: Node, number: int) -> bool:
        if not self._cluster.send_signal(node, number):
            return False
        orderly = number == signal.SIGTERM and self._state.get(node.name) in (None, "stopping")
        self._state[node.name] = "stopping" if orderly else "ending"
        return True

    async def _pause(self, node: Node, fault: Fault) -> bool:
        if self._state.get(node.name) or not self._cluster.send_signal(node, signal.SIGSTOP):
            return False
        self._state[node.name] = "paused"
        return True

    async def _resume(self, node: Node, fault: Fault) -> bool:
        if self._state.get(node.name) != "paused":
            return False
        del self._state[node.name]
        return self._cluster.send_signal(node, signal.SIGCONT)

    async def _restart(self, node: Node, fault: Fault) -> bool:
        """As under any supervisor, the new process waits for the end of the old one, if that was told to."""
        if self._cluster.is_running(node) and self._state.get(node.name) not in ENDED:
            return False
        step_ms = self.outcome.step_ms

        async def start() -> None:
            try:
                await self._start(node)
            except (MqError, OSError) as error:
                self.outcome.refuse(step_ms, fault, error)

        self._tasks.spawn(start(), name=f"start-{node.name}")
        return True

    async def _start(self, node: Node) -> None:
        """Start a node that does not run, or that ends; one that goes on running is left alone. Two who ask
        start it once: the other would find a machine that is being switched on, and a port that is taken."""
        async with self._starting[node.name]:
            await self._start_alone(node)

    async def _start_alone(self, node: Node) -> None:
        if self._cluster.is_running(node) and self._state.get(node.name) not in ENDED:
            return
        await self._see_it_end(node)
        if node.pid is not None and self._state.get(node.name) is None:
            self._unexplained(node, ENDED_ALONE)
        await self._power_on(node)
        self._cluster.start(node)
        self._state.pop(node.name, None)
        self._note(node, LAUNCHED)

    async def _see_it_end(self, node: Node) -> None:
        """Wait until a process that was told to end has; it is killed if it takes long. Raises Refused."""
        begun_ms = self._clock()
        while self._cluster.is_running(node):
            waited_ms = self._clock() - begun_ms
            if waited_ms > KILLED_S * 1000:
                raise Refused(f"{node.name} did not end within {KILLED_S - GONE_S:.0f} s of SIGKILL")
            if waited_ms > GONE_S * 1000:
                self._hangs(node)
            await asyncio.sleep(POLL_S / 4)

    def _note(self, node: Node, name: str, **fields: Any) -> None:
        self._history.add(Happened(round(self._clock(), 1), node.name, name, fields))

    def _hangs(self, node: Node) -> None:
        """It was told to end, and had the time for it."""
        if self._state.get(node.name) == "stopping":
            self._state[node.name] = "ending"
            self._unexplained(node, f"did not end within {GONE_S:.0f} s of SIGTERM")
        self._cluster.send_signal(node, signal.SIGKILL)

    def _unexplained(self, node: Node, what: str) -> None:
        """Note what a server did that was not told to, unless a fault explains it."""
        error = unexplained(self._cluster, self._history.happened(), node, what)
        if error is not None:
            self.outcome.errors.append(error)

    async def _power_on(self, node: Node) -> None:
        if self._state.get(node.name) == "off":
            self._state[node.name] = "ending"
            await asyncio.to_thread(self._ground.disks[node.name].power_on)
            self._ground.new_boot(node.name)
            await self._network().darken(node.name, False)

    async def _power_fail(self, node: Node, fault: Fault) -> bool:
        disk = self._ground.disks.get(node.name)
        if disk is None:
            raise Refused(self._ground.lacks.get("loop disk", f"{node.name} has no disk of its own"))
        if self._state.get(node.name) == "off":
            return False
        await self._network().darken(node.name, True)
        disk.power_off()
        self._end(node, signal.SIGKILL)
        self._state[node.name] = "off"
        return True

    # Links

    async def _isolate(self, node: Node, fault: faults.Isolate) -> bool:
        others = [name for name in self._network().machines if name != node.name]
        return await self._cut_all([(node.name, other) for other in others], fault.direction)

    async def _cut(self, node: Node, fault: faults.Cut) -> bool:
        if fault.other in ("brokers", "namesrvs"):
            role = fault.other.removesuffix("s")
            others = [other for other in self._cluster.layout.nodes if other.role == role]
        else:
            others = [other for other in (self.resolve(fault.other),) if other is not None]
        pairs = [(node.name, other.name) for other in others if other is not node]
        return await self._cut_all(pairs, fault.direction)

    async def _partition(self, node: Node, fault: faults.Partition) -> bool:
        kinds = {one.name: one.role for one in self._cluster.layout.nodes} | {CLIENTS: "client"}
        pairs = links_to_cut(fault.shape, node.name, kinds, self._chance)
        return await self._cut_all(pairs, fault.direction)

    async def _cut_all(self, pairs: Sequence[tuple[str, str]], direction: str) -> bool:
        await self._network().cut_all(pairs, direction)
        return bool(pairs)

    async def _slow_network(self, node: Node, fault: faults.SlowNetwork) -> bool:
        await self._network().spoil(node.name, delay_ms=fault.extra_ms)
        return True

    async def _lose_packets(self, node: Node, fault: faults.LosePackets) -> bool:
        await self._network().spoil(node.name, loss=fault.share)
        return True

    async def _double_packets(self, node: Node, fault: faults.DoublePackets) -> bool:
        await self._network().spoil(node.name, duplicate=fault.share)
        return True

    async def _reorder_packets(self, node: Node, fault: faults.ReorderPackets) -> bool:
        await self._network().spoil(node.name, jitter_ms=fault.by_ms)
        return True

    async def _narrow_links(self, node: Node, fault: faults.NarrowLinks) -> bool:
        await self._network().spoil(node.name, bytes_per_s=fault.kib_per_s * 1024)
        return True

    async def _reset_links(self, node: Node, fault: Fault) -> bool:
        return await self._network().reset(node.name) > 0

    # Disks and clocks

    async def _slow_disk(self, node: Node, fault: faults.SlowDisk) -> bool:
        what = f"delay_enter={int(fault.extra_ms * 1000)}" if fault.extra_ms > 0 else ""
        return await self._trace(node, fault, what)

    async def _lying_sync(self, node: Node, fault: faults.LyingSync) -> bool:
        return await self._trace(node, fault, "retval=0" if fault.lying else "")

    async def _sync_error(self, node: Node, fault: faults.SyncError) -> bool:
        return await self._trace(node, fault, "error=EIO", fault.count)

    async def _write_error(self, node: Node, fault: faults.WriteError) -> bool:
        return await self._trace(node, fault, "error=EIO", fault.count, WRITES)

    async def _read_error(self, node: Node, fault: faults.ReadError) -> bool:
        return await self._trace(node, fault, "error=EIO", fault.count, READS)

    async def _trace(self, node: Node, fault: Fault, what: str, count: int = 0, calls: str = SYNCS) -> bool:
        """Have strace change these calls of a server, ``count`` of them, or all; nothing: no more. One that
        is there already ends, with its fault."""
        before = await self._untrace(node.name)
        if not what:
            return before is not None and before.injected > 0
        if node.pid is None or not self._cluster.is_running(node):
            return False
        tracer = self._tracers[node.name] = await Tracer.attach(node.pid, what, calls, fault.name)
        self._note_tracers()

        async def watch() -> None:
            await tracer.watch(count)
            await tracer.end()
            self._traced(node, tracer)

        tracer.watching = self._tasks.spawn(watch(), name=f"trace-{node.name}")
        return True

    async def _untrace(self, name: str) -> Tracer | None:
        """End a server's tracer, if it has one; what it changed is counted then."""
        tracer = self._tracers.pop(name, None)
        if tracer is not None:
            await tracer.end()
            self._note_tracers()
        return tracer

    def _traced(self, node: Node, tracer: Tracer) -> None:
        """A tracer has ended: its fault did, and it never struck when no call was changed."""
        if self._tracers.get(node.name) is tracer:
            del self._tracers[node.name]
            self._note_tracers()
        self._ended(node.name, tracer.fault)
        self.outcome.traced(tracer.fault, tracer.injected)

    def _ended(self, name: str, fault: str) -> None:
        """Note that a fault is over which no step ends."""
        self._note(self._cluster.layout.node(name), ENDED_FAULT, fault=fault)

    def _note_tracers(self) -> None:
        self._ground.tracers = {name: tracer.noted for name, tracer in self._tracers.items()}
        self._ground.note()

    async def _disk_full(self, node: Node, fault: faults.DiskFull) -> bool:
        disk = self._ground.disks.get(node.name)
        if disk is None:
            raise Refused(self._ground.lacks.get("loop disk", f"{node.name} has no disk of its own"))
        if disk.full == fault.full:
            return False
        await asyncio.to_thread(disk.fill, fault.full)
        return True

    async def _no_descriptors(self, node: Node, fault: faults.NoDescriptors) -> bool:
        if not fault.lacking:
            return self._ground.limit(node.name, None)
        if node.pid is None or not self._cluster.is_running(node):
            return False
        return self._ground.limit(node.name, node.pid)

    async def _flip_bit(self, node: Node, fault: faults.FlipBit) -> bool:
        kept = self._ground.disk_path(node)
        return flip_bit(kept / fault.prefix.strip("/").partition("/")[2], self._chance) is not None

    async def _clock_jump(self, node: Node, fault: faults.ClockJump) -> bool:
        self._ground.jump(node.name, fault.by_ms)
        return True

    async def _wipe(self, node: Node, fault: Fault) -> bool:
        if self._cluster.is_running(node):
            return False
        await self._power_on(node)
        for path in self._ground.disk_path(node).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return True

    async def _snapshot(self, node: Node, fault: Fault) -> bool:
        """A file after the other, as a backup of a running store is."""
        kept = self._kept(node)
        shutil.rmtree(kept, ignore_errors=True)
        copy = ("cp", "-a", "--sparse=always", f"{self._ground.disk_path(node)}/.", str(kept))
        kept.mkdir(parents=True)
        await asyncio.to_thread(subprocess.run, copy, check=False, stderr=subprocess.DEVNULL)
        return True

    async def _put_back(self, node: Node, fault: Fault) -> bool:
        kept = self._kept(node)
        if not kept.is_dir() or not await self._wipe(node, fault):
            return False
        copy = ("cp", "-a", "--sparse=always", f"{kept}/.", str(self._ground.disk_path(node)))
        await asyncio.to_thread(subprocess.run, copy, check=True)
        return True

    def _kept(self, node: Node) -> Path:
        path = self._ground.disk_path(node)
        return path.parent / f"{path.name}.snapshot"

    # An operator

    async def _reconfigure(self, node: Node, fault: faults.Reconfigure) -> bool:
        node.own.update(fault.values)
        return True

    async def _hand_over(self, node: Node, fault: Fault) -> bool:
        return self._operator.hand_over(self._operated(node, fault))

    async def _rolling_change(self, node: Node, fault: faults.RollingChange) -> bool:
        async def restart(one: Node) -> None:
            if self._end(one, signal.SIGTERM):
                self._note(one, "stop", by=fault.name)
                await self._start(one)

        return self._operator.change(
            fault.values, self._onlooker.master, restart, self._operated(node, fault)
        )

    async def _upgrade(self, node: Node, fault: faults.Upgrade) -> bool:
        previous = self._ground.previous
        if previous is None:
            raise Refused(self._ground.lacks.get("previous release", "the plan was laid out without one"))
        code = str(previous.path) if fault.back else ""

        async def replace(one: Node) -> None:
            if one.code != code and self._end(one, signal.SIGTERM):
                release = previous.name if fault.back else this()
                self._note(one, "stop", next_release=release, by=fault.name)
                one.code = code
                await self._start(one)

        return self._operator.upgrade(replace, self._operated(node, fault))

    async def _leave(self, node: Node, fault: Fault) -> bool:
        async def stop() -> None:
            await self._gone(node, signal.SIGTERM, fault)

        async def empty() -> None:
            await self._emptied(node, fault)

        ended, alone = self._operated(node, fault), self._starting[node.name]
        return node.role == "broker" and self._operator.leave(node.address, stop, empty, alone, ended)

    async def _join(self, node: Node, fault: Fault) -> bool:
        await self._operator.wait()
        return not self._cluster.is_running(node) and await self._restart(node, fault)

    async def _replace(self, node: Node, fault: Fault) -> bool:
        async def begin_anew() -> None:
            async with self._starting[node.name]:
                await self._gone(node, signal.SIGKILL, fault)
                await self._emptied(node, fault)
                await self._start_alone(node)

        ended = self._operated(node, fault)
        return node.role == "broker" and self._operator.replace(node.address, begin_anew, ended)

    async def _gone(self, node: Node, number: int, fault: Fault) -> None:
        """Have a process end, as a part of a fault, and see it end. Raises Refused."""
        if self._end(node, number):
            self._note(node, "stop" if number == signal.SIGTERM else "kill", by=fault.name)
        await self._see_it_end(node)

    async def _emptied(self, node: Node, fault: Fault) -> None:
        if not self._cluster.is_running(node):
            self.outcome.emptied_now.add(node.name)
        if not await self._wipe(node, fault):
            raise Refused(f"{node.name} was started meanwhile: its disk is as it was")

    def _operated(self, node: Node, fault: Fault) -> Ended:
        """What an operator began counts as done until the cluster refuses it, or it comes to no end."""
        step_ms = self.outcome.step_ms

        def ended(why: Exception | None) -> None:
            emptied = node.name in self.outcome.emptied_now
            self.outcome.emptied_now.clear()
            if why is None:
                self._ended(node.name, fault.name)
                return
            self._note(node, ENDED_FAULT, fault=fault.name, refused=True, emptied=emptied)
            self.outcome.done[fault.name] -= 1
            self.outcome.refuse(step_ms, fault, why)

        return ended

    def _operator_refused(self, why: str) -> None:
        self._history.add(Happened(round(self._clock(), 1), "", "operator_refused", {"why": why}))
