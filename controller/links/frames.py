"""How are messages cut out of a link's bytes, and how is each one proven?

    at  size  field
     0     4  length  bytes that follow, big-endian
     4        body    a Raft message (``controller.raft.codec``), or nothing: a sign of life
           32  mac     HMAC-SHA256 of frame number (8 bytes, big-endian) and body, by the sender's session key

Numbered MACs make a repeated, dropped or reordered frame end the connection. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from typing import Final

from controller.raft.codec import FRAME_BYTES_MAX
from model.errors import PeerError
from runtime.mac import MAC_BYTES, Keyed

_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")


class Frames:
    """Both directions of one link, each with its own session key and count."""

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._sending = Keyed(send_key)
        self._receiving = Keyed(receive_key)
        self._sent = self._taken = 0
        self._buffer = bytearray()

    def pack(self, body: bytes) -> bytes:
        """The next frame to send."""
        self._sent += 1
        proof = self._sending.mac(_NUMBER.pack(self._sent), body)
        return b"".join((_LENGTH.pack(len(body) + MAC_BYTES), body, proof))

    def feed(self, data: bytes) -> None:
        """Bytes arrived; ``take`` gives the frames that are whole."""
        self._buffer += data

    def take(self) -> bytes | None:
        """The next body, or None while it is not whole. Raises PeerError: this link must end."""
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        if not MAC_BYTES <= length <= FRAME_BYTES_MAX + MAC_BYTES:
            raise PeerError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return None
        body = bytes(buffer[_LENGTH.size : end - MAC_BYTES])
        given = bytes(buffer[end - MAC_BYTES : end])
        del buffer[:end]
        self._taken += 1
        if not self._receiving.is_mac(given, _NUMBER.pack(self._taken), body):
            raise PeerError("a frame fails its authentication")
        return body
