"""Which message has this offset, and which have this key?

VIEW_MESSAGE_BY_ID (33) and QUERY_MESSAGE (12). Like a pull, both show only what is confirmed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.context import BrokerContext
from model.acl.plain import Perm
from model.codes import Response
from model.errors import Refused
from model.message import PROPERTIES_BYTES_MAX
from remoting.acl.gate import NeededRight
from remoting.codec import Command
from remoting.headers import QueryMessageHeader, need_int
from remoting.service import Connection
from store.files.record import decode

QUERY_COUNT_MAX: Final = 64
TOPIC_BYTES_MAX: Final = 255
"""Of the names that records and folders of queues have."""
READ: Final = NeededRight(("Sub", "Get"), Perm.SUB)
INDEX_WAIT_S: Final = 2.0
"""So long a look-up waits for the index after a start: less than a client waits for the answer."""


class QueryProcessor:
    """Answers 12 and 33."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def view(self, connection: Connection, request: Command) -> Command:
        offset = need_int(request.ext, "offset", 0)
        raw = self._context.store.lookup(offset) if offset < self._context.store.confirmed else None
        if raw is None:
            raise Refused(f"can not find message by the offset, {offset}", Response.SYSTEM_ERROR)
        topic = decode(raw, check_crc=False).topic
        self._context.trust.need_record(connection, request, topic, READ)
        return request.reply(body=raw)

    async def query(self, connection: Connection, request: Command) -> Command:
        header = QueryMessageHeader.parse(request.ext)
        self._context.trust.need_seen(connection, request, header.topic)
        count_max = max(1, min(header.count_max, QUERY_COUNT_MAX))
        store = self._context.store
        if store.indexing_bytes:  # after a start: an answer now could miss what is there
            try:
                async with asyncio.timeout(INDEX_WAIT_S):
                    await store.indexed()
            except TimeoutError:
                text = f"the index is being made, {store.indexing_bytes} bytes of the log are left; try again"
                raise Refused(text, Response.SYSTEM_BUSY) from None
        found: list[bytes] = []
        # What is longer lies in no store: it is not hashed, a key of megabytes would hold the loop.
        if len(header.key) <= PROPERTIES_BYTES_MAX and len(header.topic) <= TOPIC_BYTES_MAX:
            async with self._context.turns.take(connection) as turn:
                found = await store.query_in_turns(
                    header.topic, header.key, count_max, header.begin_ms, header.end_ms, turn
                )
        if not found:
            raise Refused("can not find message, maybe time range not correct", Response.QUERY_NOT_FOUND)
        now_ms = self._context.env.now_ms()
        ext = {
            "indexLastUpdateTimestamp": str(now_ms),
            "indexLastUpdatePhyoffset": str(self._context.store.dispatched),
        }
        return request.reply(ext=ext, body=b"".join(found))
