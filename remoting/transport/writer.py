"""What a connection is to send: when does it leave, and by which way?"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from remoting.transport.calls import AT_ONCE_BYTES, PIECE_BYTES, Flush, Outbox
from remoting.transport.endpoint import Endpoint
from remoting.transport.inbox import ReadGate
from remoting.transport.state import State
from runtime.direct import NO_DESCRIPTOR, handed, taken_of
from runtime.env import Buffer

_CLOSED: Final = State.CLOSED
_NOT_DUE, _AT_TURN, _AFTER_READ = Flush.NOT_DUE, Flush.AT_TURN, Flush.AFTER_READ


class Writer:
    """The writing half of a ``Connection``, which has the attributes."""

    last_io: float
    _endpoint: Endpoint[Any]
    _gate: ReadGate
    _loop: asyncio.AbstractEventLoop
    _outbox: Outbox
    _state: State
    _transport: asyncio.Transport | None

    def regulate(self) -> None:
        """See ``Connection.regulate``."""
        raise NotImplementedError

    @property
    def _whole(self) -> Any:
        """The ``Connection`` that this is a half of."""
        return self

    @property
    def untaken(self) -> int:
        """Bytes written for the peer that the system has not taken yet."""
        transport = self._transport
        return self._outbox.size + (transport.get_write_buffer_size() if transport is not None else 0)

    @property
    def held(self) -> int:
        """Bytes that stay in memory for what is ``untaken``."""
        transport = self._transport
        return self._outbox.held(transport.get_write_buffer_size() if transport is not None else 0)

    def room_for(self, most: int) -> int:
        """So many bytes may be written for the peer before ``most`` are ``untaken``; below 0: none, also
        while an earlier request of it has no answer yet."""
        gate, outbox = self._gate, self._outbox
        if gate.handling or gate.later or gate.joining:
            return -1
        if outbox.kept or outbox.descriptor < 0:
            return most - self.untaken
        return most - outbox.size  # the transport was handed nothing

    def write(self, data: bytes) -> None:
        """Send whole frames already encoded. Nothing happens on a closed connection."""
        if self._state is _CLOSED:
            return
        outbox = self._outbox
        outbox.add(data)
        if outbox.flush is _NOT_DUE:
            outbox.flush = _AT_TURN
            self._loop.call_soon(self._flush)

    def write_all(self, frames: list[bytes], size: int) -> None:
        """``write`` of each; together they have ``size`` bytes."""
        if self._state is _CLOSED:
            return
        outbox = self._outbox
        outbox.frames += frames
        outbox.size += size
        if outbox.flush is _NOT_DUE:
            outbox.flush = _AT_TURN
            self._loop.call_soon(self._flush)

    def write_now(self, data: bytes) -> None:
        """``write``; it leaves at once, or behind what is written already."""
        outbox = self._outbox
        if outbox.frames or outbox.kept or len(data) > AT_ONCE_BYTES:  # seldom
            descriptor = self.at_once(data)
        else:
            descriptor = outbox.descriptor
        if descriptor >= 0:
            self.last_io = self._loop.time()
            sent = taken_of(descriptor, data)
            if sent < len(data):
                self.write_rest(data, sent)
        elif self._state is not _CLOSED:
            self.write_rest(data, 0)

    def at_once(self, data: bytes) -> int:
        """The descriptor that is handed ``data`` now, as nothing is written before them; or
        ``NO_DESCRIPTOR``, also once it is closed."""
        outbox = self._outbox
        if outbox.frames or len(data) > AT_ONCE_BYTES or (outbox.kept and not self._has_left()):
            return NO_DESCRIPTOR
        return outbox.descriptor

    def write_rest(self, data: bytes, sent: int) -> None:
        """The system took ``sent`` bytes of ``data``: the others follow."""
        if sent < len(data):
            self._outbox.add(data[sent:])
            if self._outbox.flush is not _AFTER_READ:
                self._flush()

    def _flush(self) -> None:
        """Hand over what is written: of much the first piece, the next ones follow in turns of their own."""
        outbox = self._outbox
        outbox.flush = _NOT_DUE
        if not outbox.frames or self._state is _CLOSED or self._transport is None:
            return
        if outbox.sending:
            self._endpoint.guard.on_unread(self._whole, self.held)
        elif outbox.descriptor < 0 or outbox.kept or outbox.size > PIECE_BYTES or self._gate.unread:
            self._hand_over(self._transport)
        else:  # nearly always: as ``_hand_over`` of all there is
            self.last_io = self._loop.time()
            parts, size, outbox.frames, outbox.size = outbox.frames, outbox.size, [], 0
            left = handed(outbox.descriptor, parts, size)
            if left or outbox.waited is not None:
                self._handed_over(self._transport, left)

    def _has_left(self) -> bool:
        """Whether the transport has handed on all that it kept."""
        self._outbox.kept = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return not self._outbox.kept

    def write_on(self) -> None:
        """See ``inbox.Lined``."""
        if self._outbox.sending and not self._gate.unread and self._transport is not None:
            self._hand_over(self._transport)

    def _hand_over(self, transport: asyncio.Transport) -> None:
        outbox = self._outbox
        self.last_io = self._loop.time()
        if outbox.descriptor >= 0 and (not outbox.kept or self._has_left()):
            before, parts = outbox.size, outbox.next_parts()
            left = handed(outbox.descriptor, parts, before - outbox.size)
        else:
            left = outbox.next_piece()
        self._handed_over(transport, left)

    def _handed_over(self, transport: asyncio.Transport, left: Buffer) -> None:
        """``left`` of what was to be handed over was not taken."""
        outbox, gate, guard = self._outbox, self._gate, self._endpoint.guard
        if left:
            self._leave(transport, left)
        if (left or outbox.sending) and (held := self.held):
            guard.on_unread(self._whole, held)
        if outbox.sending and not gate.unread:
            guard.lines.writes.wait(self._whole)
        elif not gate.unread:
            outbox.on_emptied()
        if gate.sending != outbox.sending:
            gate.sending = outbox.sending
            self.regulate()

    def _leave(self, transport: asyncio.Transport, left: Buffer) -> None:
        """To the transport, what the system has not taken. What TLS is given it encrypts at once, and keeps
        nothing of it."""
        outbox = self._outbox
        if outbox.descriptor >= 0:
            left = outbox.handed(left, transport.get_write_buffer_size())
        transport.write(left)
        outbox.kept = True
        if outbox.sending and transport.get_write_buffer_size():
            outbox.free()
