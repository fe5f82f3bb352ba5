"""The promise to consumers of a master that was just elected: what they read is never said to be beyond the
end of their queue, though its records are not confirmed yet; what no record can have is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from model.codes import Request, Response
from tests.broker.helpers import client_of, eventually, running


async def test_a_consumer_is_not_moved_back_by_a_master_that_has_not_confirmed_what_it_read(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        confirm = broker.store.flow.dispatcher.confirm
        broker.store.flow.dispatcher.confirm = lambda offset: None  # type: ignore[method-assign]
        for _ in range(5):
            await client.send("T", b"x")
        end = broker.store.log.end
        assert (broker.store.max_queue_offset("T", 0), broker.store.next_offset("T", 0)) == (0, 5)
        waiting = asyncio.ensure_future(client.pull("T", 4, suspend_ms=10_000))
        await eventually(lambda: broker.status()["heldPulls"] == 1, "it waits for what is in the log")
        again = await client.pull("T", 5, suspend_ms=0)
        assert (again.code, again.ext["nextBeginOffset"]) == (Response.PULL_RETRY_IMMEDIATELY, "5")
        beyond = await client.pull("T", 6, suspend_ms=0)
        assert (beyond.code, beyond.ext["nextBeginOffset"]) == (Response.PULL_OFFSET_MOVED, "0")
        broker.context.role_state.led_from = end
        most = await client.call(Request.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert most.ext["offset"] == "5"
        broker.store.flow.dispatcher.confirm = confirm  # type: ignore[method-assign]
        broker.store.confirm(end)
        assert (await waiting).code == Response.SUCCESS
