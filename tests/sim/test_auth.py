"""The promise of a cluster with peerCredentialsFile: it lives as any other; strangers move nothing in it."""

from __future__ import annotations

import pytest

from admin.handover import CannotHandOver, hand_over
from chaos.history import History
from chaos.sim.cluster import GROUP, SimCluster, WorldConfig
from chaos.sim.disk import SimDisk
from chaos.sim.env import SimEnv
from client.admin import AdminClient
from client.message import Message
from client.sending.producer import Producer
from model.errors import Refused
from remoting.auth import Credentials
from runtime.env import write_file
from tests.remoting.keys import KEY, KEY_JSON, WRONG
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim

PATH = "/etc/peers.json"
HAS_KEY = {"peerCredentialsFile": PATH}


def give_key(cluster: SimCluster) -> None:
    for node in [*cluster.of("namesrv"), *cluster.of("broker")]:
        life = cluster.loop.new_life(f"install.{node.name}")
        disk = SimDisk(node.machine, life)
        disk.makedirs("/etc")
        write_file(disk, PATH, KEY_JSON.encode())


def guarded() -> World:
    world = World(31)
    config = WorldConfig(broker=HAS_KEY, namesrv=HAS_KEY, controller=HAS_KEY)
    world.cluster.close()
    world.cluster = SimCluster(31, config, History())
    give_key(world.cluster)
    return world


@simulated(guarded)
async def test_an_election_a_handover_and_a_new_topic_need_the_key_and_no_client_does(world: World) -> None:
    async def operate(env: SimEnv, cluster: SimCluster, key: Credentials | None, topic: str) -> None:
        async with AdminClient(env, cluster.namesrv_addresses, credentials=key) as admin:
            await admin.create_topic(topic, 4, brokers=[GROUP])
        await hand_over(
            env,
            cluster.namesrv_addresses,
            cluster.controller_addresses,
            "DefaultCluster",
            GROUP,
            credentials=key,
        )

    cluster = world.cluster
    for number, key in enumerate((None, WRONG)):
        node, env = cluster.client(f"stranger{number}")
        old = cluster.master()
        with pytest.raises(Refused, match="CREATE_TOPIC"):
            await cluster.inside(node, operate(env, cluster, key, "Strange"))
        work = hand_over(
            env,
            cluster.namesrv_addresses,
            cluster.controller_addresses,
            "DefaultCluster",
            GROUP,
            credentials=key,
        )
        with pytest.raises(CannotHandOver, match="ELECT_MASTER"):
            await cluster.inside(node, work)
        assert cluster.master() == old
    node, env = cluster.client("operator")
    old = cluster.master()
    await cluster.inside(node, operate(env, cluster, KEY, "Ours"))
    same = await cluster.until(lambda: "same" if cluster.master() == old else None, 3)
    assert same is None

    async def send() -> int:
        async with Producer(env, "p", cluster.namesrv_addresses) as producer:
            return (await producer.send(Message(topic="Ours", body=b"unsigned"))).queue_offset

    assert await cluster.inside(node, send()) == 0
    assert await cluster.until(cluster.converged, 20.0) is None
    transfer_target = cluster.master()
    assert transfer_target is not None
    cluster.kill(transfer_target)
    gone = await cluster.until(
        lambda: None if cluster.master() not in (None, transfer_target) else "none", 10
    )
    assert gone is None
    cluster.start(transfer_target)
    assert await cluster.until(cluster.converged, 20.0) is None
