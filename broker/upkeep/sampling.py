"""When are the counters looked at that say what happened in the last minute, hour and day?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from broker.context import BrokerContext
from broker.state.figures import ROWS_MAX, Lag, Lags, QueueLag, Rows, largest_queues
from broker.timers.figures import DEQUEUED_TO, ENQUEUED
from model.errors import MqError
from model.message import DLQ_PREFIX
from runtime.report.histogram import SIZES_BYTES
from runtime.report.lasting import lasting
from runtime.tasks import every
from runtime.turns import Slice

log = logging.getLogger(__name__)

PERIOD_S: Final = 10.0
SIZES_AT_ONCE: Final = 4096


_ROWS: Final = {
    "topics": "TOPIC_PUT_NUMS",
    "topicBytes": "TOPIC_PUT_SIZE",
    "reads": "GROUP_GET_NUMS",
    "readBytes": "GROUP_GET_SIZE",
    "commits": "TOPIC_COMMIT_NUMS",
    "rollbacks": "TOPIC_ROLLBACK_NUMS",
    "timersIn": ENQUEUED,
    "timersOut": DEQUEUED_TO,
}
"""Counters that are shown in a bounded number of rows."""


class Sampling:
    """Feeds ``context.stats.counters`` and the counters of the day, every PERIOD_S."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._put = self._got = 0
        self._rows = {name: Rows() for name in _ROWS}
        self._dead = Rows()
        self._figures: dict[str, Any] = {}

    def status(self) -> dict[str, Any]:
        """As of the last look; empty before the first one."""
        return self._figures

    async def _look_at_sizes(self, topic: str, queue_id: int, begin: int, end: int, turn: Slice) -> None:
        """Of what a queue took since the last look. Here and not at the send, which pays nothing for it."""
        stats, store, at = self._context.stats, self._context.store, begin
        while at < end:
            count, counts, size = store.sizes_of(
                topic, queue_id, at, min(SIZES_AT_ONCE, end - at), SIZES_BYTES
            )
            if not count:
                return  # cut meanwhile
            at += count
            stats.counters.add("TOPIC_PUT_SIZE", topic, size, self._context.env.monotonic_ms())
            stats.sizes.observe_counted(counts, size)
            await turn.breathe()

    async def _look_at_figures(self, turn: Slice) -> None:
        context = self._context
        lags, queues = await self._lags(turn) if context.role_state.is_master else (Lags(), [])
        shown, others = lags.shown()
        timed = [await self._timed(lag, turn) for lag in shown]
        totals = await context.stats.counters.totals(_ROWS.values(), turn)
        counted = {name: await rows.of_many(totals[_ROWS[name]], turn) for name, rows in self._rows.items()}
        dead = await _dead_letters(totals["TOPIC_PUT_NUMS"], turn)
        self._figures = {
            **counted,
            "dead": await self._dead.of_many(dead, turn),
            "queueLags": [lag.to_json() for lag in queues],
            "lags": [lag.to_json() for lag in (*timed, *([others] if others else []))],
            "topicNumber": len(context.topics.table),
            "groupNumber": len(context.groups.table),
            "producers": sum(len(clients) for clients in context.clients.producers.values()),
            "consumers": sum(len(group.members) for group in context.clients.consumers.values()),
            "keptMs": self._kept_ms(),
            "disk": self._disk(),
        }

    async def _lags(self, turn: Slice) -> tuple[Lags, list[QueueLag]]:
        """Of every consumer group in every topic that it has offsets of; and of the queues the largest."""
        context, found, queues = self._context, Lags(), list[QueueLag]()
        for group in list(context.groups.table):
            for topic in context.offsets.read_by(group):
                if topic not in context.topics.table:
                    continue
                messages, inflight, rows = 0, 0, list[QueueLag]()
                for queue_id, at, got, end in self._places(group, topic):
                    if at is not None and end > at:
                        messages += end - at
                        inflight += got - at
                        rows.append(QueueLag(group, topic, queue_id, end - at))
                    if len(rows) >= 2 * ROWS_MAX:
                        rows = largest_queues(rows)
                    await turn.breathe()
                found.add(Lag(group, topic, messages, inflight))
                full = len(queues) >= ROWS_MAX
                if rows and (not full or max(row.messages for row in rows) > queues[-1].messages):
                    queues = largest_queues([*queues, *rows])
                await turn.breathe()
        return found, queues

    def _places(self, group: str, topic: str) -> Iterator[tuple[int, int | None, int, int]]:
        """Queue id, the offset that the group confirmed (None: none), the one behind what its consumers got,
        and the end of each queue."""
        context = self._context
        for queue_id in context.store.queues_of(topic):
            at, end = (
                context.offsets.get(group, topic, queue_id),
                context.store.max_queue_offset(topic, queue_id),
            )
            got = min(end, context.stats.pulled.of(group, topic, queue_id, at or 0))
            yield queue_id, at, got, end

    async def _timed(self, lag: Lag, turn: Slice) -> Lag:
        """With how long ago the oldest messages were stored that were not confirmed, or not read."""
        store, now_ms = self._context.store, self._context.env.now_ms()
        confirmed, read = list[int](), list[int]()
        for queue_id, at, got, end in self._places(lag.group, lag.topic):
            if at is not None:
                for ages, offset in ((confirmed, at), (read, got)):
                    stored = store.queue_store_time(lag.topic, queue_id, offset) if end > offset else None
                    if stored is not None:
                        ages.append(max(0, now_ms - stored))
            await turn.breathe()
        return replace(lag, behind_ms=max(confirmed, default=None), waits_ms=max(read, default=None))

    def _kept_ms(self) -> int | None:
        earliest_ms = self._context.store.earliest_ms()
        return None if earliest_ms < 0 else max(0, self._context.env.now_ms() - earliest_ms)

    def _disk(self) -> dict[str, int] | None:
        try:
            usage = self._context.env.disk.usage(self._context.config.store_path)
        except OSError:
            return None  # ``why_not_writable`` says what is wrong with the disk
        return {"totalBytes": usage.total_bytes, "freeBytes": usage.free_bytes}

    @lasting
    async def run(self) -> None:
        """The first look is at once: what comes from then on is counted."""
        try:
            await self.sample()
        except (MqError, OSError) as error:
            log.warning("the first look at the counters: %s", error)  # the next one comes
        await every(PERIOD_S, self.sample, what="looking at the counters")

    async def sample(self) -> None:
        """Look at every queue and counter; others have their turn in between."""
        context = self._context
        now_ms = context.env.monotonic_ms()
        stats, counters, cluster = context.stats, context.stats.counters, context.config.cluster_name
        turn = Slice(context.env.monotonic_ms)
        store = context.store
        for topic, queue_id in store.queues():
            end = store.max_queue_offset(topic, queue_id)
            if new := counters.queue_end(topic, queue_id, end, now_ms):
                await self._look_at_sizes(topic, queue_id, end - new, end, turn)
            await turn.breathe()
        for name, before, total in (
            ("BROKER_PUT_NUMS", self._put, stats.put_total),
            ("BROKER_GET_NUMS", self._got, stats.get_total),
        ):
            if total > before:
                counters.add(name, cluster, total - before, now_ms)
        self._put, self._got = stats.put_total, stats.get_total
        for _ in counters.sampled(now_ms):
            await turn.breathe()
        await self._look_at_figures(turn)
        stats.on_day(datetime.fromtimestamp(context.env.now_ms() / 1000).date())


async def _dead_letters(totals: dict[str, int], turn: Slice) -> dict[str, int]:
    found = {}
    for topic, total in totals.items():
        if topic.startswith(DLQ_PREFIX):
            found[topic] = total
        await turn.breathe()
    return found
