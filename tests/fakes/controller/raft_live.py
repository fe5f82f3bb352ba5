"""Members of a Raft group on this machine's loopback and disk."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from controller.links.transport import Security
from controller.raft.calls import StateMachine
from controller.raft.raft import NotLeader, Raft
from controller.raft.timing import RaftConfig
from model.errors import Unknown
from runtime.os_env import OsEnv
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.disk.full import FullDisk
from tests.ports import free_ports

CONFIG = RaftConfig(append_ms=50, election_min_ms=400, election_max_ms=800, compact_entries=50)
SECRET = b"a secret for tests"


class Member:
    def __init__(self, group: "Group", name: str, directory: str) -> None:
        self.group, self.name, self.directory = group, name, directory
        self.applied: list[bytes] = []
        env = OsEnv(seed=int(name[1:]))
        self.disk = FullDisk(env.disk)
        env.disk = self.disk
        self.raft = Raft(
            env,
            name,
            group.addresses,
            directory,
            StateMachine(self.apply, lambda: b"\n".join(self.applied), self.restore),
            config=CONFIG,
            security=Security(lambda: (SECRET,)),
        )

    def apply(self, command: bytes) -> bytes:
        if command == b"poison":
            raise ValueError("poison")
        self.applied.append(command)
        return b"%d" % len(self.applied)

    def restore(self, data: bytes) -> None:
        self.applied[:] = data.split(b"\n") if data else []


class Group:
    def __init__(self, root: Path, count: int = 3) -> None:
        self.root = root
        self.addresses = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(count))}
        self.members: dict[str, Member] = {}

    async def start(self, *names: str) -> None:
        for name in names or self.addresses:
            member = Member(self, name, str(self.root / name))
            await member.raft.start()
            self.members[name] = member

    def kill(self, name: str) -> Member:
        member = self.members.pop(name)
        member.raft.abort()
        return member

    async def leader(self) -> Member:
        async def confirmed() -> Member | None:
            for member in self.members.values():
                if member.raft.is_leader:
                    try:
                        await member.raft.barrier(2)
                    except (NotLeader, Unknown):
                        return None
                    return member
            return None

        for _ in range(2000):
            if found := await confirmed():
                return found
            await asyncio.sleep(0.01)
        raise TimeoutError("no leader")

    async def follower(self) -> Member:
        leader = await self.leader()
        return next(m for m in self.members.values() if m is not leader)

    async def propose(self, *commands: bytes) -> None:
        leader = await self.leader()
        await asyncio.gather(*(leader.raft.propose(command, 10) for command in commands))

    async def all_hold(self, *commands: bytes) -> None:
        await wait_for(lambda: all(m.applied == list(commands) for m in self.members.values()), 30)

    async def stop(self) -> None:
        for member in list(self.members.values()):
            await member.raft.stop()


def run(root: Path, main: Callable[[Group], Awaitable[None]], count: int = 3) -> None:
    async def inside() -> None:
        group = Group(root, count)
        try:
            await main(group)
        finally:
            await group.stop()

    asyncio.run(inside())


def numbers(first: int, last: int) -> list[bytes]:
    return [b"c%d" % number for number in range(first, last + 1)]
