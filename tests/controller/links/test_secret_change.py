"""The promise of ``raftSecretFile``: Controllers that run get another secret without an election, and
the former one is worth nothing then. Under virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest

from controller.links.transport import Transport
from controller.service import Controller
from runtime.env import read_file, write_file
from runtime.secret import Secrets
from tests.fakes.controller.raft_sim import SECRET, wait_for
from tests.fakes.controller.sim import NAMES, World

pytestmark = pytest.mark.sim
OTHER = b"another secret of theirs"
FILE = "/k/secret"


def several(*secrets: bytes) -> bytes:
    return json.dumps({"secrets": [secret.decode() for secret in secrets]}).encode()


def transport(world: World, name: str) -> Transport:
    return world.controllers[name][1].raft._transport


def proven_by(world: World) -> set[bytes]:
    return {link.secret for name in NAMES for link in transport(world, name)._links.values()}


def linked(world: World) -> bool:
    return all(len(transport(world, name).peers) == 2 for name in NAMES)


def put(world: World, name: str, content: bytes) -> None:
    """White space says that it is another file: the disks of this world know no time."""
    disk = world.controllers[name][1]._env.disk
    write_file(disk, FILE, content + b"\n" * (len(read_file(disk, FILE)) + 1))


def run(world: World, main: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        for name in NAMES:
            await world.start(name)
        for broker in world.brokers:
            broker.start()
        await wait_for(lambda: world.settled() and linked(world), 30)
        await main()

    try:
        world.loop.run_until_complete(whole())
    finally:
        world.loop.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_secret_is_exchanged_in_three_steps_and_nobody_is_elected(seed: int) -> None:
    world = World(seed)

    async def main() -> None:
        before = [(c.raft.is_leader, c.raft.term) for _, c in world.controllers.values()]
        masters = dict(world.masters)
        for step in (several(SECRET, OTHER), several(OTHER, SECRET), OTHER):
            for name in sorted(NAMES, reverse=seed % 2 == 1):
                put(world, name, step)
                await asyncio.sleep(2.5)
                assert linked(world), f"{name} does not get back with {step!r}"
        assert proven_by(world) == {OTHER}
        assert [(c.raft.is_leader, c.raft.term) for _, c in world.controllers.values()] == before
        assert world.masters == masters
        world.kill("k0")
        await world.start("k0")  # which gives it the former secret
        await asyncio.sleep(3.0)
        assert transport(world, "k0").peers == []
        put(world, "k0", OTHER)
        await wait_for(lambda: linked(world), 5)

    run(world, main)


def test_links_that_a_former_secret_proved_end_one_after_the_other() -> None:
    world = World(1)

    async def main() -> None:
        for name in NAMES:
            put(world, name, several(OTHER, SECRET))
        await asyncio.sleep(2.0)
        assert proven_by(world) == {SECRET}, "what is open goes on"
        leader = world.leader()
        assert leader is not None
        least = 2

        async def look() -> None:
            nonlocal least
            while True:
                least = min(least, len(leader.raft._transport.peers))
                await asyncio.sleep(0.01)

        looking = asyncio.get_running_loop().create_task(look())
        put(world, leader.status()["id"], OTHER)
        await wait_for(lambda: linked(world) and proven_by(world) - {SECRET} and not former(leader), 5)
        looking.cancel()
        assert least == 1

    def former(leader: Controller) -> bool:
        return any(link.secret == SECRET for link in leader.raft._transport._links.values())

    run(world, main)


@pytest.mark.parametrize(
    "content", [b"", b"short", b'{"secrets": ["abc', several(OTHER, b"short"), several()]
)
def test_a_file_that_cannot_be_used_leaves_the_secrets_in_force(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(1)

    async def main() -> None:
        disk = world.controllers["k0"][1]._env.disk
        secrets = Secrets(disk, FILE, "raftSecretFile")
        put(world, "k0", content)
        with caplog.at_level(logging.ERROR):
            assert secrets.current() == secrets.current() == (SECRET,)
        assert caplog.text.count("the secrets in force stay: raftSecretFile=/k/secret") >= 1
        assert not any(b.decode() in caplog.text for b in (SECRET, OTHER))
        put(world, "k0", several(OTHER, SECRET))
        assert secrets.current() == (OTHER, SECRET)

    run(world, main)
