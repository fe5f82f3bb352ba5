"""The promise to a consumer whose broker is gone: each call ends soon, and another member serves."""

from __future__ import annotations

import asyncio

import pytest

from chaos.sim.cluster import GROUP
from client.consuming.pull import ANSWER_S, PullConsumer, PullStatus
from client.message import Queue
from client.routes import SUSPECT_MS
from model.errors import MqError
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim
SUSPEND_MS = 2000


@pytest.mark.parametrize("gone", ["pause", "isolate", "power_fail"])
@simulated(
    lambda: World(3, {"controllerHeartBeatTimeoutMills": "60000", "haMaxTimeSlaveNotCatchup": "60000"})
)
async def test_every_call_ends_within_its_time_and_a_slave_serves_meanwhile(world: World, gone: str) -> None:
    # The Controllers stay unheard of the loss: only then does a consumer have nobody but itself.
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    world.send_to(master)
    await asyncio.sleep(1.0)
    node, env = cluster.client("reader")
    queue = Queue("TBW102", GROUP, 0)

    async def read() -> None:
        clock = asyncio.get_running_loop().time
        async with PullConsumer(env, "g", cluster.namesrv_addresses) as consumer:
            assert (await consumer.pull(queue, 0)).status is PullStatus.FOUND
            getattr(cluster, gone)(master)
            held, plain = SUSPEND_MS / 1000 + ANSWER_S, ANSWER_S
            for bound_s, call in (
                (held, lambda: consumer.pull(queue, 0, suspend_ms=SUSPEND_MS, master_only=True)),
                (plain, lambda: consumer.pull(queue, 0, master_only=True)),
                (plain, lambda: consumer.commit(queue, 1)),
                (plain, lambda: consumer.max_offset(queue)),
            ):
                begun_s = clock()
                with pytest.raises((MqError, OSError)):
                    await call()
                assert clock() - begun_s <= bound_s * 1.05
            pulled = await consumer.pull(queue, 0)
            assert pulled.status is PullStatus.FOUND, "a slave has it as well"
            await asyncio.sleep(SUSPECT_MS / 1000 + 0.1)

    await cluster.inside(node, read())
