"""The promise to a group when a slave comes back with its log, but without its epochs."""

import asyncio

import pytest

from ha.slave.own_log import LogActions
from tests.sim.kept import MAJORITY, Kept
from tests.sim.world import simulated

pytestmark = pytest.mark.sim


@simulated(lambda: Kept(0, MAJORITY))
async def test_a_slave_that_cuts_its_log_for_want_of_epochs_is_not_counted_as_one_that_has_it(
    world: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has what was acknowledged, the third one lacks it. The master dies before it is copied again."""
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    behind, has_all = sorted(node.name for node in cluster.of("broker") if node.name != master)
    cuts: list[int] = []
    carried_out = LogActions._truncate

    def truncate(holder: LogActions, *arguments: object) -> None:
        before = holder._store.log.end
        carried_out(holder, *arguments)  # type: ignore[arg-type]
        cuts.append(before - holder._store.log.end)

    monkeypatch.setattr(LogActions, "_truncate", truncate)
    world.send_on(every_s=0.004)
    await asyncio.sleep(1)
    cluster.cut(master, behind)  # it stays a member for a while, and nothing is confirmed meanwhile
    await asyncio.sleep(1)
    assert set(world.acked) - world.stored_by_log(behind)
    assert not set(world.acked) - world.stored_by_log(has_all)
    cluster.kill(has_all)
    machine = cluster.nodes[has_all].machine
    for path in machine.paths("/store/epochFileCheckpoint"):
        for bit in (0, 9, 18, 27, 36):
            machine.flip(path, bit)
    cluster.start(has_all)
    for _ in range(30000):
        if cuts:
            break
        await asyncio.sleep(0.0001)
    assert cuts[0] > 0, "it was cut"
    cluster.kill(master)
    world.quiet = True
    await asyncio.sleep(4)
    assert cluster.master() is None, "nobody who is there has all"
    world.start(master)
    cluster.fabric.heal_all()
    await world.settled()
