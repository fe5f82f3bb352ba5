"""How does one end of a simulated TCP connection act, as asyncio transport and as socket of a kernel?"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import zlib
from collections import deque
from collections.abc import Callable
from contextvars import Context
from enum import Enum, auto
from typing import Any, Final, Protocol, cast

from chaos.sim.loop import Life, SimLoop
from runtime.env import Buffer

WINDOW_BYTES: Final = 256 * 1024
"""Bytes on the way or unread at the receiver before a sender's kernel takes no more."""
READ_BYTES_MAX: Final = 256 * 1024
HIGH_WATER_BYTES: Final = 64 * 1024
_FIN: Final = b""
_BYTES_LIKE: Final = (bytes, bytearray, memoryview)


class _Rst:
    """Marks a reset among the packets of a direction."""


_RST: Final = _Rst()
_Packet = bytes | _Rst


class _State(Enum):
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


_OPEN: Final = _State.OPEN


class Accepts(Protocol):
    """A listening socket."""

    factory: Callable[[], asyncio.BaseProtocol]


class Wire(Protocol):
    """What lies between two ends: the cable, and what all kernels know of each other."""

    loop: SimLoop
    context: Context
    delivered: int

    def next_number(self) -> int: ...
    def add_end(self, end: SimTransport) -> None: ...
    def drop_end(self, end: SimTransport) -> None: ...
    def latency_s(self, source: str, target: str, size: int = 0) -> float: ...
    def is_cut(self, source: str, target: str) -> bool: ...
    def is_off(self, host: str) -> bool: ...
    def answer_with_reset(self, end: SimTransport, peer: SimTransport, delay_s: float) -> None: ...
    def slice_bytes(self, size: int) -> int: ...


class _Outgoing:
    """What one end sends: bytes its kernel has not taken yet, and packets on their way to the peer."""

    __slots__ = (
        "buffer",
        "buffer_bytes",
        "eof_written",
        "fin_sent",
        "held",
        "high",
        "last_due_s",
        "low",
        "paused",
        "unacked",
        "way",
    )

    def __init__(self) -> None:
        self.buffer: deque[bytes] = deque()
        self.buffer_bytes = 0
        self.way: deque[tuple[float, _Packet]] = deque()  # each with the moment it is due
        self.last_due_s = 0.0
        self.unacked = 0  # bytes the peer's process has not read yet (in flight or in its kernel)
        self.held = False  # packets wait in front of a cut link
        self.fin_sent = False
        self.eof_written = False
        self.paused = False  # the protocol was asked to pause writing
        self.high, self.low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    def drop_buffer(self) -> None:
        self.buffer.clear()
        self.buffer_bytes = 0


class _Incoming:
    """What arrived at one end's kernel, and whether its process reads."""

    __slots__ = ("delivering", "reading", "received")

    def __init__(self) -> None:
        self.received: deque[_Packet] = deque()
        self.reading = True
        self.delivering = False


