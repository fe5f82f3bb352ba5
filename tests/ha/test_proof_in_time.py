"""The promise of a bound: who does not prove himself on the HA port within ``PROOF_S`` is gone, however he
goes about it, and a slave waits for no longer. Under virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from chaos.sim.cluster import HA_SECRET
from chaos.sim.disk import Machine
from chaos.sim.env import SimEnv
from chaos.sim.loop import SimLoop
from chaos.sim.net import Fabric
from ha.service import HaService
from ha.slave.follower import State
from ha.wire.proof import HELLO_BYTES, PROOF_S, Credentials, HandshakeInitiator
from model.config import BrokerConfig
from model.ids import BrokerId, Epoch
from runtime.env import Env
from tests.fakes.ha.store import FakeStore
from tests.plain import broker_ids

pytestmark = pytest.mark.sim
PORT = 10912


class World:
    """A broker with a secret on a host of its own, and a stranger's machine."""

    def __init__(self) -> None:
        self.loop = SimLoop(1)
        self._fabric = Fabric(self.loop, 1)
        self.env = self.host("127.0.2.1")
        file = self.env.disk.open("/secret", create=True)
        file.pwrite(HA_SECRET, 0)
        self.config = BrokerConfig(bind_address="127.0.2.1", ha_listen_port=PORT, ha_secret_file="/secret")
        self.store = FakeStore()
        self.ha = HaService(self.env, cast(Any, self.store), self.config)
        self.stranger = self.host("127.0.3.1")

    def host(self, name: str) -> Env:
        life = self.loop.new_life(name)
        return SimEnv(self.loop, life, self._fabric, Machine(name, 1, lambda: 0), name, seed=name)

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.ha.start()
            self.store.epochs.append(1, 0)
            await story()
            await self.ha.stop()

        try:
            self.loop.run_until_complete(whole())
        finally:
            self.loop.close()

    def knock(self) -> HandshakeInitiator:
        return HandshakeInitiator(
            self.stranger, HA_SECRET, Credentials.of(self.env, self.config).scope, BrokerId(2), Epoch(1)
        )


class Peer(asyncio.Protocol):
    """A stranger: what he hears, and how long he was let."""

    def __init__(self) -> None:
        self.heard = b""
        self.began_s = self.ended_s = 0.0
        self.ended = asyncio.Event()
        self.wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast(asyncio.Transport, transport)
        self.began_s = asyncio.get_running_loop().time()

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended_s = asyncio.get_running_loop().time()
        self.ended.set()

    @property
    def lasted_s(self) -> float:
        return self.ended_s - self.began_s


async def drip(peer: Peer, data: bytes, every_s: float) -> None:
    assert peer.wire is not None
    for at in range(len(data)):
        if peer.ended.is_set():
            return
        peer.wire.write(data[at : at + 1])
        await asyncio.sleep(every_s)


@pytest.mark.parametrize(
    "way", ["silent", "drips its hello", "hello, then drips a proof", "hello, then silent"]
)
def test_a_stranger_that_takes_his_time_is_cut_off(way: str) -> None:
    world = World()

    async def story() -> None:
        await world.ha.become_master(BrokerId(1), Epoch(1), broker_ids({1}), 1, None)
        _, peer = await world.stranger.network.connect(Peer, "127.0.2.1", PORT)
        hello = world.knock().hello
        assert peer.wire is not None
        if way == "drips its hello":
            await drip(peer, hello, PROOF_S * 1.5 / HELLO_BYTES)
        elif way != "silent":
            peer.wire.write(hello)
            if "drips" in way:
                await asyncio.sleep(PROOF_S / 4)  # else the first byte comes before the answer
                await drip(peer, bytes(31), PROOF_S / 20)
        await peer.ended.wait()
        assert PROOF_S * 0.9 < peer.lasted_s < PROOF_S * 1.1
        assert len(peer.heard) == (80 if way.startswith("hello") else 0)
        assert world.ha.turned_away_total == 1
        assert world.ha.links.strangers == {}

    world.run(story)


def test_who_proved_himself_in_time_is_not_cut_off_afterwards() -> None:
    world = World()

    async def story() -> None:
        await world.ha.become_master(BrokerId(1), Epoch(1), broker_ids({1}), 1, None)
        _, peer = await world.stranger.network.connect(Peer, "127.0.2.1", PORT)
        knock = world.knock()
        assert peer.wire is not None
        peer.wire.write(knock.hello)
        await asyncio.sleep(PROOF_S / 2)
        proof = knock.feed(peer.heard)
        assert proof is not None
        await drip(peer, proof, PROOF_S / 4 / len(proof))
        await asyncio.sleep(PROOF_S)
        assert not peer.ended.is_set()
        assert world.ha.turned_away_total == 0

    world.run(story)


@pytest.mark.parametrize("drips", [False, True])
def test_a_slave_waits_no_longer_for_a_masters_proof(drips: bool) -> None:
    world = World()
    peers: list[Peer] = []
    drips_on: list[asyncio.Task[None]] = []

    class Master(Peer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            peers.append(self)
            if drips:
                answer = b"\xffKMQHA01" + bytes(72)
                drips_on.append(asyncio.get_running_loop().create_task(drip(self, answer, PROOF_S / 10)))

    async def story() -> None:
        listener = await world.stranger.network.listen(Master, "127.0.3.1", PORT)
        await world.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.3.1:{PORT}")
        await asyncio.sleep(PROOF_S * 5)
        assert len(peers) >= 4
        for peer in peers[:3]:
            assert PROOF_S * 0.9 < peer.lasted_s < PROOF_S * 1.1
            assert len(peer.heard) == HELLO_BYTES, "nothing of the HA protocol"
        following = world.ha.status()["following"]
        assert (following["state"], world.ha.unproven) == (State.UNPROVEN, following["reason"])
        gaps = [later.began_s - peer.ended_s for peer, later in itertools.pairwise(peers)]
        assert gaps[2] > 1.5 * gaps[0], "it tries again, and waits longer each time"
        await world.ha.become_fenced()
        for task in drips_on:
            task.cancel()
        listener.close()

    world.run(story)
