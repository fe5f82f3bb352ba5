"""When are the counters looked at that say what happened in the last minute, hour and day?"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from broker.context import BrokerContext
from runtime.turns import Slice

PERIOD_S: Final = 10.0


class Sampling:
    """Feeds ``context.stats.counters`` and the counters of the day, every PERIOD_S."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._put = self._got = 0

    async def sample(self) -> None:
        """Look at every queue and counter; others have their turn in between."""
        context = self._context
        now_ms = context.env.monotonic_ms()
        stats, counters, cluster = context.stats, context.stats.counters, context.config.cluster_name
        turn = Slice(context.env.monotonic_ms)
        store = context.store
        for topic, queue_id in store.queues():
            counters.queue_end(topic, queue_id, store.max_queue_offset(topic, queue_id), now_ms)
            await turn.breathe()
        for name, before, total in (
            ("BROKER_PUT_NUMS", self._put, stats.put_total),
            ("BROKER_GET_NUMS", self._got, stats.get_total),
        ):
            if total > before:
                counters.add(name, cluster, total - before, now_ms)
        self._put, self._got = stats.put_total, stats.get_total
        counters.sample(now_ms)
        stats.on_day(datetime.fromtimestamp(context.env.now_ms() / 1000).date())
