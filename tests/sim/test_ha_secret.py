"""The promise of ``haSecretFile`` to a whole cluster: failovers go as before, and forgers on HA ports change
nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from broker.service import Broker
from chaos.drills.simulated.run import run_seed
from chaos.scenarios import SCENARIOS
from chaos.scenarios.plan import Plan, Scenario
from chaos.sim.cluster import BROKER_PORT
from ha.wire.codec import encode_slave_handshake
from tests.fakes.ha.frames import encode_ack, slave_handshake
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim
KILL = "kill_the_master_under_load"
SECRET = {"haSecretFile": "/ha.secret"}


@pytest.mark.parametrize("seed", [1, 2])
def test_with_a_secret_killing_the_master_loses_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS[KILL]

    def plan(rng: random.Random) -> Plan:
        drawn = scenario.plan(rng)
        return replace(drawn, broker={**drawn.broker, **SECRET})

    monkeypatch.setitem(SCENARIOS, KILL, Scenario(KILL, scenario.text, plan))
    result = run_seed(KILL, seed)
    assert result.violations == [], result.replay
    assert result.coverage["fault.kill"] >= 1
    assert result.coverage["send.ok"] > 100
    assert result.coverage["event.master_elected"] >= 2


class Forger(asyncio.Protocol):
    """Says that it is ``broker_id`` and has everything; counts what it hears."""

    heard = 0

    def __init__(self, broker_id: int, end: int) -> None:
        self._words = encode_slave_handshake(
            slave_handshake(broker_id, False, False, answers_heartbeats=True)
        ) + encode_ack(end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._words)

    def data_received(self, data: bytes) -> None:
        Forger.heard = max(Forger.heard, len(data))


@simulated(lambda: World(3, SECRET))
async def test_forgers_change_nothing_in_a_group_that_fails_over(world: World) -> None:
    cluster = world.cluster

    def links(name: str) -> dict[int, int | None]:
        server = cluster.nodes[name].server
        assert isinstance(server, Broker)
        return {number: link.proven for number, link in server.ha.links.by_id.items()}

    async def forge_on(env_connect: Callable[..., Awaitable[object]]) -> None:
        while True:
            for node in cluster.of("broker"):
                for broker_id in (1, 2, 3):
                    status = cluster.status(node.name)
                    end = status["maxOffset"] if status else 0
                    try:
                        await env_connect(
                            lambda b=broker_id, e=end: Forger(b, e), node.host, BROKER_PORT + 1, timeout_s=0.5
                        )
                    except OSError:
                        continue
            await asyncio.sleep(0.02)

    def successor_of(dead: str) -> str | None:
        return None if cluster.master() not in (None, dead) else "no successor"

    stranger, env = cluster.client("stranger")
    forging = cluster.inside(stranger, forge_on(env.network.connect))
    await asyncio.sleep(1.0)
    turned_away = 0
    for _ in range(3):
        master = cluster.master()
        assert master is not None
        others = {s["brokerId"] for n, s in cluster.brokers().items() if n != master}
        assert links(master) == {number: number for number in others}
        turned_away += (cluster.status(master) or {})["turnedAway"]
        cluster.kill(master)
        assert await cluster.until(partial(successor_of, master), 10.0) is None
        cluster.start(master)
        assert await cluster.until(cluster.converged, 20.0) is None
    forging.cancel()
    assert turned_away > 20
    assert Forger.heard == 8, "a refusal, and not a byte of a log"
