"""How far is each group, and what stands in the revive topic?

Every checkpoint and every acknowledgement is a record of its own, at once. (The original can merge them in
memory before; ``enablePopBufferMerge`` is off there, too.) The original sends each through its timers, which
put it into the revive queue when the invisible time is over; here it lies there from the start, and
``revive`` waits. ``TIMER_DELIVER_MS`` says when it is due all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.context import BrokerContext
from broker.requests.consumers.pop.codec import CK_TAG, Ack, Checkpoint
from broker.requests.consumers.pop.positions import Key, Positions, passed
from broker.requests.send import SendProcessor
from broker.state.pop_counts import ACK, CHECKPOINT, PopCounts
from model.message import BORN_HOST_V6, STORE_HOST_V6, TAGS, UNIQ_KEY, encode_properties
from model.pop import TIMER_DELIVER_MS, revive_topic
from store.files.record import NewMessage
from store.flow.dispatching.arrivals import Arrival, Listening
from store.flow.writing import Put

ACK_TIME_MS: Final = 1000
"""A checkpoint is due so long before its messages come back, an acknowledgement with them."""


class PopLog:
    """Writes the revive topic of a master, and moves the offsets of its groups."""

    def __init__(self, context: BrokerContext, sender: SendProcessor) -> None:
        self.topic = revive_topic(context.config.cluster_name)
        self.open_checkpoints = 0
        """As the revive service counts them."""
        self.ready = False
        """Whether what the former master popped was read, so that it is not popped again."""
        self.counts = PopCounts()
        self._context = context
        self._sender = sender
        self.positions = Positions()
        self._committed: dict[Key, int | None] = {}  # of queues with a commit on its way: what the table says
        self._leads = False
        self._said: set[tuple[str, str, int | None]] = set()
        """Topic, group and queue (None: all): an operator said where they go on while this broker led
        and did not know of the former master's pops yet."""
        self._listening = Listening(context.store.on_arrive, self._arrived)
        context.offsets.on_reset.append(self._was_reset)
        context.role_state.on_change.append(self._role_changed)
        context.copies.noting = self.noting

    @property
    def full(self) -> bool:
        """Whether so much is not acknowledged that nothing more is to be popped."""
        return self.open_checkpoints + len(self.positions) >= self._context.config.checkpoints_max

    def revive_queues(self) -> list[int]:
        """Those that pops go to by now, and those they went to while ``reviveQueueNum`` was another."""
        there = self._context.store.queues_of(self.topic)
        return sorted({*range(self._context.config.revive_queues), *there})

    # Offsets

    def known(self, topic: str, group: str, queue_id: int) -> int | None:
        """Where a group goes on in a queue; None if it never was there."""
        key = (topic, group, queue_id)
        table = self._context.offsets.get(group, topic, queue_id)
        here = self.positions.get(key)
        if here is not None and table == self._committed.get(key):
            return here
        self._forget(key)  # its offset was reset
        return table

    def offset(self, topic: str, group: str, queue_id: int) -> int:
        """As ``known``; where the queue begins for a group that never was there."""
        found = self.known(topic, group, queue_id)
        return self._context.min_offset(topic, queue_id) if found is None else found

    def moved(self, topic: str, group: str, queue_id: int, offset: int, end: int = 0) -> None:
        """A group goes on at ``offset``, for good once the log is confirmed up to ``end``."""
        key = (topic, group, queue_id)
        if self.positions.get(key) is None:
            self._committed[key] = self._context.offsets.get(group, topic, queue_id)
            self._context.offsets.reserve(group, topic)
        self._context.offsets.end_reset(group, topic, queue_id)
        self.positions.popped(key, offset, end)
        self._listening.begin()
        self.note()

    def note(self) -> None:
        """Commit what is confirmed by now."""
        if not self._context.role_state.is_master:
            return
        # Of several for one queue the last one alone counts.
        confirmed = self._context.store.confirmed
        for key, offset in dict(self.positions.confirmed(confirmed)).items():
            topic, group, queue_id = key
            if self._context.offsets.get(group, topic, queue_id) != self._committed[key]:
                self._forget(key)
                continue
            self._context.offsets.commit(group, topic, queue_id, offset)
            self._committed[key] = offset
            if self.positions.get(key) is None:
                del self._committed[key]
        if self.ready:  # before, a former master's pops may be missing
            self._context.offsets.pops_to = confirmed

    def noting(self) -> Callable[[], bool]:
        """Asks whether the offsets hold each pop that is in the log by now, for good. Then who takes over
        with them moves none of them by such a pop: not one that an operator just set."""
        self._context.store.append_waiting()
        end = self._context.store.log.end

        def is_noted() -> bool:
            self.note()
            noted = self._context.offsets.pops_to
            if noted is None or noted < end:
                return False
            self._context.offsets.touch()  # up to where they hold them goes with what was set
            return True

        return is_noted

    def on_former_pops(self, points: Iterable[Checkpoint]) -> None:
        """A former master wrote these checkpoints lately, in this order. The offsets may not have reached
        this broker: what was popped would be popped again. What an operator said since this broker leads is
        newer."""
        pops: dict[Key, list[tuple[int, int]]] = {}
        for point in points:
            pair = (point.topic, point.group)
            if not self._said & {(*pair, None), (*pair, point.queue_id)}:
                pops.setdefault((*pair, point.queue_id), []).append((point.start, point.last))
        for (topic, group, queue_id), rows in pops.items():
            known = self._context.offsets.get(group, topic, queue_id)
            offset = passed(known, rows)
            if offset is not None and offset != known:
                self._context.offsets.commit(group, topic, queue_id, offset)

    def clear(self) -> None:
        """The role ended: what was not confirmed may not be there."""
        self.positions.clear()
        for topic, group, _ in self._committed:
            self._context.offsets.release(group, topic)
        self._committed.clear()
        self.open_checkpoints = 0
        self.ready = False
        self._leads = False
        self._said.clear()

    def _role_changed(self) -> None:
        if self._context.role_state.is_master and not self._leads:
            self._leads = True
            self._said.clear()

    def _was_reset(self, group: str, topic: str, queue_id: int | None) -> None:
        """An operator says where the group goes on, may be where it was before its pops under way."""
        if self._leads and not self.ready:
            self._said.add((topic, group, queue_id))
        for key in list(self._committed):
            if key[:2] == (topic, group) and queue_id in (None, key[2]):
                self._forget(key)

    def _forget(self, key: Key) -> None:
        self.positions.drop(key)
        if key in self._committed:
            del self._committed[key]
            self._context.offsets.release(key[1], key[0])

    def _arrived(self, arrived: Sequence[Arrival]) -> None:
        if not len(self.positions):
            self._listening.end()
        elif any(arrival[0] == self.topic for arrival in arrived):
            self.note()

    # Records

    def write_checkpoint(self, point: Checkpoint, queue_id: int, next_offset: int | None = None) -> Put:
        """Raises Refused. ``next_offset``: where the group goes on behind what was popped."""
        due_ms = max(0, point.revive_time_ms - ACK_TIME_MS)
        record = self._record(queue_id, CK_TAG, point.unique_id(), due_ms, point.encode())
        put = self._sender.put([record])[0]
        self.counts.put(point.topic, point.group, CHECKPOINT)
        if next_offset is not None:
            end = put.physical_offset + put.size
            self.moved(point.topic, point.group, point.queue_id, next_offset, end)
        return put

    def write_ack(self, ack: Ack, queue_id: int, due_ms: int) -> Put:
        """Raises Refused."""
        put = self._sender.put([self.ack_record(ack, queue_id, due_ms)])[0]
        self.counts.put(ack.topic, ack.group, ACK)
        return put

    def ack_record(self, ack: Ack, queue_id: int, due_ms: int) -> NewMessage:
        """To be put together with other messages."""
        return self._record(queue_id, ack.tag, ack.unique_id(), due_ms, ack.encode())

    def _record(self, queue_id: int, tag: str, unique_id: str, due_ms: int, body: bytes) -> NewMessage:
        context = self._context
        context.topics.ensure(self.topic, context.config.revive_queues)
        host = context.store_host
        properties = {TAGS: tag, UNIQ_KEY: unique_id, TIMER_DELIVER_MS: str(due_ms)}
        return NewMessage(
            topic=self.topic,
            queue_id=queue_id,
            flag=0,
            sys_flag=BORN_HOST_V6 | STORE_HOST_V6 if len(host) == 20 else 0,
            born_timestamp_ms=context.env.now_ms(),
            born_host=host,
            store_host=host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=body,
            properties=encode_properties(properties),
        )
