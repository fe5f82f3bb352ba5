"""The promise of the console's poll: the cluster is asked as often for a hundred viewers as for one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from admin.console.poll import Poll
from admin.top.look import Heard, Look


def looks(times: list[float], failing: int = 0) -> Callable[[], Awaitable[Look]]:
    """Each look is at the next of ``times``, and has sent 10 messages more than the one before."""
    left = list(enumerate(times))
    bad = [True] * failing

    async def look() -> Look:
        await asyncio.sleep(0)
        if bad:
            bad.pop()
            raise OSError("no route")
        number, mono_ms = left.pop(0)
        said = {"putMessageTimesTotal": str(10 * number), "putTps": "3.0", "commitLogMaxOffset": "1"}
        return Look(0, mono_ms, brokers={"h:1": Heard("h:1", said)}, routes={"a": {0: "h:1"}})

    return look


async def test_one_look_serves_everybody_until_it_is_old() -> None:
    poll = Poll(looks([1_000, 3_000]), 2_000)
    first = await asyncio.gather(*(poll.now(1_000) for _ in range(100)))
    assert len(set(map(id, first))) == 1
    assert await poll.now(2_999) is first[0]
    second = await asyncio.gather(*(poll.now(3_000) for _ in range(100)))
    assert len(set(map(id, second))) == 1
    assert second[0].groups[0].brokers[0].in_tps == 5.0


async def test_a_rate_is_not_taken_over_the_hour_in_which_nobody_watched() -> None:
    poll = Poll(looks([1_000, 3_600_000]), 2_000)
    await poll.now(1_000)
    assert (await poll.now(3_600_000)).groups[0].brokers[0].in_tps == 3.0


async def test_after_a_look_that_failed_the_next_viewer_looks() -> None:
    poll = Poll(looks([1_000], failing=1), 2_000)
    with pytest.raises(OSError, match="no route"):
        await poll.now(1_000)
    assert (await poll.now(1_000)).groups
