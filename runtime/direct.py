"""How do a few bytes leave at once, without the transport's own steps for each write?

A transport of uvloop keeps what is written until the turn of the loop ends, and counts as unread till then.
While a transport has nothing of its own to send, its socket takes the same bytes directly.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

NO_DESCRIPTOR: Final = -1


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Of a plain TCP connection, valid until the transport tells ``connection_lost``; ``NO_DESCRIPTOR`` of
    any other: what TLS encrypts, and simulated ones."""
    if transport.get_extra_info("sslcontext") is not None:
        return NO_DESCRIPTOR
    fileno = getattr(transport.get_extra_info("socket"), "fileno", None)
    return NO_DESCRIPTOR if fileno is None else int(fileno())


def taken(descriptor: int, data: bytes) -> int:
    """How many of the bytes the system took: none when it has no room, or when the connection is broken, of
    which the transport tells at its next write."""
    try:
        return os.write(descriptor, data)
    except OSError:
        return 0
