"""What every mixed group has to live through: a killed master, a successor, a return, a handover."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

from chaos.worlds import rocketmq
from client.admin import AdminClient
from model.codes import Request
from remoting.bodies import believed_object, dumps
from tests.interop.load import READERS, TOPIC, Load, assert_nothing_acked_is_gone
from tests.interop.logs import assert_same_logs
from tests.interop.mixed import GROUP, START_S, KeelmqNode, MixedCluster, Server

STRAY_S: Final = 60.0
"""Longer than a real slave needs to find the new master, unless it has gone astray."""


def start_group(cluster: MixedCluster, leader: str, others: str, count: int, **settings: object) -> None:
    """The first broker to start leads the first epoch; ``settings`` are for the others."""
    first = cluster.add_broker(leader)
    cluster.start_brokers([first])
    slaves = [cluster.add_broker(others, **settings) for _ in range(count)]
    cluster.wait(f"{first.name} to lead", lambda: cluster.is_full(1))
    cluster.start_brokers(slaves)
    cluster.wait("a full SyncStateSet", cluster.is_full)


def kill_the_master(
    cluster: MixedCluster, leader: Server | None = None, targets: Sequence[Server] | None = None
) -> tuple[Server, Server]:
    """Kill -9 the master (``leader``, when given) under load; another one serves. Returns (the killed one,
    its successor).

    The SyncStateSet is full before, and ``leader`` leads: a machine that stood still for seconds may have
    changed both.
    """
    with Load(cluster) as load:
        load.wait_for(100)
        cluster.wait("a full SyncStateSet", cluster.is_full)
        if leader is not None and cluster.master() is not leader:
            elect(cluster, leader)
        before = cluster.state()
        assert before is not None
        killed = cluster.at(before.master_address)
        killed.stop(signal.SIGKILL)
        cluster.wait("another master", lambda: cluster.master() not in (None, killed))
        load.wait_for(100, START_S)
    after = cluster.state()
    assert after is not None
    assert after.epoch > before.epoch
    successor = cluster.at(after.master_address)
    assert successor in (cluster.brokers if targets is None else targets)
    cluster.loads.append(load)
    return killed, successor


def rejoin(cluster: MixedCluster, killed: Server) -> None:
    """The killed broker comes back under load, and the SyncStateSet is full again."""
    with Load(cluster) as load:
        killed.start()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        load.wait_for(50)
    cluster.loads.append(load)


def assert_all_is_well(cluster: MixedCluster) -> None:
    """The SyncStateSet is full, the logs are the same bytes, and nothing acknowledged is gone."""
    cluster.wait("a full SyncStateSet", cluster.is_full)
    cluster.wait_level()
    assert assert_same_logs(cluster.stores()) > 0
    assert assert_nothing_acked_is_gone(cluster, cluster.loads) > 0
    for broker in cluster.brokers:
        unknown = [line for line in cluster.said_by_real(broker) if "not supported" in line]
        assert not unknown, f"{broker.name}: {unknown[:5]}"


def put_load(cluster: MixedCluster, count: int) -> None:
    """Send until ``count`` messages are acknowledged."""
    with Load(cluster) as load:
        load.wait_for(count)
    cluster.loads.append(load)


def copy_tables(cluster: MixedCluster) -> None:
    """Give the master a topic, a group and a consumer offset, and wait until every broker has them."""
    state = cluster.state()
    assert state is not None
    assert state.master_address is not None
    master = state.master_address
    put_load(cluster, 40)
    offset = {"consumerGroup": READERS, "topic": TOPIC, "queueId": "1", "commitOffset": "5"}

    async def give(admin: AdminClient) -> bool:
        await admin.create_topic("MixedTables", 6)
        group = {"groupName": READERS, "consumeEnable": True, "retryQueueNums": 1}
        await admin.session.call(master, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(group))
        await admin.session.call(master, Request.UPDATE_CONSUMER_OFFSET, offset)
        return True

    assert cluster.asked(give)
    for broker in cluster.brokers:
        cluster.wait(f"the tables on {broker.name}", partial(has_tables, cluster, broker))


def has_tables(cluster: MixedCluster, broker: Server) -> bool:
    """Whether ``broker`` holds what ``copy_tables`` gave to the master."""
    address = cluster.address(broker)
    topics = believed_object(rocketmq.call(address, Request.GET_ALL_TOPIC_CONFIG)[1])["topicConfigTable"]
    groups = believed_object(rocketmq.call(address, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)[1])
    offsets = believed_object(rocketmq.call(address, Request.GET_ALL_CONSUMER_OFFSET)[1])["offsetTable"]
    return (
        topics.get("MixedTables", {}).get("writeQueueNums") == 6
        and READERS in groups["subscriptionGroupTable"]
        and offsets.get(f"{TOPIC}@{READERS}", {}).get("1") == 5
    )


def hand_over(cluster: MixedCluster, transfer_target: Server) -> None:
    """electMaster for ``transfer_target`` under load, as an operator would ask for it; it serves afterwards.

    A real master that is deposed may answer OK to what no other broker has: a put that passed the check of
    the role before the change, and looks at the role again after it, waits for nobody (CommitLog's
    needHandleHA). Its producers pause, as docs/mixed-groups.md tells operators.
    """
    deposed = cluster.master()
    with Load(cluster) as load:
        load.wait_for(20)
        with nullcontext() if isinstance(deposed, KeelmqNode) else load.paused():
            elect(cluster, transfer_target)
        load.wait_for(50, START_S)
    cluster.loads.append(load)


def elect(cluster: MixedCluster, transfer_target: Server) -> None:
    """electMaster for ``transfer_target``; returns when it leads and the SyncStateSet is full again."""
    broker_id = cluster.id_of(transfer_target)

    def leads() -> bool:
        # Again when it was refused or its answer was lost: only a member of the SyncStateSet is elected.
        cluster.asked(lambda admin: admin.elect(cluster.controllers, "DefaultCluster", GROUP, broker_id))
        return cluster.master() is transfer_target

    cluster.wait(f"{transfer_target.name} to lead", leads)
    try:
        cluster.wait("a full SyncStateSet", cluster.is_full, STRAY_S)
    except TimeoutError:
        strays = cluster.strays()
        if not strays:
            raise
        # What docs/mixed-groups.md advises: a real slave may copy from the former real master for good.
        for broker in strays:
            broker.stop()
            broker.start()
        cluster.wait("a full SyncStateSet", cluster.is_full)
