"""A Raft group under virtual time: kills, power failures, cuts and pauses from one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from chaos.sim.disk import Machine
from chaos.sim.env import SimEnv
from chaos.sim.loop import Life, SimLoop
from chaos.sim.net import Fabric
from controller.links.transport import Security
from controller.raft.calls import StateMachine
from controller.raft.raft import Raft
from controller.raft.timing import RaftConfig
from model.errors import MqError
from tests import waiting
from tests.fakes.disk.refusing import Fault, RefusingDisk

T = TypeVar("T")
SECRET = b"a secret of 32 bytes, or nearly."


class Member:
    """One Controller's Raft over its lives; the state is the list of applied commands."""

    def __init__(self, group: Group, name: str, host: str | None = None) -> None:
        """``host``: where it is, if that is not what the group is configured with."""
        self.group = group
        self.name = name
        self.host = host or name
        self.addresses = {**group.addresses, name: f"{self.host}:9000"}
        self.machine = Machine(self.host, group.seed, lambda: int(group.loop.time() * 1000))
        self.life: Life | None = None
        self.raft: Raft | None = None
        self.applied: list[bytes] = []
        self.replayed = 0  # calls of ``apply`` in this life
        self.disk: RefusingDisk | None = None  # of this life
        self.fault: Fault | None = None  # it begins its lives with

    @property
    def up(self) -> bool:
        return self.raft is not None and self.raft.health() is None

    async def start(self) -> None:
        group = self.group
        applied = self.applied = []
        self.replayed = 0
        self.life = group.loop.new_life(self.name)
        env = SimEnv(group.loop, self.life, group.fabric, self.machine, self.host, seed=group.seed)
        env.disk = self.disk = RefusingDisk(env.disk, self.machine)
        self.disk.fault = self.fault

        def apply(command: bytes) -> bytes:
            applied.append(command)
            self.replayed += 1
            return b"%d" % len(applied)

        def restore(data: bytes) -> None:
            applied[:] = data.split(b"\n") if data else []

        async def begin() -> Raft:
            raft = Raft(
                env,
                self.name,
                self.addresses,
                "/raft",
                StateMachine(apply, lambda: b"\n".join(applied), restore),
                config=RaftConfig(
                    append_ms=50,
                    election_min_ms=250,
                    election_max_ms=500,
                    compact_entries=group.compact_entries,
                ),
                security=Security(lambda: (SECRET,)),
            )
            await raft.start()
            return raft

        self.raft = await group.loop.spawn(self.life, begin(), name="start")
        self.raft.on_change.append(self.note_leader)

    def note_leader(self) -> None:
        if self.raft is not None and self.raft.is_leader:
            self.group.leaders.setdefault(self.raft.term, set()).add(self.name)

    def kill(self, *, power: bool = False) -> None:
        assert self.life is not None
        self.group.loop.kill(self.life)
        self.group.fabric.process_died(self.life)
        self.machine.process_died(self.life)
        if power:
            self.machine.lose_power()
        self.life = self.raft = None

    def replace_disk(self) -> None:
        """A new, empty machine under the same name."""
        group = self.group
        self.machine = Machine(f"{self.name}-new", group.seed, lambda: int(group.loop.time() * 1000))


class Group:
    """``count`` members, a network, and one client that proposes numbered commands."""

    def __init__(self, seed: int, count: int = 3, compact_entries: int = 100) -> None:
        self.seed = seed
        self.random = random.Random(f"group:{seed}")
        self.loop = SimLoop(seed)
        self.fabric = Fabric(self.loop, seed)
        self.compact_entries = compact_entries
        self.addresses = {f"n{i}": f"n{i}:9000" for i in range(count)}
        self.members = {name: Member(self, name) for name in self.addresses}
        self.leaders: dict[int, set[str]] = {}
        self.acked: list[bytes] = []
        self.sent = 0
        self.stale_reads = 0

    async def inside(
        self, member: Member, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float = 5.0
    ) -> T | None:
        """What ``work`` returns, run in the member's process; None when it failed or the process died."""
        assert member.life is not None
        task = self.loop.spawn(member.life, _quietly(work), name="client")
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        return task.result() if done else None

    def play(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start every member, run ``main``, end."""

        async def inside() -> None:
            for member in self.members.values():
                await member.start()
            await main()

        try:
            self.loop.run_until_complete(inside())
        finally:
            self.loop.close()

    def leader(self) -> Member | None:
        """One that believes it leads; of several, any."""
        leading = [m for m in self.members.values() if m.raft is not None and m.raft.is_leader]
        return self.random.choice(leading) if leading else None

    async def wait_leader(self, timeout_s: float = 20.0) -> Member:
        return await wait_for(self.leader, timeout_s)

    async def propose(self) -> bool:
        leader = self.leader()
        if leader is None or leader.raft is None:
            return False
        self.sent += 1
        command = b"c%d" % self.sent
        answer = await self.inside(leader, partial(leader.raft.propose, command, 1.0))
        if answer is not None:
            self.acked.append(command)
        return answer is not None

    async def read(self) -> None:
        """What was acknowledged before a barrier must be seen after it."""
        leader = self.leader()
        if leader is None or leader.raft is None:
            return
        before, applied = list(self.acked), leader.applied
        if await self.inside(leader, partial(_true, leader.raft)):
            self.stale_reads += not set(before) <= set(applied)

    async def write_for_ever(self) -> None:
        while True:
            await self.propose()
            await asyncio.sleep(self.random.uniform(0, 0.05))

    async def read_for_ever(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(self.random.uniform(0, 0.05))

    async def settle(self) -> None:
        """Heal everything, start who is down, wait until all hold the same."""
        self.fabric.heal_all()
        for member in self.members.values():
            if member.raft is None:
                await member.start()
            elif member.life is not None and member.life.paused:
                self.loop.resume(member.life)
        for _ in range(600):
            if await self.propose():
                break
            await asyncio.sleep(0.1)
        await wait_for(lambda: len({tuple(m.applied) for m in self.members.values()}) == 1, 60)

    def verdict(self) -> dict[str, object]:
        """Empty when all promises were kept."""
        wrong: dict[str, object] = {}
        held = [m.applied for m in self.members.values()]
        for member in self.members.values():
            lost = [c for c in self.acked if c not in set(member.applied)]
            if lost:
                wrong[f"lost on {member.name}"] = lost
            if len(set(member.applied)) != len(member.applied):
                wrong[f"applied twice on {member.name}"] = len(member.applied) - len(set(member.applied))
        if any(other != held[0] for other in held):
            wrong["different"] = [len(applied) for applied in held]
        two = {term: names for term, names in self.leaders.items() if len(names) > 1}
        if two:
            wrong["two leaders in a term"] = two
        if self.stale_reads:
            wrong["stale reads"] = self.stale_reads
        return wrong


async def wait_for(condition: Callable[[], T | None], timeout_s: float = 20.0) -> T:
    """The first true value of ``condition``. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        value = await waiting.brought_about(condition, 0.01)
    assert value is not None, "it is true"
    return value


async def _true(raft: Raft) -> bool:
    await raft.barrier(1.0)
    return True


async def _quietly(work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    try:
        return await work()
    except MqError:
        return None