class SimTransport(asyncio.Transport):
    """One end of a connection, and the direction from it to its peer."""

    def __init__(self, fabric: Wire, life: Life, local: tuple[str, int], remote: tuple[str, int]) -> None:
        super().__init__({"sockname": local, "peername": remote, "socket": self})
        self._fabric = fabric
        self.life = life
        self.host = local[0]
        self.peer_host = remote[0]
        self.peer: SimTransport | None = None
        self.number = fabric.next_number()
        self.alive = True
        """False once this end's socket no longer exists (closed and done, killed, power lost)."""
        self._silent = False
        self._protocol: asyncio.BaseProtocol | None = None
        self._context = life.context.copy()
        self._state = _OPEN
        self.out = _Outgoing()
        self._in = _Incoming()
        fabric.add_end(self)

    # Opening

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the client's end its protocol; runs in the life that connected."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._wake()

    def accept_by(self, listener: Accepts) -> None:
        """The server's process accepts when it next runs."""
        self._soon(self._accepted, listener)

    def _accepted(self, listener: Accepts) -> None:
        if not self.alive:
            return
        self.attach(listener.factory())

    # asyncio.Transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        if self._protocol is None:
            raise RuntimeError("this transport has no protocol yet")
        return self._protocol

    def is_closing(self) -> bool:
        return self._state is not _OPEN

    def is_reading(self) -> bool:
        return self._in.reading and self._state is _OPEN

    def pause_reading(self) -> None:
        self._in.reading = False

    def resume_reading(self) -> None:
        if self._state is _OPEN and not self._in.reading:
            self._in.reading = True
            self._wake()

    def get_write_buffer_size(self) -> int:
        return self.out.buffer_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.out.low, self.out.high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self.out.high, self.out.low = high, low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.out.fin_sent or self._state is not _OPEN:
            return
        self.out.eof_written = self.out.fin_sent = True
        self._send(_FIN)

    def write(self, data: Buffer) -> None:
        if type(data) is not bytes and not isinstance(data, _BYTES_LIKE):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self.out.eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not len(data) or self._state is not _OPEN:
            return
        self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._state is not _OPEN:
            return
        self._state = _State.CLOSING
        self._in.received.clear()
        if not self.out.fin_sent:
            self.out.fin_sent = True
            self._send(_FIN)
        if not self.out.buffer:
            self._soon(self._lost, None)

    def abort(self) -> None:
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self.out.drop_buffer()
        self._transmit(_RST)
        self._soon(self._lost, None)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """As the socket of this end: only ``SO_LINGER`` with no time means something here."""
        assert (level, option, value) == (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The kernel forgets what it has to send again; its one reset is lost on a cut link, too.
        if self.out.held:
            self.out.way.clear()

    # Sending

    def _send(self, packet: bytes) -> None:
        out = self.out
        if out.buffer or (out.unacked + len(packet) > WINDOW_BYTES and out.unacked):
            out.buffer.append(packet)
            out.buffer_bytes += len(packet)
            self._pause_writer()
        else:
            self._transmit(packet)

    def _transmit(self, packet: _Packet) -> None:
        if not self.alive:
            return
        fabric, out = self._fabric, self.out
        size = 0 if isinstance(packet, _Rst) else len(packet)
        due = fabric.loop.now_s + fabric.latency_s(self.host, self.peer_host, size)
        if due < out.last_due_s:
            due = out.last_due_s
        out.last_due_s = due
        out.unacked += size
        out.way.append((due, packet))
        fabric.loop.call_at(due, self.arrive, context=fabric.context)

    def arrive(self) -> None:
        """The network's side: hand the packets that are due to the peer's kernel."""
        fabric, out = self._fabric, self.out
        if out.held or not out.way:
            return
        if fabric.is_cut(self.host, self.peer_host):
            out.held = True
            return
        way, loop, peer = out.way, fabric.loop, self.peer
        while way and way[0][0] <= loop.now_s:
            packet = way.popleft()[1]
            fabric.delivered += 1
            if isinstance(packet, _Rst):
                loop.note(self.number, -1)
            else:  # ``note``, without the call: most of what is noted
                told = (loop.trace, loop.now_s, self.number, len(packet), zlib.crc32(packet))
                loop.trace = hash(told)
            if peer is not None:
                peer.receive(packet)

    def acked(self, size: int) -> None:
        """The peer's process read ``size`` bytes: the window opens."""
        out = self.out
        out.unacked -= size
        while out.buffer and (out.unacked + len(out.buffer[0]) <= WINDOW_BYTES or not out.unacked):
            packet = out.buffer.popleft()
            out.buffer_bytes -= len(packet)
            self._transmit(packet)
        if self._state is _State.CLOSING and not out.buffer:
            self._soon(self._lost, None)
        elif out.paused and out.buffer_bytes <= out.low:
            out.paused = False
            self._soon(self._resume_writer)

    def _pause_writer(self) -> None:
        if self.out.buffer_bytes > self.out.high and not self.out.paused and self._protocol is not None:
            self.out.paused = True
            cast(Any, self._protocol).pause_writing()

    def _resume_writer(self) -> None:
        if self._protocol is not None and self._state is _OPEN:
            cast(Any, self._protocol).resume_writing()

    # Receiving

    def receive(self, packet: _Packet) -> None:
        """A packet arrives at this end's kernel."""
        if self._silent and self._fabric.is_off(self.host):
            return
        if not self.alive:
            # The socket is gone: anything but a reset is answered with one.
            peer = self.peer
            if packet is not _RST and packet != _FIN and peer is not None and peer.alive:
                delay_s = self._fabric.latency_s(self.host, self.peer_host)
                self._fabric.answer_with_reset(self, peer, delay_s)
            return
        if packet is _RST:
            self.receive_reset()
            return
        if self._state is not _OPEN:
            if isinstance(packet, bytes) and self.peer is not None:
                self.peer.acked(len(packet))
            return
        into = self._in
        into.received.append(packet)
        if not into.delivering and self._protocol is not None:
            into.delivering = True
            self._fabric.loop.call_soon(self._deliver, context=self._context)

    def receive_reset(self) -> None:
        if not self.alive or self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self._in.received.clear()
        self.out.drop_buffer()
        self._soon(self._lost, ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _wake(self) -> None:
        if self._in.received and not self._in.delivering and self._protocol is not None:
            self._in.delivering = True
            self._soon(self._deliver)

    def _deliver(self) -> None:
        """The process reads from its socket; runs in its life."""
        into, protocol = self._in, self._protocol
        into.delivering = False
        if self._state is not _OPEN or not into.reading or not into.received or protocol is None:
            return
        data = self._take()
        try:
            if data:
                self._hand_over(protocol, data)
            elif not cast(asyncio.Protocol, protocol).eof_received():
                self.close()
        except Exception as error:  # noqa: BLE001
            # asyncio's transports do the same: a protocol that raises loses its connection, and it is heard.
            self._fabric.loop.call_exception_handler(
                {"message": "Fatal error: protocol call failed.", "exception": error, "transport": self}
            )
            self._fail(error)
            return
        if into.received:
            self._wake()

    def _take(self) -> bytes:
        """What one read of the socket returns: all bytes before a FIN, sometimes only some of them."""
        received = self._in.received
        data = received.popleft()
        if not data or isinstance(data, _Rst):
            return b""
        if received:
            parts, size = [data], len(data)
            while received and size < READ_BYTES_MAX and received[0] and received[0] is not _RST:
                part = cast(bytes, received.popleft())
                parts.append(part)
                size += len(part)
            data = b"".join(parts)
        kept = self._fabric.slice_bytes(len(data))
        if kept < len(data):
            received.appendleft(data[kept:])
            data = data[:kept]
        peer = self.peer
        if peer is not None:
            if peer.out.buffer or peer.out.paused or peer._state is not _OPEN:
                peer.acked(len(data))
            else:
                peer.out.unacked -= len(data)  # nobody waits for it
        return data

    def _hand_over(self, protocol: asyncio.BaseProtocol, data: bytes) -> None:
        if not isinstance(protocol, asyncio.BufferedProtocol):
            any_kind: Any = protocol
            any_kind.data_received(data)
            return
        at, end = 0, len(data)
        while at < end and self._state is _OPEN:
            given: Any = protocol.get_buffer(-1)
            buffer = memoryview(given)
            size = min(len(buffer), end - at)
            if not size:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:size] = data if size == end else data[at : at + size]
            del buffer
            protocol.buffer_updated(size)
            at += size

    def _fail(self, error: BaseException) -> None:
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self._transmit(_RST)
        self._soon(self._lost, error)

    # The end

    def process_died(self) -> None:
        """The kernel closes this socket: FIN behind what was sent, or RST when unread bytes were left."""
        if not self.alive:
            return
        self.out.buffer.clear()
        if self._in.received and any(self._in.received):
            self.out.way.clear()
            self._transmit(_RST)
        elif not self.out.fin_sent:
            self.out.fin_sent = True
            self._transmit(_FIN)
        self._gone()

    def power_lost(self) -> None:
        if self.out.held:
            self.out.way.clear()
        self._silent = True
        self._gone()

    def _lost(self, error: BaseException | None) -> None:
        if not self.alive:
            return
        self._state = _State.CLOSED
        self._gone()
        if self._protocol is not None:
            self._protocol.connection_lost(cast(Any, error))

    def _gone(self) -> None:
        self.alive = False
        self._in.received.clear()
        self.out.drop_buffer()
        peer = self.peer
        if peer is None or not peer.alive:
            self._fabric.drop_end(self)
            if peer is not None:
                self._fabric.drop_end(peer)

    def _soon(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run ``call`` in this end's process."""
        self._fabric.loop.call_soon(call, *arguments, context=self._context)
