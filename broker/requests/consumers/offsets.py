"""Where does a group stand in a queue, and where does a queue begin and end?

QUERY_CONSUMER_OFFSET (14), UPDATE_CONSUMER_OFFSET (15), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30),
GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32), GET_ALL_CONSUMER_OFFSET (43).
"""

from __future__ import annotations

from broker.context import BrokerContext
from broker.requests.answers import dialect
from broker.state.current_role import HANDING_OVER
from broker.upkeep.acting import ONLY_FORWARD
from model.codes import Request, Response
from model.errors import Refused
from model.topic import is_system_group
from remoting.codec import Command
from remoting.headers import OffsetHeader, QueueHeader, need_int, opt_bool
from remoting.service import Connection


class OffsetProcessor:
    """Answers 14, 15, 29, 30, 31, 32 and 43."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def query(self, connection: Connection, request: Command) -> Command:
        """The group's offset; 22 when it has none and must not begin at the queue's start."""
        header = OffsetHeader.parse(request.code, request.ext)
        offset = self._context.offsets.get(header.group, header.topic, header.queue_id)
        if offset is None:
            # A young queue is read from its start even by a group that asked for "last": nothing that was
            # sent before the group's first pull gets lost. An old or a long one is left to the client's
            # consumeFromWhere.
            offset = self._context.topics.first_offset(header.topic, header.queue_id)
            least = self._context.store.min_queue_offset(header.topic, header.queue_id)
            if not header.set_zero_if_not_found or least > offset or self._on_disk(header, offset):
                return request.reply(
                    Response.QUERY_NOT_FOUND, remark="Not found, maybe this group consumer boot first"
                )
        return _offset(request, offset)

    def _on_disk(self, header: OffsetHeader, offset: int) -> bool:
        """Whether a message is taken to have left the memory: the original's ``checkInDiskByConsumeOffset``.
        (Since 5.1 it asks the system whether the page is in its cache, which a restart empties.)"""
        context = self._context
        memory = context.env.memory_bytes() * context.config.in_memory_ratio // 100
        return context.store.bytes_behind(header.topic, header.queue_id, offset) > memory

    async def update(self, connection: Connection, request: Command) -> Command:
        header = OffsetHeader.parse(Request.UPDATE_CONSUMER_OFFSET, request.ext)
        context = self._context
        need_own_group(header.group)
        # What is answered OK once a master hands over would not be handed on: it waits for the outcome.
        await context.role_state.handed_over(connection, request)
        if context.role_state.handing_over:
            raise Refused(HANDING_OVER, Response.SERVICE_NOT_AVAILABLE)
        if not context.role_state.keeps_offsets:
            # Offsets live at the master and come to slaves from there; kept here they would be overwritten.
            raise Refused("this broker is not the master: commit offsets there", Response.SYSTEM_ERROR)
        handed_on = opt_bool(request.ext, ONLY_FORWARD)
        groups = context.groups
        group = groups.find(header.group) if handed_on else groups.table.get(header.group)
        if group is None:
            # A commit makes no group, whatever autoCreateSubscriptionGroup says. What a slave hands on was
            # of one when it was told: it is not lost because this broker has not heard of it.
            raise Refused(f"Group {header.group} not exist!", Response.SUBSCRIPTION_GROUP_NOT_EXIST)
        topic = context.topics.get(header.topic)
        if topic is None:
            raise Refused(f"Topic {header.topic} not exist!", Response.TOPIC_NOT_EXIST)
        if not 0 <= header.queue_id < max(topic.read_queues, topic.write_queues):
            raise Refused(
                f"queueId {header.queue_id} is not one of {header.topic}", Response.INVALID_PARAMETER
            )
        if header.commit_offset is None or header.commit_offset < 0:
            raise Refused(f"commitOffset={header.commit_offset} is not an offset", Response.SYSTEM_ERROR)
        offset = header.commit_offset
        if handed_on:
            # From a slave that acted for a master: consumers may have told this one more since.
            known = context.offsets.get(header.group, header.topic, header.queue_id)
            offset = max(min(offset, context.store.next_offset(header.topic, header.queue_id)), known or 0)
        if not note_offset(context, header.group, header.topic, header.queue_id, offset):
            return request.reply(remark="Offset has been previously reset")
        return request.reply()

    async def search(self, connection: Connection, request: Command) -> Command:
        header = QueueHeader.parse(request.ext)
        timestamp_ms = need_int(request.ext, "timestamp")
        upper = request.ext.get("boundaryType", "LOWER").upper() == "UPPER"
        offset = self._context.store.offset_by_time(header.topic, header.queue_id, timestamp_ms, upper=upper)
        return _offset(request, max(offset, self._context.topics.first_offset(header.topic, header.queue_id)))

    async def maximum(self, connection: Connection, request: Command) -> Command:
        header = QueueHeader.parse(request.ext)
        return _offset(request, self._context.queue_end(header.topic, header.queue_id))

    async def minimum(self, connection: Connection, request: Command) -> Command:
        header = QueueHeader.parse(request.ext)
        return _offset(request, self._context.min_offset(header.topic, header.queue_id))

    async def earliest(self, connection: Connection, request: Command) -> Command:
        header = QueueHeader.parse(request.ext)
        stored_ms = earliest_ms(self._context, header.topic, header.queue_id)
        return request.reply(ext={"timestamp": str(stored_ms)})

    async def everything(self, connection: Connection, request: Command) -> Command:
        async with self._context.turns.take(connection) as turn:
            await self._context.offsets.prepare(turn)
            return request.reply(body=await dialect(turn, self._context.offsets.to_text()))


def need_own_group(group: str) -> None:
    """Raises Refused for a group of the broker's: its offsets say what the broker itself has done."""
    if is_system_group(group):
        raise Refused(f"the offsets of {group} are the broker's own", Response.NO_PERMISSION)


