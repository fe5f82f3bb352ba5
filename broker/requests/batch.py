"""How does a long batch become records without holding the event loop?

Thousands of messages are taken apart and encoded in slices (``runtime/turns``); only their places in the log
are filled in at the end, in one piece, so a batch is stored as a whole or not at all. What its connection
sends meanwhile waits for it: sends of one connection are stored in the order they came.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

from broker.requests.properties import changed
from broker.requests.send_format import holds_own
from model.codes import Response
from model.errors import Refused
from model.message import BROKERS_OWN
from remoting.service import Connection

READ_MESSAGES_MAX: Final = 2048
"""The fast path takes no batch that would make more messages than so many of one read: 5 us each."""
INNER: Final = struct.Struct(">iiiii")
INNER_BYTES_MIN: Final = INNER.size + 2
LONG_BYTES: Final = 256 * INNER_BYTES_MIN
"""A body of fewer bytes is no long batch."""
BORN_HOST: Final = "born_host"
"""The attribute of a connection with its host's bytes, as records have them; empty: it is no address."""
PULLS: Final = "pulls"
"""The attribute of a connection on which pulls came that could be answered at once."""
_LINE: Final = "sends_behind_a_batch"
"""The attribute of a connection whose sends wait for each other."""


def inner_messages(body: bytes, most: int) -> Iterator[tuple[int, bytes, str]]:
    """(flag, body, properties) of each message of a packed batch; the properties are as the client wrote
    them, but for those that only a broker writes. Raises Refused."""
    at = count = 0
    while at < len(body):
        if count == most:
            raise Refused(
                f"the batch has more than {most} messages (maxMessagesInBatch)", Response.MESSAGE_ILLEGAL
            )
        try:
            total, _, _, flag, size = INNER.unpack_from(body, at)
            properties_at = at + 20 + size
            (properties_bytes,) = struct.unpack_from(">h", body, properties_at)
            end = at + total
            if size < 0 or properties_bytes < 0 or properties_at + 2 + properties_bytes != end:
                raise ValueError("lengths do not add up")
            if end > len(body):
                raise ValueError("it ends too early")
            text = body[properties_at + 2 : end].decode()
        except (struct.error, ValueError) as error:
            raise Refused(f"the batch is broken at byte {at}: {error}", Response.MESSAGE_ILLEGAL) from None
        if holds_own(text):
            text = changed(text, {}, BROKERS_OWN)
        yield flag, body[at + 20 : properties_at], text
        at = end
        count += 1
    if not count:
        raise Refused("the batch is empty", Response.MESSAGE_ILLEGAL)


class _InOrder:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # fair: who came first goes on first
        self.count = 0


@asynccontextmanager
async def in_order(connection: Connection, body: bytes) -> AsyncIterator[None]:
    """Begin a send behind those of its connection that are under way, if one of them may be a long batch."""
    found: _InOrder | None = connection.attributes.get(_LINE)
    if found is None and len(body) < LONG_BYTES:
        yield
        return
    order = found or connection.attributes.setdefault(_LINE, _InOrder())
    order.count += 1
    try:
        async with order.lock:
            yield
    finally:
        order.count -= 1
        if not order.count:
            del connection.attributes[_LINE]
