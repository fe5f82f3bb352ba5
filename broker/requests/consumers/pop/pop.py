"""Which messages does a pop get, and when does one with nothing to give wait?

POP_MESSAGE (200050), at the master. A pop takes what a group was not given yet of one or of all queues of a
topic, and of the group's retry topic. Before the messages leave, a checkpoint in the revive topic says what
was taken; the group's offset moves when that is confirmed (``positions``). What is not acknowledged in time
comes back through the retry topic (``revive``).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.context import BrokerContext
from broker.requests.consumers.choosing import is_stalled, look, split
from broker.requests.consumers.offsets import need_own_group, need_pair
from broker.requests.consumers.pop.checks import (
    CHANCES,
    from_chance,
    need_count,
    need_invisible,
    need_readable,
    need_retry_topic,
    need_subscription,
    readable,
)
from broker.requests.consumers.pop.codec import Checkpoint
from broker.requests.consumers.pop.held import HeldPop
from broker.requests.consumers.pop.log import PopLog
from broker.requests.consumers.pop.order import Key, OrderTable
from broker.requests.consumers.pop.polling import SERVED, Polling, Steps
from broker.requests.properties import changed, has
from broker.requests.send import SendProcessor
from broker.state.clients import SQL92, Subscription
from model.codes import Response
from model.errors import Refused
from model.message import RETRY_PREFIX
from model.pop import (
    INIT_MIN,
    ORDER_REVIVE_QUEUE,
    POP_CK,
    ExtraInfo,
    message_offsets_text,
    order_counts_text,
    pop_retry_topic,
    retry_kind,
    start_offsets_text,
)
from remoting.codec import Command
from remoting.pop_headers import PopAnswer, PopHeader
from remoting.service import Connection
from runtime.turns import Turns, in_slices
from store.files.record import decode, encode
from store.flow.reading import GetStatus, Got
from store.flow.writing import Put

log = logging.getLogger(__name__)

LATE_MS: Final = 500
"""A pop that comes so long after it wanted to be answered is answered POLLING_TIMEOUT, as in the original."""
BYTES_MAX: Final = 4 * 1024 * 1024
QUEUES_AT_ONCE: Final = 32
"""Looked at in one step: a topic may have 65,535."""
BEHIND_MAX: Final = 2048
"""Looked at in the step in which something was found; one that is read counts as ``QUEUES_AT_ONCE``. That is
enough for the most messages of a pop, for ``restNum`` of a thousand queues, and a few ms."""
_ELSEWHERE: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
_PASSED: Final = (GetStatus.NO_MATCHED, GetStatus.OFFSET_FOUND_NULL)


@dataclass(slots=True)
class Taken:
    """What one pop has so far."""

    header: PopHeader
    subscription: Subscription
    pop_time_ms: int
    revive_queue: int
    records: list[bytes] = field(default_factory=list)
    size: int = 0
    rest: int = 0
    cut: bool = False
    """An expression was not asked about all there is."""
    ended: bool = False
    """Behind what was found there are queues that were not looked into: ``rest`` says nothing of them."""
    starts: list[tuple[str, int, int]] = field(default_factory=list)
    offsets: list[tuple[str, int, list[int]]] = field(default_factory=list)
    order_counts: list[str] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.header.count_max - len(self.records) if self.size < BYTES_MAX else 0

    def answer(self) -> PopAnswer:
        return PopAnswer(
            self.pop_time_ms,
            self.header.invisible_ms,
            self.revive_queue,
            self.rest,
            start_offsets_text(self.starts),
            message_offsets_text(self.offsets),
            ";".join(self.order_counts),
        )


class PopProcessor:
    """Answers 200050."""

    def __init__(
        self,
        context: BrokerContext,
        sender: SendProcessor,
        pop_log: PopLog,
        polling: Polling,
        orders: OrderTable,
        turns: Turns,
    ) -> None:
        self._context = context
        self._config = context.config
        self._sender = sender
        self._log = pop_log
        self._polling = polling
        self._orders = orders
        self._turns = turns
        self._popped = 0
        self._put_off = False
        polling.serve = self.serve

    async def pop(self, connection: Connection, request: Command) -> Command | None:
        """The messages, or None while the pop is held or its checkpoint is not safe. Raises Refused."""
        header = PopHeader.parse(request.ext)
        now_ms = self._context.env.now_ms()
        born_ms = header.born_ms or now_ms
        if now_ms - born_ms - header.poll_ms > LATE_MS:
            raise Refused(
                f"the broker[{self._config.broker_ip1}] pop message is timeout too much",
                Response.POLLING_TIMEOUT,
            )
        self._context.trust.need_seen(connection, request, header.topic)
        self._allowed(header)
        effort = self._context.effort
        if header.expression_type == SQL92 and effort.is_busy:
            async with effort.turn(connection):
                pass
        effort.read(header.expression, header.expression_type)
        subscription = need_subscription(
            self._context, header.topic, header.expression, header.expression_type
        )
        await self._context.admit(connection, request)
        before = self._context.store.dispatched
        if subscription.chooses is None:
            taken = self._begin(header, subscription)
            await in_slices(self._turns, connection, self._take(taken))
        else:
            taken = await self._searched(connection, header, subscription, born_ms)
        if taken.records:
            return self._answer(connection, request, taken)
        wait_ms = born_ms + header.poll_ms - self._context.env.now_ms()
        code = self._polling.hold(connection, request, header, subscription, wait_ms)
        if code is None:
            if before != self._context.store.dispatched:
                self._polling.more(header)  # something came, may be to a queue that was looked at before
            return None
        return self._nothing(request, taken, code)

    async def _searched(
        self, connection: Connection, header: PopHeader, subscription: Subscription, born_ms: int
    ) -> Taken:
        """What an expression chooses: all queues are looked at in as many turns as that needs, until there is
        something or the pop is to be answered. Raises Refused."""

        def looks() -> Steps[Taken]:
            while True:
                taken = self._begin(header, subscription)
                for _ in self._take(taken, waits=lambda: not is_over()):
                    yield
                    if connection.closed:
                        return taken
                if taken.records or not taken.cut or is_over():
                    return taken
                yield
                self._need_still(header)

        def is_over() -> bool:
            return connection.closed or self._context.env.now_ms() >= born_ms + header.poll_ms

        return await self._context.effort.through(connection, looks())

    def serve(self, held: HeldPop, last: bool) -> Steps[Command | None]:
        """What to answer a pop that waited; SERVED when that is on its way, None: it waits on. Raises
        Refused."""
        header, subscription = held.header, held.subscription
        assert isinstance(header, PopHeader), "pops alone wait here"
        assert subscription is not None, "a pop says what it wants"
        self._context.trust.need_still(held.passed)
        self._need_still(header)
        taken = self._begin(header, subscription)
        for _ in self._take(taken, waits=lambda: not last):
            yield
            if not (last or held.waits):
                return SERVED
        if taken.records:
            return self._answer(held.connection, held.request, taken) or SERVED
        if taken.cut:
            self._polling.more(header)
        return self._nothing(held.request, taken, Response.POLLING_TIMEOUT) if last else None

    def tick(self) -> None:
        """Called each second: those that were given nothing are tried again once answers have room."""
        if self._put_off and not self._context.pending_acks.is_full:
            self._put_off = False
            self._polling.look_at_all()

    def _need_still(self, header: PopHeader) -> None:
        """Raises Refused: much may have changed since the pop came."""
        self._allowed(header)
        refused = self._context.refuse_write()
        if refused is not None:
            raise refused

    def _allowed(self, header: PopHeader) -> None:
        context = self._context
        need_own_group(header.group)
        need_count(context, header.count_max)
        need_readable(context, header.group, header.topic, header.queue_id, "pop message is forbidden")
        need_invisible(context, header.invisible_ms)
        need_retry_topic(context, header.topic, header.group)
        need_pair(context, header.group, header.topic)

    # Taking

    def _begin(self, header: PopHeader, subscription: Subscription) -> Taken:
        revive_queue = ORDER_REVIVE_QUEUE if header.order else self._popped % self._config.revive_queues
        self._popped += 1
        return Taken(header, subscription, self._context.env.now_ms(), revive_queue)

    def _take(self, taken: Taken, *, waits: Callable[[], bool] = lambda: False) -> Steps[None]:
        """All that there is for a pop; what is taken is in the log. Some queues in which there is nothing are
        a step; what was found goes out in the same one, whatever is behind very many others: the role may
        change between two. Raises Refused. ``waits()``: for each expression's outcome."""
        left = BEHIND_MAX
        for number, (topic, queue_id) in enumerate(self._places(taken), 1):
            while (cost := self._take_queue(taken, topic, queue_id, waits)) is None:
                yield
                if not self._goes_on(taken):
                    return
            if taken.records:
                left -= cost
                if left <= 0:
                    taken.ended = True
                    return
            elif not number % QUEUES_AT_ONCE:
                yield
                if not self._goes_on(taken):
                    return

    def _goes_on(self, taken: Taken) -> bool:
        """Whether more may be taken, a step later. Raises Refused."""
        self._need_still(taken.header)
        taken.pop_time_ms = self._context.env.now_ms()
        return self._is_open()

    def _is_open(self) -> bool:
        """Whether anything may be taken now."""
        if self._log.full or not self._log.ready:
            return False
        if self._context.pending_acks.is_full:
            self._put_off = True  # as if there were none; see ``tick``
            return False
        return True

    def _places(self, taken: Taken) -> Iterator[tuple[str, int]]:
        """The queues to look into."""
        header, chance = taken.header, self._context.env.random.randrange(CHANCES)
        if not self._is_open():
            return
        retry_first = chance < self._config.pop_retry_percent
        if retry_first and not header.order:
            yield from self._retries(taken, chance)
        if header.queue_id < 0:
            yield from self._queues(header.topic, chance)
        else:
            yield header.topic, header.queue_id
        if not retry_first and not header.order and taken.room > 0:
            yield from self._retries(taken, chance)

    def _queues(self, name: str, chance: int) -> Iterator[tuple[str, int]]:
        for queue_id in from_chance(self._context, readable(self._context, name), chance):
            yield name, queue_id

    def _retries(self, taken: Taken, chance: int) -> Iterator[tuple[str, int]]:
        """The queues of one retry topic, and of the other one if there was nothing for this pop: the texts of
        the answer have room for one alone."""
        header, v2 = taken.header, self._config.retry_topic_v2
        names = [pop_retry_topic(header.topic, header.group, v2=v2)]
        if v2 and self._config.retry_topic_v1_too:
            names.append(pop_retry_topic(header.topic, header.group, v2=False))
        # The original leaves it to chance; one that is empty would let the messages of the other one wait.
        at, before = chance % len(names), len(taken.starts)
        for name in names[at:] + names[:at]:
            if len(taken.starts) == before:
                yield from self._queues(name, chance)

    def _take_queue(self, taken: Taken, topic: str, queue_id: int, waits: Callable[[], bool]) -> int | None:
        """What ``taken`` has room for, of one queue; what that cost (see ``BEHIND_MAX``). None: it is to be
        looked into once more, where ``waits()``. Raises Refused when the log takes no checkpoint; then what
        was taken before is lost to this answer, and comes back."""
        header, store = taken.header, self._context.store
        offset = self._first(header, topic, queue_id)
        if header.order:
            key = (topic, header.group, queue_id)
            if self._orders.blocks(key, header.attempt_id, self._context.env.monotonic_ms(), offset):
                return 1  # what waits there is none that could be had: it must not wake anybody
        end = store.max_queue_offset(topic, queue_id)
        over = taken.subscription.chooses is not None and self._context.effort.is_over
        if over and end > offset and not taken.records and waits():
            return None
        taken.cut |= over and end > offset
        if taken.room <= 0 or over:
            taken.rest += max(0, end - offset)
            return 1
        if end == offset and self._context.topics.first_offset(topic, queue_id) <= offset:
            self._context.stats.missed_total += 1  # there are very many such queues where there are many
            return 1
        return QUEUES_AT_ONCE if self._read_queue(taken, topic, queue_id, offset, waits) else None

    def _read_queue(
        self, taken: Taken, topic: str, queue_id: int, offset: int, waits: Callable[[], bool]
    ) -> bool:
        """``_take_queue``, where there is room; whether it is done."""
        header = taken.header
        got = self._get(taken, topic, queue_id, offset)
        if got.status in _ELSEWHERE and got.next_offset != offset:
            log.info(
                "%s/%d of %s: %d is not there, going on at %d",
                topic,
                queue_id,
                header.group,
                offset,
                got.next_offset,
            )
            offset = got.next_offset
            self._log.moved(topic, header.group, queue_id, offset)
            got = self._get(taken, topic, queue_id, offset)
        if got.status is GetStatus.FOUND:
            self._found(taken, topic, queue_id, offset, got)
        else:
            if is_stalled(got, offset) and not taken.records and waits():
                return False
            self._context.stats.missed_total += 1
            if got.status in _PASSED and got.next_offset > offset:
                self._log.moved(topic, header.group, queue_id, got.next_offset)
            taken.cut |= got.status is GetStatus.NO_MATCHED and got.next_offset < got.max_offset
        taken.rest += max(0, got.max_offset - got.next_offset)
        return True

    def _found(self, taken: Taken, topic: str, queue_id: int, offset: int, got: Got) -> None:
        header = taken.header
        records = [record for chunk in got.chunks for record in split(chunk)]
        offsets = [_queue_offset(record) for record in records]
        if header.order:
            self._in_order(taken, (topic, header.group, queue_id), offset, offsets)
        else:
            self._check_in(taken, topic, queue_id, offset, offsets, got.next_offset)
        taken.starts.append((topic, queue_id, offset))
        taken.offsets.append((topic, queue_id, offsets))
        if (
            topic.startswith(RETRY_PREFIX)
            and topic != header.topic
            and not self._config.pop_actual_retry_topic
        ):
            records = [self._as_sent(taken, topic, offset, record) for record in records]
        taken.records += records
        size = sum(map(len, records))
        taken.size += size
        self._context.got(topic, header.group, len(records), size, self._context.env.monotonic_ms())

    def _in_order(self, taken: Taken, key: Key, start: int, offsets: list[int]) -> None:
        """The offset stays until the messages are acknowledged: there is no checkpoint."""
        topic, _, queue_id = key
        header = taken.header
        times = (taken.pop_time_ms, header.invisible_ms)
        at_ms = self._context.env.monotonic_ms()
        counts, least = self._orders.popped(key, header.attempt_id, *times, offsets, start, at_ms)
        taken.order_counts.append(order_counts_text(topic, queue_id, counts, least))

    def _check_in(
        self, taken: Taken, topic: str, queue_id: int, offset: int, offsets: list[int], next_offset: int
    ) -> None:
        """Write down what is taken of a queue."""
        header = taken.header
        point = Checkpoint(
            offset,
            taken.pop_time_ms,
            header.invisible_ms,
            queue_id,
            topic,
            header.group,
            self._config.broker_name,
            [one - offset for one in offsets],
        )
        taken.puts.append(self._log.write_checkpoint(point, taken.revive_queue, next_offset))

    def _as_sent(self, taken: Taken, topic: str, start: int, raw: bytes) -> bytes:
        """A message of the retry topic under the topic it was sent to. Its extra info says where it lies."""
        record = decode(raw, check_crc=False)
        info = ExtraInfo(
            start,
            taken.pop_time_ms,
            taken.header.invisible_ms,
            taken.revive_queue,
            retry_kind(topic),
            self._config.broker_name,
            record.queue_id,
            record.queue_offset,
        )
        put = {} if has(record.properties, POP_CK) else {POP_CK: info.to_text()}
        message = dataclasses.replace(
            record.message(), topic=taken.header.topic, properties=changed(record.properties, put)
        )
        try:
            return encode(message, record.queue_offset, record.physical_offset, record.store_timestamp_ms)
        except Refused:
            return raw  # no room for the extra info; its client finds it by the retry topic

    def _first(self, header: PopHeader, topic: str, queue_id: int) -> int:
        """Where the group goes on in a queue; one that never was there begins as it asks to."""
        found = self._log.known(topic, header.group, queue_id)
        if found is not None:
            return found
        context = self._context
        offset = context.min_offset(topic, queue_id)
        if header.init_mode != INIT_MIN and topic == header.topic:
            memory = context.env.memory_bytes() * self._config.in_memory_ratio // 100
            if offset > 0 or context.store.bytes_behind(topic, queue_id, 0) > memory:
                offset = max(0, context.store.max_queue_offset(topic, queue_id) - 1)
        self._log.moved(topic, header.group, queue_id, offset)
        return offset

    def _get(self, taken: Taken, topic: str, queue_id: int, offset: int) -> Got:
        subscription, context = taken.subscription, self._context
        first = context.topics.first_offset(topic, queue_id)
        if offset < first:
            end = context.store.max_queue_offset(topic, queue_id)
            return Got(GetStatus.OFFSET_TOO_SMALL, first, first, end, [], 0)
        bytes_max = max(1, min(self._config.transfer_bytes_in_memory, BYTES_MAX) - taken.size)
        if subscription.chooses is None:
            return context.store.get(
                topic, queue_id, offset, taken.room, bytes_max, subscription.codes or None
            )
        return look(
            lambda at, count: context.store.get(topic, queue_id, at, count, bytes_max, None),
            subscription.chooses,
            offset,
            taken.room,
            bytes_max,
            context.effort,
        )

    # Answering

    def _answer(self, connection: Connection, request: Command, taken: Taken) -> Command | None:
        answer = request.reply(remark="FOUND", ext=taken.answer().to_ext(), body=b"".join(taken.records))
        if taken.rest > 0 or taken.ended:
            self._polling.more(taken.header)
        if not taken.puts:
            return answer
        return self._sender.answer(connection, request, answer, taken.puts, wait=True)

    def _nothing(self, request: Command, taken: Taken, code: int) -> Command:
        return request.reply(code, remark="NO_MESSAGE_IN_QUEUE", ext=taken.answer().to_ext())


def _queue_offset(raw: bytes) -> int:
    return int.from_bytes(raw[20:28], "big")


def nothing_more(request: Command) -> Command:
    """The answer to a pop that waited at a broker whose role ended."""
    return request.reply(Response.POLLING_TIMEOUT, remark="NO_MESSAGE_IN_QUEUE", ext={})
