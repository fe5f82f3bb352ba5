"""What do operators tell a broker to do now rather than later?

CLEAN_EXPIRED_CONSUMEQUEUE (306), CLEAN_UNUSED_TOPIC (316), DELETE_EXPIRED_COMMITLOG (329),
UPDATE_AND_GET_GROUP_FORBIDDEN (353), NOTIFY_MIN_BROKER_ID_CHANGE (905), RESET_MASTER_FLUSH_OFFSET (908).
"""

from __future__ import annotations

import logging

from broker.context import BrokerContext
from model.codes import Response
from model.errors import DiskError, Refused
from remoting import bodies
from remoting.codec import Command
from remoting.headers import need, need_int, opt_bool
from remoting.service import Connection

log = logging.getLogger(__name__)


class MaintenanceProcessor:
    """Answers 306, 316, 329, 353, 905 and 908."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def clean_queues(self, connection: Connection, request: Command) -> Command:
        """Let queues, index and epochs begin where the log begins.

        For 316, too: the queues of a deleted topic keep their numbers as long as the log has its messages.
        """
        log.warning("%s asked to clean the queues", connection.remote)
        try:
            await self._context.store.retention.follow_log_start()
        except (DiskError, OSError) as error:
            raise Refused(f"cleaning the queues failed: {error}", Response.SYSTEM_ERROR) from error
        return request.reply()

    async def delete_expired(self, connection: Connection, request: Command) -> Command:
        """Delete segments older than ``fileReservedTime``, at whatever hour it is."""
        log.warning("%s asked to delete expired segments", connection.remote)
        try:
            gone = await self._context.store.retention.round(any_hour=True)
        except (DiskError, OSError) as error:
            raise Refused(f"deleting expired segments failed: {error}", Response.SYSTEM_ERROR) from error
        log.info("deleted %d expired segments", gone)
        return request.reply()

    async def forbid(self, connection: Connection, request: Command) -> Command:
        """Say whether a group may read a topic (``readable``), and what holds now."""
        context = self._context
        group, topic = need(request.ext, "group"), need(request.ext, "topic")
        if request.ext.get("readable") is not None:
            refused = context.copies.refuse()
            if refused is not None:
                raise refused
            if context.groups.find(group) is None:
                raise Refused(
                    f"No group in this broker. group: {group}", Response.SUBSCRIPTION_GROUP_NOT_EXIST
                )
            context.groups.forbid(group, topic, forbidden=not opt_bool(request.ext, "readable"))
            await context.copies.wait_for_copies("groups")
        readable = context.groups.may_read(group, topic)
        return request.reply(body=bodies.dumps({"group": group, "readable": readable, "topic": topic}))

    async def note_least_broker(self, connection: Connection, request: Command) -> Command:
        """A NameServer says which broker of the group has the least id. The Controllers, or the routes, say
        it to keelmq brokers: nothing follows."""
        need_int(request.ext, "minBrokerId")
        return request.reply()

    async def reset_flushed(self, connection: Connection, request: Command) -> Command:
        """The flushed offset of a master, for slaves that start with it. Ours ask the master: nothing
        follows, as at a master of the original."""
        return request.reply()
