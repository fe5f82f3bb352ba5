"""What happens to a popped message that its consumer has handled, or wants to keep for longer?

ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151) and CHANGE_MESSAGE_INVISIBLETIME (200053), at the master.
Each is a record of the revive topic. The answer leaves when that is safe: what a client heard to be
acknowledged does not come back after a failover.
"""

from __future__ import annotations

from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.consumers.offsets import need_pair
from broker.requests.consumers.pop.checks import need_group, need_invisible, need_queue
from broker.requests.consumers.pop.codec import Ack, Checkpoint
from broker.requests.consumers.pop.log import PopLog
from broker.requests.consumers.pop.order_acks import OrderAcks
from broker.requests.send import SendProcessor
from model.codes import Response
from model.errors import PeerError, Refused
from model.pop import MESSAGES_MAX, ORDER_REVIVE_QUEUE, ExtraInfo, real_topic
from remoting.codec import Command
from remoting.named import acks_in
from remoting.pop_acks import BatchAck
from remoting.pop_headers import AckHeader
from remoting.request_bodies import request_object
from remoting.service import Connection
from runtime.turns import Slice
from store.flow.writing import Put

BATCH_ACKS_MAX: Final = 1024
"""Pops one request may acknowledge messages of."""
BATCH_AT_ONCE: Final = 64
"""A batch of no more waits for no other long request."""
BATCH_SPAN_MAX: Final = 65536
"""So far behind the first offset of a pop may its last one be."""
NO_BATCH: Final = "the body is not a batch of acks: {error}"


