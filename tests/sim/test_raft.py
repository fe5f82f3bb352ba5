"""The promise of the simulated world for the real Raft: kills lose nothing, and a seed is one trace."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from chaos.sim.disk import Machine
from chaos.sim.env import SimEnv
from chaos.sim.loop import Life, SimLoop
from chaos.sim.net import Fabric
from controller.raft.calls import StateMachine
from controller.raft.raft import Raft
from model.errors import MqError

IDS = ("n0", "n1", "n2")
ADDRESSES = {node: f"127.0.1.{number}:9000" for number, node in enumerate(IDS, 1)}


@dataclass
class Members:
    seed: int
    acked: list[bytes] = field(default_factory=list)
    leaders: dict[int, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loop = SimLoop(self.seed)
        self.fabric = Fabric(self.loop, self.seed)
        self.machines = {node: Machine(node, self.seed, lambda: 0) for node in IDS}
        self.lives: dict[str, Life] = {}
        self.rafts: dict[str, Raft] = {}
        self.applied: dict[str, list[bytes]] = {}

    def start(self, node: str) -> None:
        self.lives[node] = self.loop.new_life(node)
        self.loop.spawn(self.lives[node], self._boot(node), name="boot")

    async def _boot(self, node: str) -> None:
        applied = self.applied[node] = []

        def apply(command: bytes) -> bytes:
            applied.append(command)
            return b"done"

        def restore(data: bytes) -> None:
            applied[:] = data.split(b"\n") if data else []

        env = SimEnv(
            self.loop,
            self.lives[node],
            self.fabric,
            self.machines[node],
            ADDRESSES[node].partition(":")[0],
            seed=self.seed,
        )
        machine = StateMachine(apply, lambda: b"\n".join(applied), restore)
        raft = Raft(env, node, ADDRESSES, "/raft", machine)
        self.rafts[node] = raft
        await raft.start()

    def kill(self, node: str, *, power: bool) -> None:
        self.loop.kill(self.lives[node])
        if power:
            self.fabric.power_off(ADDRESSES[node].partition(":")[0])
            self.machines[node].lose_power()
        else:
            self.fabric.process_died(self.lives[node])
            self.machines[node].process_died(self.lives[node])

    def restart(self, node: str) -> None:
        self.fabric.power_on(ADDRESSES[node].partition(":")[0])
        self.start(node)

    async def propose(self, raft: Raft, command: bytes) -> None:
        try:
            await raft.propose(command)
        except MqError:
            return
        self.acked.append(command)

    async def client(self) -> None:
        for number in range(10_000):
            await asyncio.sleep(0.03)
            for node in IDS:
                raft = self.rafts.get(node)
                if raft is not None and self.lives[node].alive and raft.is_leader:
                    self.leaders.setdefault(raft.term, set()).add(node)
                    work = self.propose(raft, b"%d from %s" % (number, node.encode()))
                    self.loop.spawn(self.lives[node], work, name="propose")

    async def story(self, *, power: bool) -> None:
        chance = random.Random(self.seed)
        for node in IDS:
            self.start(node)
        client = self.loop.create_task(self.client())
        for _ in range(3):
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            victims = chance.sample(IDS, chance.choice((1, 1, 2, 3)))
            for node in victims:
                self.kill(node, power=power)
            await asyncio.sleep(chance.uniform(0.1, 1.0))
            for node in victims:
                self.restart(node)
        await asyncio.sleep(1.5)
        client.cancel()
        await asyncio.sleep(1.5)


def run(seed: int, *, power: bool, look: Callable[[Members], object]) -> None:
    members = Members(seed)
    try:
        members.loop.run_until_complete(members.story(power=power))
        assert members.loop.errors == []
        look(members)
    finally:
        members.loop.close()


@pytest.mark.sim
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("seed", range(4))
def test_no_acknowledged_command_is_lost_and_no_term_has_two_leaders(seed: int, power: bool) -> None:
    def look(members: Members) -> None:
        logs = list(members.applied.values())
        assert logs[0] == logs[1] == logs[2]
        assert len(members.acked) > 20
        assert set(members.acked) <= set(logs[0])
        assert all(len(nodes) == 1 for nodes in members.leaders.values())

    run(seed, power=power, look=look)


@pytest.mark.sim
def test_the_raft_of_one_seed_leaves_one_trace() -> None:
    traces: list[int] = []
    for _ in range(2):
        run(11, power=True, look=lambda members: traces.append(members.loop.trace))
    assert traces[0] == traces[1]
