"""What happens on one TCP connection: frames in, commands to a handler, answers and calls out.

Both ends use the same class: a client calls servers, and a server calls its clients (``call``, ``oneway``).

- All frames of one read are handled in one go, and everything written in one turn of the loop leaves in one
  ``transport.write``, up to ``PIECE_BYTES``: more leaves piece by piece.
- Bytes that cannot be a frame end the connection with one line in the log; other connections go on.
- While the peer does not read what it is sent, nothing more is read from it, and no further request of it
  begins; beyond the limit of its server it is dropped (``remoting/guard``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, cast

from model.acl.addresses import address_of
from model.codes import Response, label_of
from model.errors import PeerError, Refused
from remoting.auth import ACCESS_KEY
from remoting.codec import FLAG_ONEWAY, FLAG_RESPONSE, Command, decoded, encode, frame_end, head_of
from remoting.guard import LONG_ANSWER_BYTES, MADE_BYTES_MAX, Guard, Share, Standing
from remoting.keys import Signer
from remoting.transport.answering import answer_to
from remoting.transport.calls import Calls, Flush, Outbox
from remoting.transport.inbox import REQUESTS_MAX, Inbox, ReadGate, scratch
from remoting.transport.state import ORDER, State
from runtime.direct import descriptor_of, handed, take
from runtime.report.slow_turns import SLOW_MS
from runtime.reset import reset as reset_transport
from runtime.tasks import Tasks
from runtime.tls.words import alert

log = logging.getLogger(__name__)

UNSENT_BYTES_HIGH: Final = 1024 * 1024
APART_BYTES: Final = 4 * 1024
"""A longer body is not joined with its header."""
AT_ONCE_BYTES: Final = 64 * 1024
"""So much is handed to the socket at once; more is left to the transport, as all that follows it."""
CLOSING_S: Final = 5.0  # after close(): time for the last bytes to leave
HANDED_PART: Final = 8  # of what a client may leave unread others may fill this part: of 64 MiB, 8

Handler = Callable[["Connection", Command], Awaitable[Command | None]]

_CLOSED, _PROBATION = State.CLOSED, Standing.PROBATION  # looked at for each answer
_NOT_DUE, _AT_TURN, _AFTER_READ = Flush.NOT_DUE, Flush.AT_TURN, Flush.AFTER_READ


class BufferHandler(Protocol):
    """Handles the frequent requests of a whole read buffer in one call."""

    def process(
        self, connection: Connection, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        """Handle the whole frames in ``buffer[start:end]``; where the first one that is not whole begins, and
        copies of those left to the handler, in order. ``buffer`` is the server's own and is overwritten after
        the call: keep copies, no views. Answers go through ``connection.write``, now or later. Raises
        PeerError to end the connection.
        """


class Endpoint:
    """What the connections of one port or client have in common: the handler, the guard, and the tasks."""

    def __init__(
        self,
        name: str,
        handler: Handler | None,
        guard: Guard,
        *,
        fast: BufferHandler | None = None,
        on_open: Callable[[Connection], object] | None = None,
        on_close: Callable[[Connection], object] | None = None,
        credentials: Signer | None = None,
    ) -> None:
        self.name = name
        self.handler = handler
        self.guard = guard
        self.fast = fast
        self.on_open = on_open
        self.on_close = on_close
        self.credentials = credentials
        self.signs = False  # what this side asks for
        self.going_away = False
        self.held = False
        self.stopped = False
        self.tasks = Tasks(name)
        self.scratch = scratch()
        self.connections: dict[Connection, None] = {}  # in order of arrival
        self.emptied = asyncio.Event()

    def outgoing(self, request: Command) -> Command:
        """``request`` as it is sent: signed, where this side signs."""
        if not self.signs or self.credentials is None or ACCESS_KEY in request.ext:
            return request  # one that is handed on has the signature of who asked first
        return self.credentials.signed(request)

    def sweep(self, now: float) -> None:
        """Close what has been silent, half a frame, or closing for too long. ``now``: the loop's clock."""
        for connection in list(self.connections):
            connection.enforce_limits(now)
        self.guard.sweep()
        if self.credentials is not None:
            self.credentials.look()

    def hold(self, held: bool) -> None:
        """Read nothing more from any connection while ``held``."""
        self.held = held
        for connection in self.connections:
            connection.regulate()

    def dismiss(self, quiet_s: float) -> float | None:
        """Close the connections that were silent for ``quiet_s`` and have nothing under way; when to look
        again (the loop's clock), None when all are closed."""
        now = asyncio.get_running_loop().time()
        again: list[float] = []
        for connection in [c for c in self.connections if not c.closed]:
            until = now + quiet_s if connection.handling else connection.last_io + quiet_s
            if until > now:
                again.append(until)
            else:
                connection.close()
        return min(again, default=None)

    async def stop(self) -> None:
        """Send what is written, end all connections and requests; takes at most ``CLOSING_S``."""
        self.stopped = True
        for connection in list(self.connections):
            connection.close()
        await self.tasks.cancel()
        if self.connections:
            self.emptied.clear()
            try:
                async with asyncio.timeout(CLOSING_S):
                    await self.emptied.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()