class AckProcessor:
    """Answers 200051, 200151 and 200053."""

    def __init__(
        self, context: BrokerContext, sender: SendProcessor, pop_log: PopLog, orders: OrderAcks
    ) -> None:
        self._context = context
        self._sender = sender
        self._log = pop_log
        self._orders = orders

    async def ack(self, connection: Connection, request: Command) -> Command | None:
        """Raises Refused."""
        header = AckHeader.parse(request.ext, change=False)
        store = self._context.store
        need_queue(self._context, header.topic, header.queue_id, header.group)
        need_group(self._context, header.group)
        least, end = (
            find(header.topic, header.queue_id) for find in (store.min_queue_offset, store.max_queue_offset)
        )
        if not least <= header.offset <= end:
            raise Refused(
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset},"
                f" store:{least}~{end}",
                Response.NO_MESSAGE,
            )
        info = _extra_info(header.extra_info)
        self._need_revive_queue(info.revive_queue)
        await self._context.admit(connection, request)
        if info.in_order:
            key = (header.topic, header.group, header.queue_id)
            self._orders.ack(key, header.offset, info.pop_time_ms)
            return request.reply()
        put = self._write(_ack_of(header, info), info)
        return self._sender.answer(connection, request, request.reply(), [put], wait=True)

    async def ack_batch(self, connection: Connection, request: Command) -> Command | None:
        """Raises Refused. As in the original, what is not there any more is passed over."""
        broker, found = self._parse(request)
        await self._context.admit(connection, request)
        if len(found) <= BATCH_AT_ONCE:
            puts = await self._acks(broker, found, Slice(self._context.env.monotonic_ms))
        else:
            async with self._context.turns.take(connection) as turn:
                puts = await self._acks(broker, found, turn)
        if not puts:
            return request.reply()
        return self._sender.answer(connection, request, request.reply(), puts, wait=True)

    async def _acks(self, broker: str, found: list[dict[str, Any]], slice_: Slice) -> list[Put]:
        """What is written; nothing, when one of them is none. Raises Refused."""
        rows = []
        for members in found:
            batch = _batch_of(members)
            rows.append((self._batch_ack(broker, batch), batch))
            await slice_.breathe()
        puts = []
        for ack, batch in rows:
            await slice_.breathe()
            refused = self._context.refuse_write()
            if refused is not None:
                raise refused  # what is written by now is acknowledged; the client asks again
            if batch.revive_queue == ORDER_REVIVE_QUEUE:
                for offset in ack.offsets:
                    self._orders.ack((ack.topic, ack.group, ack.queue_id), offset, ack.pop_time_ms)
            elif ack.offsets:
                due_ms = batch.pop_time_ms + batch.invisible_ms
                puts.append(self._log.write_ack(ack, batch.revive_queue, due_ms))
                self._count(ack)
        return puts

    async def change_invisible_time(self, connection: Connection, request: Command) -> Command | None:
        """A checkpoint of its own for the one message, then an acknowledgement of the former pop. Raises
        Refused."""
        header = AckHeader.parse(request.ext, change=True)
        assert header.invisible_ms is not None, "a change has one"
        store = self._context.store
        need_queue(self._context, header.topic, header.queue_id, header.group)
        need_group(self._context, header.group)
        need_invisible(self._context, header.invisible_ms)
        least, end = (
            find(header.topic, header.queue_id) for find in (store.min_queue_offset, store.max_queue_offset)
        )
        if not least <= header.offset < end:
            raise Refused("the message is not there", Response.NO_MESSAGE)
        info = _extra_info(header.extra_info)
        self._need_revive_queue(info.revive_queue)
        await self._context.admit(connection, request)
        if info.in_order:
            key = (header.topic, header.group, header.queue_id)
            return request.reply(
                ext=self._orders.change(key, header.offset, info.pop_time_ms, header.invisible_ms)
            )
        self._need_room()
        self._need_popped(header.topic, header.group)
        pop_time_ms = self._context.env.now_ms()
        if info.pop_time_ms - pop_time_ms > self._context.config.invisible_ms_max:
            raise Refused("the extra info is of a pop in the future", Response.INVALID_PARAMETER)
        if info.start == header.offset:
            # Both pops begin at this message: they must not be taken for one.
            pop_time_ms = max(pop_time_ms, info.pop_time_ms + 1)
        point = Checkpoint(
            header.offset,
            pop_time_ms,
            header.invisible_ms,
            header.queue_id,
            header.topic,
            header.group,
            info.broker,
            [0],
            suspended=header.suspend,
        )
        puts = [
            self._log.write_checkpoint(point, info.revive_queue),
            self._write(_ack_of(header, info), info),
        ]
        ext = {
            "popTime": str(pop_time_ms),
            "invisibleTime": str(header.invisible_ms),
            "reviveQid": str(info.revive_queue),
        }
        return self._sender.answer(connection, request, request.reply(ext=ext), puts, wait=True)

    def _write(self, ack: Ack, info: ExtraInfo) -> Put:
        put = self._log.write_ack(ack, info.revive_queue, info.pop_time_ms + info.invisible_ms)
        self._count(ack)
        return put

    def _count(self, ack: Ack) -> None:
        key = f"{ack.topic}@{ack.group}"
        now_ms = self._context.env.monotonic_ms()
        self._context.stats.counters.add("GROUP_ACK_NUMS", key, len(ack.offsets), now_ms)

    def _need_room(self) -> None:
        """A change of what was acknowledged or forged opens a checkpoint and closes none."""
        if self._log.full:
            most = self._context.config.checkpoints_max
            text = f"{most} pops are not acknowledged (popCkMaxBufferSize)"
            raise Refused(text, Response.SYSTEM_BUSY)

    def _need_popped(self, topic: str, group: str) -> None:
        """What comes back makes a retry topic, with an offset, for its topic and group: for those that popped
        alone. While the former master's last pops are read, for any there is room for."""
        if self._context.offsets.has(group, topic):
            return
        if self._log.ready:
            raise Refused(f"{group} popped nothing of {topic}", Response.NO_MESSAGE)
        need_pair(self._context, group, topic)

    def _need_revive_queue(self, queue_id: int) -> None:
        if queue_id == ORDER_REVIVE_QUEUE or queue_id < self._context.config.revive_queues:
            return
        if not self._context.store.next_offset(self._log.topic, queue_id):  # of former configurations
            raise Refused(f"reviveQid[{queue_id}] is illegal", Response.INVALID_PARAMETER)

    def _batch_ack(self, broker: str, batch: BatchAck) -> Ack:
        try:
            topic = real_topic(batch.topic, batch.group, batch.kind)
        except ValueError as error:
            raise Refused(str(error), Response.SYSTEM_ERROR) from None
        self._need_revive_queue(batch.revive_queue)
        need_group(self._context, batch.group)
        store = self._context.store
        found = self._context.topics.get(topic)
        offsets = []
        if found is not None and batch.queue_id < found.read_queues:
            least, end = (
                find(topic, batch.queue_id) for find in (store.min_queue_offset, store.max_queue_offset)
            )
            offsets = [batch.start + diff for diff in batch.diffs if least <= batch.start + diff <= end]
        return Ack(
            offsets, batch.start, batch.group, topic, batch.queue_id, batch.pop_time_ms, broker, batch=True
        )

    def _parse(self, request: Command) -> tuple[str, list[dict[str, Any]]]:
        """The broker's name and the acks, which ``_batch_of`` reads one by one. Raises Refused."""
        try:
            found: dict[str, Any] = request_object(request) if request.body else {}
            acks = acks_in(found)
            if not acks:
                raise Refused("a batch of acks has none", Response.NO_MESSAGE)
            if len(acks) > BATCH_ACKS_MAX:
                raise PeerError(f"acks is not a list of at most {BATCH_ACKS_MAX}")
            broker = found.get("brokerName")
            name = broker if isinstance(broker, str) and broker else self._context.config.broker_name
            return name, acks
        except PeerError as error:
            raise Refused(NO_BATCH.format(error=error), Response.SYSTEM_ERROR) from None


def _batch_of(found: dict[str, Any]) -> BatchAck:
    """What is acknowledged of one pop. Raises Refused."""
    try:
        return BatchAck.parse(found, BATCH_SPAN_MAX, MESSAGES_MAX)
    except PeerError as error:
        raise Refused(NO_BATCH.format(error=error), Response.SYSTEM_ERROR) from None


def _ack_of(header: AckHeader, info: ExtraInfo) -> Ack:
    return Ack(
        [header.offset],
        info.start,
        header.group,
        header.topic,
        header.queue_id,
        info.pop_time_ms,
        info.broker,
    )


def _extra_info(text: str) -> ExtraInfo:
    try:
        return ExtraInfo.parse(text)
    except ValueError as error:
        raise Refused(f"the extra info is none: {error}", Response.SYSTEM_ERROR) from None
