"""How do a few bytes leave at once, without the transport's own steps for each write?

A transport of uvloop keeps what is written until the turn of the loop ends, and counts as unread till then.
While a transport has nothing of its own to send, its socket takes the same bytes directly.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

from runtime import native
from runtime.env import Buffer

NO_DESCRIPTOR: Final = -1
PARTS_MAX: Final = 256
"""Of one write; the system takes 1024 (IOV_MAX)."""


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Of a plain TCP connection, valid until the transport tells ``connection_lost``; ``NO_DESCRIPTOR`` of
    any other: what TLS encrypts, and simulated ones."""
    if transport.get_extra_info("sslcontext") is not None:
        return NO_DESCRIPTOR
    fileno = getattr(transport.get_extra_info("socket"), "fileno", None)
    return NO_DESCRIPTOR if fileno is None else int(fileno())


def taken_of(descriptor: int, data: bytes) -> int:
    """How many of these bytes the system took: less than all when it has no room, or when the connection is
    broken, of which the transport tells at its next write."""
    try:
        return os.write(descriptor, data)
    except OSError:
        return 0


def _all_taken(descriptors: Sequence[int], parts: Sequence[bytes]) -> tuple[int, int]:
    for at, (descriptor, data) in enumerate(zip(descriptors, parts, strict=True)):
        sent = taken_of(descriptor, data)
        if sent < len(data):
            return at, sent
    return len(parts), 0


_module: Final = native.module()
all_taken: Final[Callable[[list[int], list[bytes]], tuple[int, int]]] = (
    _all_taken if _module is None else _module.all_taken
)
"""``all_taken(descriptors, parts)``: hands each part to its descriptor, in this order, until the system takes
less than all of one. How many it took whole, and how many bytes of that one."""


def handed(descriptor: int, parts: list[Buffer], size: int) -> Buffer:
    """What the system did not take of ``parts``, ``size`` bytes, in one; nothing of it is copied while it
    takes all."""
    if len(parts) > PARTS_MAX:
        parts = [b"".join(parts)]
    try:
        sent = os.writev(descriptor, parts)
    except OSError:
        sent = 0
    if sent == size:
        return b""
    return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))[sent:]
