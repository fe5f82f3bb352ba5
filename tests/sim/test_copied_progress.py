"""The promise of copied progress: what consumers committed and what was delivered is at the slaves in time.

Times are virtual and every packet takes equally long, so bounds are exact: nothing is late, not once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from broker.service import Broker
from broker.tables.copies import GATHER_MS, OFFSETS_BOUND_MS
from chaos.sim.cluster import BROKER_PORT, SimCluster
from chaos.sim.net import NetProfile
from model.codes import Request
from model.ids import QueueOffset
from remoting.codec import Command
from remoting.service import RemotingClient
from tests.sim.world import SEND, World, simulated

pytestmark = pytest.mark.sim

Progress = Callable[[Broker], int | None]
EPSILON_MS = 0.01  # the clock is a float
GROUP_TOPIC = {"consumerGroup": "readers", "topic": "TBW102", "queueId": "0"}


def network(one_way_ms: float) -> NetProfile:
    """No chance at all: each packet takes ``one_way_ms``."""
    one_way_s = one_way_ms / 1000
    return NetProfile(one_way_s, one_way_s, jitter_s=0, spike_share=0, slice_share=0)


class Watch:
    """When each broker first had each value of a number that only grows."""

    def __init__(self, cluster: SimCluster, progress: Progress) -> None:
        self.master = cluster.master()
        self.seen: dict[str, list[tuple[float, int]]] = {}
        self.notes: dict[str, Callable[[], None]] = {}
        for node in cluster.of("broker"):
            broker, seen = cast(Broker, node.server), self.seen.setdefault(node.name, [])

            def note(broker: Broker = broker, seen: list[tuple[float, int]] = seen) -> None:
                value = progress(broker)
                if value is not None and (not seen or value != seen[-1][1]):
                    seen.append((cluster.clock(), value))

            self.notes[node.name] = note
            broker.offsets.on_change.append(note)
            broker.delays.on_change.append(note)

    def late_ms(self, slave: str) -> list[float]:
        """For each change at the master, how long until ``slave`` was as far. Fails if it never was."""
        assert self.master is not None
        found = []
        for at_ms, value in self.seen[self.master]:
            got_ms = [seen_ms for seen_ms, has in self.seen[slave] if has >= value]
            assert got_ms, f"{slave} never had {value}"
            found.append(got_ms[0] - at_ms)
        return found

    def judge(self, one_way_ms: float, changes: int) -> None:
        """Every change came in time, at both slaves."""
        round_trip_ms = 2 * one_way_ms
        slaves = [name for name in self.seen if name != self.master]
        assert len(slaves) == 2
        for slave in slaves:
            late_ms = self.late_ms(slave)
            assert len(late_ms) == changes
            assert max(late_ms) <= OFFSETS_BOUND_MS + round_trip_ms
            # What the design gives, at its worst: a change right behind an answer waits until the others are
            # gathered, or until the next question is there, and is one way from there.
            worst_ms = max(GATHER_MS, round_trip_ms) + one_way_ms
            assert max(late_ms) <= worst_ms + EPSILON_MS
            assert min(late_ms) >= one_way_ms - EPSILON_MS


@pytest.mark.parametrize("one_way_ms", [0.5, 5.0, 60.0])
@simulated(lambda one_way_ms: World(31, network=network(one_way_ms)))
async def test_every_offset_a_consumer_committed_is_at_the_slaves_within_the_bound(
    world: World, one_way_ms: float
) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    watch = Watch(cluster, lambda broker: broker.offsets.get("readers", "TBW102", 0))
    # Offsets beyond the end of a queue are not noted: let it look as if it held as many messages.
    broker = cast(Broker, cluster.nodes[master].server)
    broker.groups.find("readers")  # a commit makes none
    store = broker.store
    store.next_offset = lambda topic, queue_id: QueueOffset(300)  # type: ignore[method-assign]
    noted = broker.offsets.commit

    def commit_at_master(group: str, topic: str, queue_id: int, offset: int) -> None:
        noted(group, topic, queue_id, offset)
        watch.notes[master]()  # its hooks do not hear of those that nobody looked between

    broker.offsets.commit = commit_at_master  # type: ignore[method-assign]
    node, env = cluster.client("reader")
    client = RemotingClient(env, "reader")
    address = f"{cluster.nodes[master].host}:{BROKER_PORT}"

    async def commit() -> None:
        # First too fast for an answer each, then so rarely that nothing is gathered.
        for offset in range(1, 301):
            ext = {**GROUP_TOPIC, "commitOffset": str(offset)}
            await client.oneway(address, Command(Request.UPDATE_CONSUMER_OFFSET, ext))
            await asyncio.sleep(0.003 if offset <= 280 else 0.4)

    await cluster.inside(node, commit())
    await asyncio.sleep(2)
    watch.judge(one_way_ms, changes=300)
    assert all(len(watch.seen[node.name]) < 60 for node in cluster.of("broker") if node.name != master)


@pytest.mark.parametrize("one_way_ms", [0.5, 60.0])
@simulated(lambda one_way_ms: World(32, {"messageDelayLevel": "1s 2s"}, network(one_way_ms)))
async def test_how_far_delayed_messages_are_delivered_is_at_the_slaves_within_the_bound(
    world: World, one_way_ms: float
) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    watch = Watch(cluster, lambda broker: broker.delays.table.get(1))
    node, env = cluster.client("sender")
    client = RemotingClient(env, "sender")
    address = f"{cluster.nodes[master].host}:{BROKER_PORT}"
    ext = {**SEND, "properties": "DELAY\x011\x02"}

    async def send() -> None:
        for _ in range(100):
            await client.oneway(address, Command(Request.SEND_MESSAGE, ext, b"x"))
            await asyncio.sleep(0.03)

    await cluster.inside(node, send())
    await asyncio.sleep(3)
    assert watch.seen[master][-1][1] == 100, "all were delivered"
    noted = len(watch.seen[master])
    assert noted > 25, "in many steps"
    watch.judge(one_way_ms, changes=noted)
