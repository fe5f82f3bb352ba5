"""What travels on the HA port of a group without Controller: offsets one way, the log the other.

    slave -> master, 8 bytes            master -> slave, 12 bytes + body
    at  size  field  unit               at  size  field      unit
     0     8  end    bytes               0     8  offset     bytes (PhysicalOffset)
                                         8     4  body size  bytes; 0 = heartbeat

The slave speaks first, and says where its log ends (0: it is empty), or an offset before, to compare what it
has from there. No broker id is said. Integers are signed and big-endian. Source of the format: Apache
RocketMQ 5.x, ``store/ha`` (DefaultHAClient, DefaultHAConnection).
"""

from __future__ import annotations

import struct
from typing import Final

from ha.wire.codec import BODY_BYTES_MAX, OFFSET_MAX, Ack, Transfer
from ha.wire.inflow import Inflow
from model.errors import PeerError
from model.ids import NO_EPOCH, PhysicalOffset

_REPORT = struct.Struct(">q")
_TRANSFER = struct.Struct(">qi")

REPORT_BYTES: Final = _REPORT.size
TRANSFER_BYTES: Final = _TRANSFER.size
assert (REPORT_BYTES, TRANSFER_BYTES) == (8, 12)

_NO_OFFSET: Final = PhysicalOffset(0)


def encode_report(end: PhysicalOffset) -> bytes:
    return _REPORT.pack(end)


def encode_header(offset: PhysicalOffset, size: int) -> bytes:
    """The 12 bytes that go before ``size`` bytes of log; ``size`` 0 makes a heartbeat."""
    return _TRANSFER.pack(offset, size)


class ReportReader:
    """What a master reads from one slave: a stream cut anywhere -> how far the slave is."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Ack]:
        """The newest report ``data`` completes, if any: those before it say less. Raises PeerError."""
        self._buffer += data
        whole = len(self._buffer) // REPORT_BYTES * REPORT_BYTES
        if not whole:
            return []
        ends = [end for (end,) in _REPORT.iter_unpack(bytes(self._buffer[:whole]))]
        del self._buffer[:whole]
        if min(ends) < 0:
            raise PeerError(f"slave reported offset {min(ends)}")
        return [Ack(ends[-1])]


class TransferReader:
    """What a slave reads from its master. A frame says nothing of epochs and confirmOffset: both are 0."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._inflow = Inflow()
        self.room, self.peek = self._inflow.room, self._inflow.peek
        self._body_bytes_max = body_bytes_max

    def came(self, size: int) -> list[Transfer]:
        """The frames that ``size`` more bytes in ``room`` complete. Raises PeerError."""
        inflow = self._inflow
        inflow.end += size
        view, at, end = inflow.view, inflow.start, inflow.end
        frames: list[Transfer] = []
        while end - at >= TRANSFER_BYTES:
            offset, size = _TRANSFER.unpack_from(view, at)
            if not 0 <= size <= self._body_bytes_max or not 0 <= offset <= OFFSET_MAX - size:
                raise PeerError(f"master's frame has offset {offset} and {size} bytes")
            begin = at + TRANSFER_BYTES
            if end < begin + size:
                break
            body = view[begin : begin + size] if size else b""
            frames.append(Transfer(offset, NO_EPOCH, _NO_OFFSET, _NO_OFFSET, body))
            at = begin + size
        inflow.start = at
        return frames
