"""What is there for a group that pops, without taking it?

PEEK_MESSAGE (200052), NOTIFICATION (200054) and POLLING_INFO (200055). A notification waits as a pop does.
"""

from __future__ import annotations

from broker.context import BrokerContext
from broker.requests.consumers.pop.checks import CHANCES, from_chance, need_readable, readable
from broker.requests.consumers.pop.held import HeldPop
from broker.requests.consumers.pop.log import PopLog
from broker.requests.consumers.pop.order import OrderTable
from broker.requests.consumers.pop.polling import SERVED, Polling, Steps
from broker.requests.consumers.pop.pop import BYTES_MAX, QUEUES_AT_ONCE
from model.codes import Response
from model.pop import MESSAGES_MAX, pop_retry_topic
from remoting.codec import Command
from remoting.headers import flag
from remoting.pop_headers import LookHeader, PopAnswer
from remoting.service import Connection
from runtime.turns import Turns, in_slices
from store.flow.reading import GetStatus

FORBIDDEN = "peeking message is forbidden"


class LookProcessor:
    """Answers 200052, 200054 and 200055. ``pops``: those that wait; ``polling``: notifications that do."""

    def __init__(
        self,
        context: BrokerContext,
        pop_log: PopLog,
        orders: OrderTable,
        pops: Polling,
        polling: Polling,
        turns: Turns,
    ) -> None:
        self._context = context
        self._log = pop_log
        self._orders = orders
        self._pops = pops
        self._polling = polling
        self._turns = turns
        polling.serve = self.serve

    async def peek(self, connection: Connection, request: Command) -> Command:
        """Messages a pop would be given. Raises Refused."""
        header = self._header(connection, request, peek=True)
        return await in_slices(self._turns, connection, self._peeked(request, header))

    def _peeked(self, request: Command, header: LookHeader) -> Steps[Command]:
        context = self._context
        chance = context.env.random.randrange(CHANCES)
        count_max = min(max(header.count_max, 0), MESSAGES_MAX)
        chunks: list[bytes] = []
        count = size = rest = 0
        retries = self._retry_topics(header)
        queues = self._queues(header, chance)
        places = [*retries, *queues] if chance % 5 == 0 else [*queues, *retries]
        for number, (topic, queue_id) in enumerate(places, 1):
            if not number % QUEUES_AT_ONCE:
                yield
            offset = max(self._log.offset(topic, header.group, queue_id), context.min_offset(topic, queue_id))
            rest += max(0, context.store.max_queue_offset(topic, queue_id) - offset)
            if count >= count_max or size >= BYTES_MAX:
                continue
            got = context.store.get(topic, queue_id, offset, count_max - count, BYTES_MAX - size, None)
            if got.status is GetStatus.FOUND:
                chunks += got.chunks
                count += got.count
                size += sum(map(len, got.chunks))
        ext = PopAnswer(0, 0, 0, rest).to_ext()
        del ext["startOffsetInfo"], ext["msgOffsetInfo"]
        if not chunks:
            return request.reply(Response.PULL_NOT_FOUND, remark="NO_MESSAGE_IN_QUEUE", ext=ext)
        context.got(header.topic, header.group, count, size, context.env.monotonic_ms())
        return request.reply(remark="FOUND", ext=ext, body=b"".join(chunks))

    async def notify(self, connection: Connection, request: Command) -> Command | None:
        """Whether there is something to pop; waits while there is not. Raises Refused."""
        header = self._header(connection, request, poll=True)
        before = self._context.store.dispatched
        if await in_slices(self._turns, connection, self._has_messages(header)):
            return has_messages(request, True)
        now_ms = self._context.env.now_ms()
        wait_ms = (header.born_ms or now_ms) + header.poll_ms - now_ms
        code = self._polling.hold(connection, request, header, None, wait_ms)
        if code is None:
            if before != self._context.store.dispatched:
                self._polling.more(header)  # something came, may be to a queue that was looked at before
            return None
        return has_messages(request, False, full=code == Response.POLLING_FULL)

    def serve(self, held: HeldPop, last: bool) -> Steps[Command | None]:
        """The answer to a notification that waited; None: it waits on."""
        assert isinstance(held.header, LookHeader), "notifications alone wait here"
        self._context.trust.need_still(held.passed)
        found = yield from self._has_messages(held.header)
        if not (last or held.waits):
            return SERVED
        return has_messages(held.request, found) if found or last else None

    async def polling_info(self, connection: Connection, request: Command) -> Command:
        """How many pops of the group wait for a queue. Raises Refused."""
        header = self._header(connection, request)
        number = self._pops.waiting(header.topic, header.group, header.queue_id)
        return request.reply(ext={"pollingNum": str(number)})

    def _header(
        self, connection: Connection, request: Command, *, peek: bool = False, poll: bool = False
    ) -> LookHeader:
        header = LookHeader.parse(request.ext, peek=peek, poll=poll)
        self._context.trust.need_seen(connection, request, header.topic)
        need_readable(self._context, header.group, header.topic, header.queue_id, FORBIDDEN)
        return header

    def _has_messages(self, header: LookHeader) -> Steps[bool]:
        places = [*self._queues(header, 0), *self._retry_topics(header)]
        for number, (topic, queue_id) in enumerate(places, 1):
            if self._has(header, topic, queue_id):
                return True
            if not number % QUEUES_AT_ONCE:
                yield
        return False

    def _has(self, header: LookHeader, topic: str, queue_id: int) -> bool:
        offset = self._log.offset(topic, header.group, queue_id)
        if header.order:
            key, at_ms = (header.topic, header.group, queue_id), self._context.env.monotonic_ms()
            if self._orders.blocks(key, header.attempt_id, at_ms, offset):
                return False
        return self._context.store.max_queue_offset(topic, queue_id) > offset

    def _queues(self, header: LookHeader, chance: int) -> list[tuple[str, int]]:
        if header.queue_id >= 0:
            return [(header.topic, header.queue_id)]
        queues = from_chance(self._context, readable(self._context, header.topic), chance)
        return [(header.topic, queue_id) for queue_id in queues]

    def _retry_topics(self, header: LookHeader) -> list[tuple[str, int]]:
        config = self._context.config
        names = [pop_retry_topic(header.topic, header.group, v2=config.retry_topic_v2)]
        if config.retry_topic_v2 and config.retry_topic_v1_too:
            names.append(pop_retry_topic(header.topic, header.group, v2=False))
        return [(name, at) for name in names for at in readable(self._context, name)]


def has_messages(request: Command, found: bool, *, full: bool = False) -> Command:
    """The answer to a notification."""
    return request.reply(ext={"hasMsg": flag(found), "pollingFull": flag(full)})
