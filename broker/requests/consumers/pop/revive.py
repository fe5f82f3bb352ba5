"""How do messages come back that were popped and not acknowledged in time?

On the master a task reads each queue of the revive topic. What ``core`` says is due goes into the pop retry
topic of its group, from which the group pops it again. How far a queue is done is an offset of the group
``CID_RMQ_SYS_REVIVE_GROUP``, as in the original: the last place that need not be read again. It moves when
what came back is confirmed, so a successor finds open what its master had not brought into safety. The
broker acknowledges in the revive queue what it brought back, in one piece with it: the offset may lie far
behind, before a checkpoint that is open for hours, and a successor that reads from there brings nothing back
twice.

There is no last try here: consumers send a message that came back too often to the dead letter topic
themselves (CONSUMER_SEND_MSG_BACK), as the original's clients and its proxy do.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.context import BrokerContext
from broker.requests.consumers.pop.codec import ACK_TAG, BATCH_ACK_TAG, CK_TAG, Ack, Checkpoint
from broker.requests.consumers.pop.core import OpenCheckpoints
from broker.requests.consumers.pop.log import PopLog
from broker.requests.moving import once_more, records_of
from broker.requests.properties import changed, has
from broker.requests.send import SendProcessor
from broker.state.pop_counts import ACK, CHECKPOINT
from model.errors import MqError, PeerError
from model.message import (
    BORN_HOST_V6,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    STORE_HOST_V6,
    TAGS,
    property_of,
)
from model.pop import FIRST_POP_TIME, ORIGIN_GROUP, REVIVE_GROUP, normal_topic, pop_retry_topic
from runtime.backoff import Backoff
from runtime.loops import level_triggered
from runtime.report.lasting import lasting
from runtime.turns import Slice
from store.files.consume_queue import is_queue_name
from store.files.record import PROP_CRC_BYTES, NewMessage, Record
from store.flow.reading import GetStatus

log = logging.getLogger(__name__)

RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 1000
BATCH: Final = 256
BATCH_BYTES: Final = 1 << 20
UNREADABLE_MS: Final = 10_000
TAKE_OVER_S: Final = 0.05
RECENT_MS: Final = 6000
"""Offsets are copied within 200 ms and written each ``flushConsumerOffsetInterval``. Where they do not say of
which pops they tell (of an older version), what was popped longer before the end of the log is among them; an
offset that was reset since is not to be moved again."""
_GONE: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_ONE,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.NO_QUEUE,
    GetStatus.NO_MESSAGE_IN_QUEUE,
)


@dataclass(slots=True)
class Found:
    """What can come back of one pop now: queue offsets, and what is to be stored of each."""

    offsets: list[int] = field(default_factory=list)
    messages: list[NewMessage] = field(default_factory=list)
    unread: str = ""
    """Why another one cannot."""


class ReviveService:
    """Brings back while this broker is master; ``run`` is one task for all revive queues."""

    def __init__(
        self, context: BrokerContext, sender: SendProcessor, pop_log: PopLog, on_ready: Callable[[], None]
    ) -> None:
        self._context = context
        self._sender = sender
        self._log = pop_log
        self._queues: dict[int, OpenCheckpoints] = {}
        self._begins_at = 0  # where the log ended at the promotion
        self._on_ready = on_ready
        self._former: list[
            tuple[int, int, Checkpoint]
        ] = []  # place in the log, store time; until all was read
        self.revived = 0

    @lasting
    async def run(self) -> None:
        """Bring back what is due, for ever. Started on promotion, cancelled on demotion."""
        self._queues = {}
        self._former = []
        self._log.ready = False
        self._begins_at = self._context.store.log.end
        rest = Backoff(self._context.env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        await level_triggered(self._turn, asyncio.Event(), TAKE_OVER_S, rest, "bringing back popped messages")

    def behind(self) -> list[dict[str, int]]:
        """At a master, of each revive queue: what was not read yet, or is due and did not come back, and for
        how long (ms)."""
        if not self._context.role_state.is_master:
            return []
        now_ms, topic, found = self._context.env.now_ms(), self._log.topic, []
        for queue_id, queue in self._queues.items():
            late, since_ms = queue.late(now_ms)
            unread = max(0, self._context.store.max_queue_offset(topic, queue_id) - queue.read)
            found.append({"queueId": queue_id, "messages": unread + late, "behindMs": since_ms})
        return found

    async def _turn(self) -> float:
        """How many seconds to rest behind it."""
        context = self._context
        self._log.note()
        if context.store.dispatched < self._begins_at:
            return TAKE_OVER_S  # the log that was taken over is not in the queues yet
        if not self._queues:
            self._queues = {queue_id: self._begun(queue_id) for queue_id in self._log.revive_queues()}
        slice_ = Slice(context.env.monotonic_ms)
        for queue_id, queue in self._queues.items():
            if not await self._read(queue, queue_id, slice_) or not self._log.ready:
                continue
            if context.refuse_write() is None:
                await self._bring_back(queue, queue_id, slice_)
                while (point := queue.far()) is not None:
                    point.rewritten += 1
                    self._log.write_checkpoint(point, queue_id)
                    await slice_.breathe()
            self._commit(queue, queue_id)
        self._log.open_checkpoints = sum(map(len, self._queues.values()))
        if not self._log.ready:
            self._take_over()
            return 0.0
        return context.config.revive_interval_ms / 1000

    def _take_over(self) -> None:
        """All was read once: go on where the former master was."""
        self._former.sort(key=lambda row: row[0])  # the revive queues are one log, and pops go through all
        # What the offsets tell of was left out already. Times say little: a clock may have been ahead once.
        since_ms = -RECENT_MS
        if self._context.offsets.pops_to is None and self._former:
            since_ms = self._former[-1][1] - RECENT_MS
        self._log.on_former_pops(point for _, stored_ms, point in self._former if stored_ms >= since_ms)
        self._former = []
        self._log.ready = True
        self._log.note()
        self._on_ready()

    def _begun(self, queue_id: int) -> OpenCheckpoints:
        queue = OpenCheckpoints()
        done = self._context.offsets.get(REVIVE_GROUP, self._log.topic, queue_id)
        queue.read = 0 if done is None else done + 1
        return queue

    async def _read(self, queue: OpenCheckpoints, queue_id: int, slice_: Slice) -> bool:
        """Take in all that there is of a revive queue; whether its end was reached."""
        while True:
            got = self._context.store.get(self._log.topic, queue_id, queue.read, BATCH, BATCH_BYTES, None)
            for record in records_of(got.chunks):
                self._note(queue, queue_id, record)
            if got.status not in (GetStatus.FOUND, GetStatus.OFFSET_TOO_SMALL, GetStatus.NO_MATCHED):
                return True
            if got.next_offset <= queue.read:
                return True
            queue.read = got.next_offset
            await slice_.breathe()

    def _note(self, queue: OpenCheckpoints, queue_id: int, record: Record) -> None:
        tag = property_of(record.properties, TAGS)
        own = self._context.config.broker_name
        try:
            if tag == CK_TAG:
                point = Checkpoint.parse(record.body)
                self._log.counts.read(point.topic, point.group, CHECKPOINT, queue_id)
                point.broker = point.broker or own
                queue.on_checkpoint(point, record.queue_offset)
                if not self._log.ready and not point.rewritten and self._is_news(record):
                    self._former.append((record.physical_offset, record.store_timestamp_ms, point))
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = Ack.parse(record.body, batch=tag == BATCH_ACK_TAG)
                self._log.counts.read(ack.topic, ack.group, ACK, queue_id)
                ack.broker = ack.broker or own
                queue.on_ack(ack)
        except PeerError as error:
            log.warning("the revive topic's record at %d is none: %s", record.physical_offset, error)

    def _is_news(self, record: Record) -> bool:
        """Whether the offsets do not tell of a checkpoint, as far as they say."""
        pops_to = self._context.offsets.pops_to
        return pops_to is None or record.physical_offset + record.size > pops_to

    async def _bring_back(self, queue: OpenCheckpoints, queue_id: int, slice_: Slice) -> None:
        now_ms, monotonic_ms = self._context.env.now_ms(), self._context.env.monotonic_ms()
        while (point := queue.due(now_ms, monotonic_ms)) is not None:
            try:
                found = self._messages(point)
                end = self._put(point, found, queue_id) if found.offsets else 0
                if found.unread:
                    self._later(queue, point, found.unread)
                else:
                    queue.settled(point, end)
            except (OSError, ValueError, struct.error, LookupError) as error:
                self._later(queue, point, str(error))
            except MqError as error:
                if self._context.refuse_write() is not None:
                    raise
                self._later(queue, point, str(error))
            await slice_.breathe()

    def _put(self, point: Checkpoint, found: Found, queue_id: int) -> int:
        """All of it or nothing; where it ends in the log. Raises Refused."""
        ack = Ack(
            found.offsets,
            point.start,
            point.group,
            point.topic,
            point.queue_id,
            point.pop_time_ms,
            point.broker,
            batch=True,
        )
        record = self._log.ack_record(ack, queue_id, point.revive_time_ms)
        put = self._sender.put([*found.messages, record], stored_before=True)[-1]
        for offset in found.offsets if found.unread else ():
            point.ack(offset)
        self._log.counts.put(point.topic, point.group, ACK)
        self._log.counts.revived(point.topic, point.group, len(found.offsets))
        self.revived += len(found.offsets)
        return put.physical_offset + put.size

    def _later(self, queue: OpenCheckpoints, point: Checkpoint, why: str) -> None:
        log.warning(
            "popped messages of %s/%d at %d cannot come back now: %s",
            point.topic,
            point.queue_id,
            point.start,
            why,
        )
        env = self._context.env
        queue.later(point, env.now_ms(), env.monotonic_ms() + UNREADABLE_MS)

    def _messages(self, point: Checkpoint) -> Found:
        """What comes back of one pop. One message that cannot be read keeps no other one."""
        context = self._context
        found = Found()
        topic = normal_topic(point.topic, point.group)
        if context.topics.get(topic) is None or context.groups.find(point.group) is None:
            return found  # nobody is there any more to want it
        name = point.topic
        if not name.startswith(RETRY_PREFIX):
            name = pop_retry_topic(name, point.group, v2=context.config.retry_topic_v2)
        if not is_queue_name(name, 0):
            return found
        first = context.topics.first_offset(point.topic, point.queue_id)
        for offset in point.unacked():
            if offset < first:
                continue  # of the topic that had this name before
            got = context.store.get(point.topic, point.queue_id, offset, 1, 1, None)
            if got.status in _GONE:
                continue
            record = next(records_of(got.chunks), None)
            if record is None or record.queue_offset != offset:
                found.unread = f"{offset} is not readable ({got.status.name})"
                continue
            found.offsets.append(offset)
            found.messages.append(self._again(record, name, point))
        if found.offsets:
            context.topics.ensure(name, 1)
            if context.offsets.get(point.group, name, 0) is None:
                context.offsets.commit(point.group, name, 0, 0)
        return found

    def _again(self, record: Record, name: str, point: Checkpoint) -> NewMessage:
        host = self._context.store_host
        v6 = BORN_HOST_V6 | STORE_HOST_V6
        properties = record.properties
        told = {ORIGIN_GROUP: point.group}
        if record.reconsume_times == 0 or not has(properties, FIRST_POP_TIME):
            told = {FIRST_POP_TIME: str(point.pop_time_ms), **told}
        for key, value in told.items():
            longer = changed(properties, {key: value})
            if len(longer.encode("utf-8", "surrogateescape")) + PROP_CRC_BYTES <= PROPERTIES_BYTES_MAX:
                properties = longer  # else it comes back without: better than not at all
        return NewMessage(
            topic=name,
            queue_id=0,
            flag=record.flag,
            sys_flag=record.sys_flag & ~v6 | (v6 if len(host) == 20 else 0),
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=host,
            store_host=host,
            reconsume_times=record.reconsume_times if point.suspended else once_more(record.reconsume_times),
            prepared_transaction_offset=0,
            body=record.body,
            properties=properties,
        )

    def _commit(self, queue: OpenCheckpoints, queue_id: int) -> None:
        done = queue.progress(self._context.store.confirmed)
        known = self._context.offsets.get(REVIVE_GROUP, self._log.topic, queue_id)
        if done >= 0 and (known is None or done > known):
            self._context.offsets.commit(REVIVE_GROUP, self._log.topic, queue_id, done)
