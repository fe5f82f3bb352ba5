"""The promise of mode *counted* with n=2: the furthest member is elected, also when it is slow to say so.

One that is silent for longer than the heartbeat timeout (1.5 s) has died as far as its group knows, and
docs/replication-modes.md says what may go then. It is silent for up to a heartbeat (0.5 s) longer than it
stood still.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.kept import TWO, Kept

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(
    ("pause_ms", "cut_s", "after_s"),
    # The last two: what the one that is behind said last is as old as what the furthest one said.
    [(0, 0.7, 0.1), (500, 0.7, 0.1), (1000, 0.7, 0.1), (1250, 0.12, 0.012), (1000, 0.12, 0.112)],
)
def test_the_only_slave_that_has_the_last_acknowledged_record_leads_though_it_stood_still(
    pause_ms: int, cut_s: float, after_s: float
) -> None:
    world = Kept(1, TWO)
    cluster = world.cluster

    async def main() -> None:
        master = cluster.master()
        assert master is not None
        behind, furthest = sorted(node.name for node in cluster.of("broker") if node.name != master)
        world.send_on(every_s=0.02)
        await asyncio.sleep(1)
        cluster.cut(master, behind, "out")  # it is a member for 1.5 s more
        await asyncio.sleep(cut_s)
        world.quiet = True
        await asyncio.sleep(after_s)
        assert len(cluster.members()) == 3
        missing = set(world.acked) - world.stored_by_log(behind)
        assert missing, "the one that is behind has everything"
        cluster.pause(furthest)
        cluster.kill(master)
        await asyncio.sleep(pause_ms / 1000)
        cluster.resume(furthest)
        cluster.fabric.heal_all()
        await asyncio.sleep(4)
        assert cluster.master() == furthest
        world.start(master)
        await world.settled()

    world.run(main)
