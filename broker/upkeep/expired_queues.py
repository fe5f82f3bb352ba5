"""Where did the queues end whose messages have all expired?

A replica that begins empty copies the log from where it starts now: of a queue whose last message expired
before it gets neither a record nor a file. The master notes where such queues ended among its topics, which
every replica has on its disk before it may join the SyncStateSet, and notes it before the log's start moves.
So whoever leads gives no offset again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from broker.context import BrokerContext
from runtime.turns import Slice

BATCH: Final = 512
"""Names that are noted at once: 2 ms."""


async def note_expired(
    context: BrokerContext, log_start: int, slice_: Slice, leads: Callable[[], bool] = lambda: True
) -> None:
    """Note the queues without a message at or behind ``log_start`` (bytes), if this broker still ``leads``
    then. Raises as ``slice_``."""
    store, topics = context.store, context.topics
    ends: dict[str, dict[int, int]] = {}
    for topic, queue_id in list(store.queues()):
        end = store.end_below(topic, queue_id, log_start)
        if end:
            ends.setdefault(topic, {})[queue_id] = end
        await slice_.breathe()
    names = iter(ends)
    while batch := list(islice(names, BATCH)):
        if not leads():
            return
        topics.note_expired({name: ends[name] for name in batch})
        await slice_.breathe()
