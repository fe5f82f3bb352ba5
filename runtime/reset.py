"""How does one end a connection so that nothing sent on it arrives any more?"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

_AT_ONCE: Final = struct.pack("ii", 1, 0)  # struct linger: on, 0 s


def reset(transport: asyncio.Transport) -> None:
    """End the connection, and what the kernel has not delivered with it.

    ``abort`` alone forgets what is in this process only: behind a broken link the kernel sends the rest again
    for many minutes, and a request that timed out long ago would be carried out when the link is back.
    """
    own = transport.get_extra_info("socket")
    if own is not None and not transport.is_closing():
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()
