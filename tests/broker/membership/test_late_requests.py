"""The promise of broker.membership.controllers: what timed out is not carried out once the link is back."""

from __future__ import annotations

import asyncio

import pytest

from broker.membership.controllers import Controllers
from chaos.sim.disk import Machine
from chaos.sim.env import SimEnv
from chaos.sim.loop import SimLoop
from chaos.sim.net import Fabric
from model.codes import Request
from model.config import BrokerConfig
from model.errors import Unknown
from remoting.codec import Command
from remoting.service import Connection, RemotingClient, RemotingServer

ADDRESS = "c:9878"


class World:
    """A broker on host ``b`` and a Controller on host ``c`` that leads and notes what it is asked."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.fabric = Fabric(self.loop, seed)
        self.asked: list[int] = []
        self.seed = seed

    def env(self, host: str) -> SimEnv:
        machine = Machine(host, self.seed, lambda: 0)
        return SimEnv(self.loop, self.loop.new_life(host), self.fabric, machine, host, seed=self.seed)

    async def answer(self, _connection: Connection, request: Command) -> Command:
        self.asked.append(request.code)
        return request.reply(0, ext={"isLeader": "true"})

    async def cut_while_asked(self) -> None:
        server = RemotingServer(self.env("c"), "controller", self.answer)
        await server.start("c", 9878)
        env = self.env("b")
        client = RemotingClient(env, "broker")
        controllers = Controllers(env, BrokerConfig(controller_addr=ADDRESS), client)
        await controllers.call(Command(Request.CONTROLLER_GET_REPLICA_INFO))
        self.asked.clear()
        self.fabric.cut("b", "c")
        with pytest.raises(Unknown):
            await controllers.call(Command(Request.CONTROLLER_ALTER_SYNC_STATE_SET))
        await asyncio.sleep(30)
        self.fabric.heal_all()
        await asyncio.sleep(5)
        await controllers.call(Command(Request.CONTROLLER_GET_REPLICA_INFO))
        await client.close()
        await server.stop()

    def play(self) -> list[int]:
        try:
            self.loop.run_until_complete(self.cut_while_asked())
        finally:
            self.loop.close()
        return self.asked


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(3))
def test_a_proposal_that_timed_out_behind_a_cut_link_never_arrives(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Request.CONTROLLER_ALTER_SYNC_STATE_SET not in World(seed).play()
    # Closed only, the connection's kernel sends it again when the link is back.
    monkeypatch.setattr(Connection, "reset", Connection.close)
    assert Request.CONTROLLER_ALTER_SYNC_STATE_SET in World(seed).play()