class Connection(asyncio.BufferedProtocol):
    """One end of a connection. ``attributes`` is for whoever handles its commands."""

    def __init__(self, endpoint: Endpoint, address: str = "") -> None:
        self.address = address  # what a client dialled; empty at a server
        self.remote = address
        self.attributes: dict[str, Any] = {}
        self.share = Share()
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbox = Inbox(endpoint.scratch)
        self._outbox = Outbox()
        self._calls = Calls(self.reset if address else None)  # a server waits: its client may dial anew
        self._gate = ReadGate()
        self._state = State.CONNECTING
        self._on_close: Callable[[Connection], object] | None = None  # set once it is open
        self._closed_at = 0.0
        self._last_io = self._loop.time()

    # for its users

    @property
    def closed(self) -> bool:
        """Nothing can be sent any more."""
        return self._state is _CLOSED

    @property
    def handling(self) -> int:
        """Requests of the peer that have no answer yet."""
        return self._gate.handling + len(self._gate.later)

    @property
    def untaken(self) -> int:
        """Bytes written for the peer that the system has not taken yet."""
        transport = self._transport
        return self._outbox.size + (transport.get_write_buffer_size() if transport is not None else 0)

    @property
    def last_io(self) -> float:
        """When bytes last came or left (the loop's clock)."""
        return self._last_io

    def send(self, command: Command) -> None:
        """Send as it is: an answer (``request.reply(...)``). Nothing happens on a closed connection."""
        if len(command.body) < APART_BYTES:
            self.write(encode(command))
            return
        self.write(head_of(command))
        self.write(command.body)  # copied once, a piece at a time, or not at all

    def write(self, data: bytes) -> None:
        """Send whole frames already encoded. Nothing happens on a closed connection."""
        if self._state is _CLOSED:
            return
        outbox = self._outbox
        outbox.add(data)
        if outbox.flush is _NOT_DUE:
            outbox.flush = _AT_TURN
            self._loop.call_soon(self._flush)

    def write_now(self, data: bytes) -> None:
        """``write``; it leaves at once, or behind what is written already."""
        if self._state is _CLOSED:
            return
        outbox, transport = self._outbox, self._transport
        if (
            outbox.descriptor >= 0
            and not outbox.frames
            and len(data) <= AT_ONCE_BYTES
            and transport is not None
            and not transport.get_write_buffer_size()
        ):
            try:
                sent = take(outbox.descriptor, data)
            except OSError:
                sent = 0
            if sent == len(data):
                self._last_io = self._loop.time()
                return
            data = data[sent:]
        outbox.add(data)
        if outbox.flush is not _AFTER_READ:
            self._flush()

    def handle_again(self, frames: Iterable[bytes]) -> None:
        """Frames the fast path took and could not keep, in order: they take the ordinary way."""
        if self._state is _CLOSED:
            return
        try:
            for frame in frames:
                self._begin(frame)
        except PeerError as error:
            self.fail(error)

    def oneway(self, command: Command) -> None:
        """Send a request nobody answers. Raises ConnectionError on a closed connection."""
        self._need_open()
        self.send(self._endpoint.outgoing(command).numbered(self._calls.next_opaque(), FLAG_ONEWAY))

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        """Send a request and return its answer, whatever its code.

        Raises ConnectionError when nothing was sent, Unknown when no answer came in time or the connection
        ended first. One that this side dialled is reset when nothing at all came meanwhile (``Calls``).
        """
        self._need_open()
        opaque, answer = self._calls.begin(command.code, timeout_s, self.remote)
        try:
            self.send(self._endpoint.outgoing(command).numbered(opaque))
            return await answer
        finally:
            self._calls.end(opaque)
            if self._state is State.FINISHING and not len(self._calls):
                self.close()

    def need_room(self, size: int) -> None:
        """Raises Refused, when ``size`` bytes of another client's are too many for this one: it answers with
        its connection for what it leaves unread, and others must not be able to fill that."""
        if self.untaken + size > self._endpoint.guard.limits.unread_bytes_per_connection // HANDED_PART:
            raise Refused(f"{self.remote} does not read what it is sent", Response.SYSTEM_BUSY)

    def close(self) -> None:
        """End the connection once what was written has left (at most ``CLOSING_S`` later)."""
        if self._state is _CLOSED:
            return
        out = self._outbox.take()
        self._shut()
        if self._transport is not None:
            self._transport.write(out)
            self._transport.close()  # what is unsent still leaves; enforce_limits() bounds the time

    def finish(self, grace_s: float) -> None:
        """Close once the calls under way have their answers, or after ``grace_s``."""
        if self._state is not _CLOSED:
            self._go(State.FINISHING)
        if len(self._calls):
            self._loop.call_later(grace_s, self.close)
        else:
            self.close()

    def hold(self, held: bool) -> None:
        """Read nothing more from the peer while ``held``: what it asked for waits for something else."""
        if held != self._gate.held:
            self._gate.held = held
            self.regulate()

    def abort(self) -> None:
        """End the connection now."""
        self._shut()
        if self._transport is not None:
            self._transport.abort()

    def give_up(self) -> None:
        """End it, whose dial came to nothing: uvloop then closes the transport without a word to us."""
        if self._transport is not None:
            self.abort()
            self.connection_lost(None)

    def reset(self) -> None:
        """End the connection now; what the peer has not got of it, it does not get any more."""
        self._shut()
        if self._transport is not None:
            reset_transport(self._transport)

    def _need_open(self) -> None:
        if self._state is _CLOSED:
            raise ConnectionError(f"the connection to {self.remote} is closed")

    def _go(self, state: State) -> None:
        assert ORDER[state] >= ORDER[self._state], f"{self._state.name} does not become {state.name} again"
        self._state = state

    def _shut(self) -> None:
        if self._state is not _CLOSED:
            self._go(_CLOSED)
            self._closed_at = self._loop.time()
            self._outbox.take()
            self._outbox.on_emptied()
            self._endpoint.guard.on_end(self)

    def fail(self, why: object) -> None:
        """End it with the one line a broken peer gets in the log."""
        if self._state is _CLOSED:
            return
        self._endpoint.guard.complaints.warn(
            "%s: closing connection of %s: %s", self._endpoint.name, self.remote, why
        )
        # One try to hand over the answers to what came before; the rest of the peer's bytes is not looked at.
        outbox = self._outbox
        while outbox.frames and self._transport is not None and not self._transport.get_write_buffer_size():
            self._transport.write(outbox.next_piece())
        self.abort()

    def enforce_limits(self, now: float) -> None:
        """Apply the time limits. ``now``: the loop's clock."""
        if self._state is _CLOSED:
            if now - self._closed_at > CLOSING_S and self._transport is not None:
                self._transport.abort()
            return
        begun_at = self._inbox.begun_at
        if begun_at is not None and not self._gate.paused and self._inbox.overdue(now):
            self.fail(f"a frame is still not whole after {now - begun_at:.0f} s")
        elif now - self._last_io > self._endpoint.guard.limits.idle_s:
            if self._gate.unread or begun_at is not None:
                self.fail(f"no progress for {self._endpoint.guard.limits.idle_s:.0f} s")
            else:
                log.debug("%s: closing idle connection of %s", self._endpoint.name, self.remote)
                self.close()
        elif self._endpoint.guard.overstayed(self):
            self.close()

    # asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.remote = address_of(transport.get_extra_info("peername")) or self.address
        self._endpoint.connections[self] = None
        if self._endpoint.stopped or (not self.address and not self._endpoint.guard.admit(self)):
            self.abort()
            return
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        self._outbox.descriptor = descriptor_of(transport)
        if self._state is State.CONNECTING:
            self._go(State.OPEN)
        self._on_close = self._endpoint.on_close
        self.regulate()
        if self._endpoint.on_open is not None:
            self._endpoint.on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        inbox = self._inbox
        return inbox.whole if inbox.begun_at is None else inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        inbox = self._inbox
        began = self._last_io = self._calls.heard_at = self._loop.time()
        if self._state is _CLOSED:
            inbox.drop()
            return
        inbox.end += nbytes
        outbox, gate = self._outbox, self._gate
        outbox.flush = _AFTER_READ
        try:
            if inbox.begun_at is None or inbox.is_ready() or self._long_frame():
                self._frames()
        except PeerError as error:
            self.fail(error)
        except Exception as error:
            # A mistake of our own: the state of this connection is unknown, the others go on.
            log.exception("%s: handling what %s sent failed", self._endpoint.name, self.remote)
            self.fail(f"{type(error).__name__}: {error}")
        if outbox.frames:
            self._flush()
        else:
            outbox.flush = _NOT_DUE
        if inbox.begun_at is not None or inbox.counted:
            self._count_begun()
        if gate.handling >= REQUESTS_MAX or gate.later or gate.queued:
            self.regulate()
        took_ms = (self._loop.time() - began) * 1000
        if took_ms >= SLOW_MS:
            self._endpoint.guard.slow.note(took_ms, "one read", self.remote)

    def _count_begun(self) -> None:
        """Of a frame that is not whole: what it takes, and whether there may be more of it to read."""
        inbox, guard = self._inbox, self._endpoint.guard
        if inbox.owned != inbox.counted:
            inbox.counted = inbox.owned
            guard.on_begun(self, inbox.counted)
        if inbox.part_is_full:
            self._gate.queued = True
            guard.lines.reads.wait(self)

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def pause_writing(self) -> None:
        self._gate.unread = True
        self.regulate()

    def resume_writing(self) -> None:
        self._last_io = self._loop.time()
        self._gate.unread = False
        if self._outbox.sending:
            self._endpoint.guard.lines.writes.wait(self)
        else:
            self._outbox.on_emptied()
            self.regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        if self not in self._endpoint.connections:
            return  # it was given up
        if exc is not None:
            log.debug("%s: connection of %s lost: %s", self._endpoint.name, self.remote, exc)
        self._shut()
        self._endpoint.connections.pop(self, None)
        if not self._endpoint.connections:
            self._endpoint.emptied.set()
        self._calls.fail(f"the connection to {self.remote} ended before the answer{alert(exc)}")
        self._inbox.drop()
        if self._on_close is not None:
            self._on_close(self)

    # reading

    def _frames(self) -> None:
        inbox, endpoint = self._inbox, self._endpoint
        buffer, start, end = inbox.buffer, inbox.start, inbox.end
        fast = endpoint.fast
        if fast is not None and not endpoint.going_away and self.share.standing is not _PROBATION:
            start, slow = fast.process(self, buffer, start, end)
            if start == end and inbox.begun_at is None:
                inbox.start = inbox.end = 0  # ``took``, of nearly all
            else:
                inbox.took(start, self._last_io)
            for frame in slow:
                self._begin(frame)
            return
        limit = endpoint.guard.limits.frame_bytes_max
        with memoryview(buffer) as view:
            while stop := frame_end(view, start, end, limit):
                self._begin(view[start:stop])
                start = stop
        inbox.took(start, self._last_io)

    def _long_frame(self) -> bool:
        """Begin the request in a long frame that is whole; whether there is anything behind it."""
        found = self._inbox.long_frame(self._endpoint.guard.limits.frame_bytes_max)
        if found is not None:
            self._begin(found)
        return found is not None and self._inbox.end > 0

    def _begin(self, frame: bytes | memoryview | Command) -> None:
        """Begin the request in a frame, in this turn or a later one; what a client hears never waits."""
        later, starts = self._gate.later, self._endpoint.guard.starts
        if self.address or (not later and starts.take()):
            self._dispatch(decoded(frame))
            return
        if not later:
            starts.wait(self)
        later.append(frame if isinstance(frame, Command) else bytes(frame))

    def go_on(self) -> bool:
        """See ``starts.Waiting``."""
        later = self._gate.later
        if self._state is _CLOSED:
            later.clear()
            return False
        if self._gate.blocked:
            return False  # back in line when the peer has read
        try:
            self._dispatch(decoded(later.popleft()))
        except PeerError as error:
            later.clear()
            self.fail(error)
        if not later:
            self.regulate()
        return bool(later)

    def _dispatch(self, command: Command) -> None:
        if command.flag & FLAG_RESPONSE:
            self._calls.on_answer(command)
            return
        self._gate.handling += 1
        self._endpoint.tasks.spawn(self._handle(command), name=f"request.{command.code}")

    async def _handle(self, request: Command) -> None:
        began = self._loop.time()
        try:
            if self.untaken > UNSENT_BYTES_HIGH:
                # What it asks for is not made before it has read what it asked for earlier.
                await self._taken()
                if self._state is _CLOSED:
                    return
            guard = self._endpoint.guard
            if guard.made.size > MADE_BYTES_MAX:
                await guard.made.next_turn()
            what = label_of(request.code)
            answer = await guard.slow.steps(answer_to(self._endpoint, self, request), what, self.remote)
            if answer is not None and not request.flag & FLAG_ONEWAY:
                guard.slow.on_answered(what, self.remote, self._loop.time() - began, answer.code)
                answer.opaque = request.opaque
                answer.flag |= FLAG_RESPONSE
                self.send(answer)
                if len(answer.body) >= LONG_ANSWER_BYTES:
                    guard.made.add(len(answer.body), self._loop)
            if self.share.standing is _PROBATION:
                self.close()
        finally:
            self._gate.handling -= 1
            if self._gate.paused:
                self.regulate()

    async def _taken(self) -> None:
        """Wait until the peer has read what it was sent; meanwhile none of its frames begins."""
        gate = self._gate
        gate.blocked += 1
        try:
            while self.untaken > UNSENT_BYTES_HIGH and self._state is not _CLOSED:
                await self._outbox.emptied()
        finally:
            gate.blocked -= 1
            if gate.later and not gate.blocked:
                self._endpoint.guard.starts.wait(self)

    def read_on(self) -> None:
        """See ``inbox.Lined``."""
        self._gate.queued = False
        self.regulate()

    # writing

    def _flush(self) -> None:
        """Hand over what is written: of much the first piece, the next ones follow in turns of their own."""
        outbox = self._outbox
        outbox.flush = _NOT_DUE
        if not outbox.frames or self._state is _CLOSED or self._transport is None:
            return
        if outbox.sending:
            self._endpoint.guard.on_unread(self, self.untaken)
        else:
            self._hand_over(self._transport)

    def write_on(self) -> None:
        """See ``inbox.Lined``."""
        if self._outbox.sending and not self._gate.unread and self._transport is not None:
            self._hand_over(self._transport)

    def _hand_over(self, transport: asyncio.Transport) -> None:
        outbox, gate, guard = self._outbox, self._gate, self._endpoint.guard
        self._last_io = self._loop.time()
        if outbox.descriptor >= 0 and not transport.get_write_buffer_size():
            left = handed(outbox.descriptor, outbox.next_parts())
        else:
            left = outbox.next_piece()
        if left:
            transport.write(left)
        if unread := self.untaken:
            guard.on_unread(self, unread)
        if outbox.sending and not gate.unread:
            guard.lines.writes.wait(self)
        elif not gate.unread:
            outbox.on_emptied()
        if gate.sending != outbox.sending:
            gate.sending = outbox.sending
            self.regulate()

    def regulate(self) -> None:
        """Read from the peer only while it reads what it is sent and has not too much under way."""
        if self._state is _CLOSED or self._transport is None:
            return
        if self._gate.move(self._transport, all_held=self._endpoint.held):
            self._inbox.begin_anew(self._loop.time())
