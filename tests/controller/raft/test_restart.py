"""The promise of a member that starts again: what it says it holds is there when the power fails then."""

import asyncio

import pytest

from tests.fakes.controller.raft_sim import Group, wait_for

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", range(3))
def test_what_a_failed_sync_left_in_the_cache_is_no_acknowledgement_after_a_restart(seed: int) -> None:
    """One follower is down, the other's sync fails and its supervisor starts it again. The decision those two
    and the leader make must outlive a power failure of all and the loss of the leader."""
    group = Group(seed)

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        leader = await group.wait_leader()
        assert await group.propose()
        broken, down = (member for member in group.members.values() if member is not leader)
        await wait_for(lambda: len({tuple(m.applied) for m in group.members.values()}) == 1)
        down.kill()
        broken.machine.faults.sync_errors = 1
        proposal = asyncio.ensure_future(group.propose())
        await wait_for(lambda: not broken.up)
        broken.kill()
        await broken.start()
        assert await proposal, "the leader and the one started again are a majority"
        for member in (leader, broken):
            member.kill(power=True)
        await broken.start()
        await down.start()
        await wait_for(group.leader)
        assert await group.propose()
        await wait_for(lambda: broken.applied[-1:] == group.acked[-1:])
        assert broken.applied == group.acked

    try:
        group.loop.run_until_complete(main())
    finally:
        group.loop.close()
