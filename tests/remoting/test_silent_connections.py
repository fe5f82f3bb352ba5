"""The promise of remoting.transport.calls: a dialled connection that brings nothing while a call waits is
given up, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chaos.sim.disk import Machine
from chaos.sim.env import SimEnv
from chaos.sim.loop import SimLoop
from chaos.sim.net import Fabric
from model.errors import Unknown
from remoting.codec import Command
from remoting.service import Connection, RemotingClient, RemotingServer

pytestmark = pytest.mark.sim

ADDRESS = "s:10911"
PING, HELD, ASK_BACK = 1, 2, 3


class World:
    """A client on host ``c`` and a server on host ``s``, which does not answer ``HELD``."""

    def __init__(self) -> None:
        self.loop = SimLoop(7)
        self.fabric = Fabric(self.loop, 7)
        self.came: list[tuple[str, int]] = []
        """(the client's end, code) of each request, as they arrived."""
        self.called_back: list[str] = []

    def env(self, host: str) -> SimEnv:
        machine = Machine(host, 7, lambda: 0)
        return SimEnv(self.loop, self.loop.new_life(host), self.fabric, machine, host, seed=7)

    async def answer(self, connection: Connection, request: Command) -> Command | None:
        self.came.append((connection.remote, request.code))
        if request.code == ASK_BACK:
            with pytest.raises(Unknown):
                await connection.call(Command(HELD), 1.0)
            self.called_back.append(connection.remote)
        return None if request.code == HELD else request.reply(0)

    def play(self, work: Callable[[World, RemotingClient], Awaitable[None]]) -> None:
        async def main() -> None:
            server = RemotingServer(self.env("s"), "server", self.answer)
            await server.start("s", 10911)
            client = RemotingClient(self.env("c"), "client", handler=self.say_nothing)
            await client.call(ADDRESS, Command(PING))
            await work(self, client)
            await client.close()
            await server.stop()

        try:
            self.loop.run_until_complete(main())
        finally:
            self.loop.close()

    async def say_nothing(self, _connection: Connection, _request: Command) -> None:
        return None

    def ends(self) -> int:
        return len({end for end, _ in self.came})


def test_after_a_cut_the_next_call_goes_over_a_new_connection_at_once() -> None:
    """The answers wait in the server's kernel for seconds after the links are whole again."""

    async def work(world: World, client: RemotingClient) -> None:
        world.fabric.cut("s", "c")
        late = [asyncio.ensure_future(client.call(ADDRESS, Command(PING), wait_s)) for wait_s in (2.0, 9.0)]
        await asyncio.sleep(1.9)
        world.fabric.heal("s", "c", late_s=12.0)
        with pytest.raises(Unknown, match="within 2 s"):
            await late[0]
        # What else waits on it is not known either, and says so now.
        with pytest.raises(Unknown, match="ended before the answer"):
            await late[1]
        began = world.loop.time()
        await client.call(ADDRESS, Command(PING), 3.0)
        assert world.loop.time() - began < 1.0
        assert world.ends() == 2

    World().play(work)


def test_a_call_that_timed_out_behind_a_cut_is_not_carried_out_later() -> None:
    async def work(world: World, client: RemotingClient) -> None:
        world.came.clear()
        world.fabric.cut("c", "s")
        with pytest.raises(Unknown):
            await client.call(ADDRESS, Command(HELD), 2.0)
        world.fabric.heal_all()
        await asyncio.sleep(30)
        assert world.came == []

    World().play(work)


def test_a_connection_that_brought_anything_meanwhile_is_kept() -> None:
    """One request is held, as a pull that waits for messages; the others are answered."""

    async def work(world: World, client: RemotingClient) -> None:
        held = asyncio.ensure_future(client.call(ADDRESS, Command(HELD), 2.0))
        await asyncio.sleep(1.0)
        await client.call(ADDRESS, Command(PING))
        with pytest.raises(Unknown):
            await held
        await client.call(ADDRESS, Command(PING))
        assert world.ends() == 1

    World().play(work)


def test_a_call_with_little_time_left_says_nothing_of_its_connection() -> None:
    async def work(world: World, client: RemotingClient) -> None:
        with pytest.raises(Unknown):
            await client.call(ADDRESS, Command(HELD), 0.4)
        await client.call(ADDRESS, Command(PING))
        assert world.ends() == 1

    World().play(work)


def test_a_server_keeps_the_connections_of_its_clients() -> None:
    """Controllers ask brokers on the connections they beat on: the end of one would be the broker's end."""

    async def work(world: World, client: RemotingClient) -> None:
        asked = asyncio.ensure_future(client.call(ADDRESS, Command(ASK_BACK), 3.0))
        await asked
        await client.call(ADDRESS, Command(PING))
        assert len(world.called_back) == 1
        assert world.ends() == 1

    World().play(work)
