"""The promise of a Controller whose process ran out of descriptors: it goes on, and recovers by itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from asyncio import constants
from collections.abc import Callable
from pathlib import Path

import pytest

import controller.raft.disk.snapshots
from model.codes import Request
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.descriptors import no_descriptors
from tests.fakes.controller.live import World
from tests.fakes.controller.raft_live import Group, numbers
from tests.fakes.controller.raft_live import run as run_group
from tests.fakes.controller.raft_sim import wait_for


def loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    """asyncio's own, and the one servers use where it is installed."""
    try:
        import uvloop
    except ImportError:
        return [asyncio.new_event_loop]
    return [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("make_loop", loops(), ids=lambda make: str(make.__module__).partition(".")[0])
def test_both_ports_of_a_controller_listen_on_after_no_connection_could_be_accepted(
    tmp_path: Path, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main(world: World) -> None:
        await world.start()
        await wait_for(lambda: all(c.health() is None for c in world.running.values()))
        client = RemotingClient(OsEnv(), "before")
        ask = Command(Request.CONTROLLER_GET_METADATA_INFO)
        ports = [*world.addresses.values(), *world.running["n0"]._config.raft_addresses().values()]
        for address in world.addresses.values():
            assert (await client.call(address, ask, 10)).code == 0
        leader = world.leader()
        assert leader is not None
        term = leader.raft.term
        knocking = [(socket.socket(), address.rpartition(":")) for address in ports for _ in range(3)]
        with no_descriptors():
            for one, (host, _, port) in knocking:
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    one.connect((host, int(port)))
            for _ in range(10):
                # Who is connected goes on being served.
                for address in world.addresses.values():
                    assert (await client.call(address, ask, 10)).code == 0
                await leader.raft.settle(10)
                await asyncio.sleep(0.02)
        for one, _ in knocking:
            one.close()
        # asyncio tries to accept again after this time, also at a server that was closed meanwhile.
        await asyncio.sleep(constants.ACCEPT_RETRY_DELAY + 0.1)
        assert leader.raft.term == term
        await client.close()
        again = RemotingClient(OsEnv(), "after")
        for address in world.addresses.values():
            assert (await again.call(address, ask, 20)).code == 0
        await again.close()
        for name in list(world.addresses):
            await world.kill(name)
            await world.start(name)
            await wait_for(lambda: all(len(c.raft.peers) == 2 for c in world.running.values()), 30)

    async def inside() -> None:
        world = World(tmp_path, 3)
        try:
            await main(world)
        finally:
            for controller in list(world.running.values()):
                await controller.stop()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(inside())


def test_a_group_without_descriptors_decides_on_and_compacts_when_it_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller.raft.disk.snapshots, "COMPACT_AGAIN_S", 0.1)

    async def main(group: Group) -> None:
        await group.start()
        await group.propose(*numbers(1, 20))
        with no_descriptors():
            for turn in range(4):
                await group.propose(*numbers(21 + turn * 50, 70 + turn * 50))
            await group.all_hold(*numbers(1, 220))
            for member in group.members.values():
                status = member.raft.status()
                assert os.strerror(errno.EMFILE) in str(status["compactionError"])
                assert status["journalEntries"] > 200
                assert member.raft.health() is None
        kept = [member.raft.status for member in group.members.values()]
        await wait_for(lambda: all(status()["journalEntries"] <= 51 for status in kept))
        assert [status()["compactionError"] for status in kept] == [None] * 3
        for name in list(group.members):
            group.kill(name)
        await group.start()
        await group.propose(b"after")
        await group.all_hold(*numbers(1, 220), b"after")

    run_group(tmp_path, main)