def need_pair(context: BrokerContext, group: str, topic: str) -> None:
    """Raises Refused unless the group may have offsets in the topic: it has some, or there is room for one
    more pair. Who asks again may find some, when topics or groups were deleted."""
    if not context.offsets.has_room(group, topic):
        most = context.config.offset_pairs_max
        text = f"{most} pairs of a topic and a group have offsets (maxConsumerOffsetPairs), {group} none yet"
        raise Refused(f"{text} in {topic}", Response.SYSTEM_BUSY)


def note_offset(context: BrokerContext, group: str, topic: str, queue_id: int, offset: int) -> bool:
    """A consumer tells how far its group is, at a broker that keeps offsets; False: that was before they were
    reset, and is not noted. Raises Refused."""
    offsets = context.offsets
    if not offsets.has(group, topic):
        need_pair(context, group, topic)
    if context.role_state.is_master:
        if offsets.resets.count:
            now_ms = context.env.monotonic_ms()
            if offsets.reset_stands(group, topic, queue_id, now_ms) is not None:
                return False
        # One that read more at a former master than this one got must not skip what is written there next.
        offset = min(offset, context.store.next_offset(topic, queue_id))
        offsets.commit(group, topic, queue_id, offset)
    else:
        offsets.hold_for_master(group, topic, queue_id, offset)
    return True


def note_offsets(
    context: BrokerContext, group: str, topic: str, commits: list[tuple[int, int]], *, beyond: bool
) -> None:
    """``note_offset`` of pulls that were answered, of a group that has offsets in the topic; nothing at a
    broker that keeps none. ``beyond``: an offset may be behind the end of its queue."""
    if beyond or not context.role_state.is_master or context.offsets.resets.count:
        for queue_id, offset in commits if context.role_state.keeps_offsets else ():
            note_offset(context, group, topic, queue_id, offset)
    else:
        context.offsets.commit_all(group, topic, commits)


def earliest_ms(context: BrokerContext, topic: str, queue_id: int) -> int:
    """When the first message of a queue was stored, ms; -1 for an empty queue."""
    return stored_ms(context, topic, queue_id, context.min_offset(topic, queue_id))


def stored_ms(context: BrokerContext, topic: str, queue_id: int, offset: int) -> int:
    """When the message at ``offset`` of a queue was stored, ms; -1 when there is none."""
    found = context.store.queue_store_time(topic, queue_id, offset)
    return -1 if found is None else found


def _offset(request: Command, offset: int) -> Command:
    return request.reply(ext={"offset": str(offset)})
