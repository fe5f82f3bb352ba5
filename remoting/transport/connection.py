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
from typing import Any, Final, TypeAlias, cast

from model.acl.addresses import address_of
from model.codes import label_of
from model.errors import PeerError
from remoting.codec import FLAG_ONEWAY, FLAG_RESPONSE, Command, decoded, encode, frame_end, head_of
from remoting.guard import LONG_ANSWER_BYTES, MADE_BYTES_MAX, Share, Standing
from remoting.transport import order
from remoting.transport.answering import answer_to
from remoting.transport.calls import Calls, Flush, Outbox
from remoting.transport.endpoint import CLOSING_S, Buffers, Endpoint
from remoting.transport.inbox import (
    ASKED_BYTES_LEAST,
    MUCH_BYTES,
    REQUEST_BYTES,
    REQUESTS_MAX,
    Inbox,
    ReadGate,
)
from remoting.transport.starts import Reads
from remoting.transport.state import ORDER, State
from remoting.transport.writer import Writer
from runtime.direct import descriptor_of
from runtime.reset import reset as reset_transport
from runtime.tls.words import alert

log = logging.getLogger(__name__)

UNSENT_BYTES_HIGH: Final = 1024 * 1024
APART_BYTES: Final = 4 * 1024
"""A longer body is not joined with its header."""

Handler = Callable[["Connection", Command], Awaitable[Command | None]]
BufferHandler: TypeAlias = Buffers["Connection"]

_CLOSED, _PROBATION = State.CLOSED, Standing.PROBATION  # looked at for each answer
_NOT_DUE, _AFTER_READ = Flush.NOT_DUE, Flush.AFTER_READ


class Connection(Writer, asyncio.BufferedProtocol):
    """One end of a connection. ``attributes`` is for whoever handles its commands."""

    def __init__(self, endpoint: Endpoint[Connection], address: str = "") -> None:
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
        self.last_io = self._loop.time()  # when bytes last came or left

    # for its users

    @property
    def closed(self) -> bool:
        """Nothing can be sent any more."""
        return self._state is _CLOSED

    @property
    def handling(self) -> int:
        """Requests of the peer that have no answer yet."""
        return self._gate.handling + len(self._gate.later) + self._gate.joining

    @property
    def goes_first(self) -> bool:
        return self.share.goes_first

    @property
    def frame_bytes(self) -> int:
        """Of its begun frame, and of its requests that have no answer yet."""
        return self._inbox.counted

    def send(self, command: Command) -> None:
        """Send as it is: an answer (``request.reply(...)``). Nothing happens on a closed connection."""
        if len(command.body) < APART_BYTES:
            self.write(encode(command))
            return
        self.write(head_of(command))
        self.write(command.body)  # copied once, a piece at a time, or not at all

    def handle_again(self, frames: Iterable[bytes]) -> None:
        """Frames the fast path took and could not keep, in order: they take the ordinary way."""
        if self._state is _CLOSED:
            return
        try:
            for frame in frames:
                self._begin(frame)
        except PeerError as error:
            self.fail(error)
        self._count()
        self.regulate()  # what is read next goes behind them

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
            if self._gate.paused:
                self.regulate()  # what it asked for may wait for its own answer
                self._go_on_soon()
            return await answer
        finally:
            self._calls.end(opaque)
            if self._state is State.FINISHING and not len(self._calls):
                self.close()

    def need_room(self, size: int) -> None:
        """See the guard's. Raises Refused."""
        self._endpoint.guard.need_room(self, size)

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
        """Read and begin nothing more of the peer while ``held``: what it asked for waits for something. Who
        holds it also lets it go; it may be held more than once."""
        self._gate.held += 1 if held else -1
        assert self._gate.held >= 0, "it was let go more often than held"
        if self._gate.held == held:  # the first, or the last
            self.regulate()
            self._go_on_soon()

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
            self._outbox.end()
            self._gate.drop_later()
            self._endpoint.guard.on_end(self, self._gate.asked)

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
        elif now - self.last_io > self._endpoint.guard.limits.idle_s:
            if self._gate.unread or begun_at is not None:
                self.fail(f"no progress for {self._endpoint.guard.limits.idle_s:.0f} s")
            else:
                log.debug("%s: closing idle connection of %s", self._endpoint.name, self.remote)
                self.close()
        elif self._endpoint.guard.overstayed(self):
            self.close()

    def excuse(self, for_s: float, now: float) -> None:
        """Nothing moved for so long until now, and the peer could not help it."""
        self._inbox.stood_still(for_s, now)
        self.last_io, self._closed_at = (min(at + for_s, now) for at in (self.last_io, self._closed_at))

    # asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.remote = address_of(transport.get_extra_info("peername")) or self.address
        self._endpoint.connections[self] = None
        if self._endpoint.stopped or (not self.address and not self._endpoint.guard.admit(self)):
            self.abort()
            return
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        if self._state is not _CLOSED:
            self._outbox.descriptor = descriptor_of(transport)
        if self._state is State.CONNECTING:
            self._go(State.OPEN)
        self._on_close = self._endpoint.on_close
        self.regulate()
        if self._gate.paused:
            self._loop.call_soon(self._gate.pause_again, self._transport)
        if self._endpoint.on_open is not None:
            self._endpoint.on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        inbox, reads, gate = self._inbox, self.share.reads, self._gate
        late = reads is not None and reads.left <= 0 and not inbox.is_long
        if late or (gate.paused and not self._calls.heard_at):
            inbox.put_aside()  # the loop reads something; what follows waits in the system
            return inbox.room()[: gate.read_late(self._endpoint.guard.lines.reads, self._calls.heard_at)]
        return inbox.whole if inbox.begun_at is None else inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        inbox = self._inbox
        began = self.last_io = self._calls.heard_at = self._loop.time()
        if self._state is _CLOSED:
            inbox.drop()
            return
        if self._gate.paused and self._transport is not None:
            self._transport.pause_reading()  # see ``get_buffer``
        inbox.end += nbytes
        reads = self.share.reads
        if inbox.begun_at is None:  # nearly always
            if reads is not None:
                reads.left -= nbytes
                if reads.left < reads.low or nbytes >= MUCH_BYTES:
                    self._wait_if_spent(reads, nbytes, nbytes)
                self._gate.woken_at = 0
            self._take(began)
            return
        if reads is not None:
            self._spend(reads, nbytes)
        if self._may_join():
            self._take(began)
        else:
            self._gate.joining = True
            self._count()
            self.regulate()

    def _may_join(self) -> bool:
        """Whether the frame that has begun, if it is whole, is taken in this turn."""
        size = self._inbox.whole_bytes
        if not size or self.share.reads is None:
            return True
        return not self._gate.joining and self._endpoint.guard.lines.wholes.take(self, size)

    def join_on(self) -> None:
        """See ``wholes.Joining``."""
        if self._gate.joining and self._state is not _CLOSED:
            self._gate.joining = False
            self._take(self._loop.time())
            self.regulate()

    def _take(self, began: float) -> None:
        """Handle what is whole of what was read."""
        inbox, outbox, gate, endpoint = self._inbox, self._outbox, self._gate, self._endpoint
        outbox.flush = _AFTER_READ
        try:
            if inbox.begun_at is None or inbox.is_ready() or self._long_frame():
                fast = endpoint.fast
                # What waits came first, and of who is on probation each request is looked at.
                if fast is None or gate.later or endpoint.going_away or self.share.standing is _PROBATION:
                    self._frames()
                else:
                    found = fast.process(self, inbox.buffer, inbox.start, inbox.end)
                    if found is not None or inbox.begun_at is not None:
                        self._took(*found or (inbox.end, []))
                    else:
                        inbox.start = inbox.end = 0  # ``took``
                        if not (gate.queued or gate.asked):
                            outbox.flush = _NOT_DUE  # what was written before has its own flush
                            return  # nothing was written, nothing begins, and it took no time
        except PeerError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001  # it is told, with its traceback
            self._fail_by_mistake(error)
        self._after_read(began)

    def _fail_by_mistake(self, error: Exception) -> None:
        """Of our own: the state of this connection is unknown, the others go on."""
        name, log_of_mistakes = self._endpoint.name, self._endpoint.guard.complaints.log_of_mistakes
        log_of_mistakes.exception("%s: handling what %s sent failed", name, self.remote)
        self.fail(f"{type(error).__name__}: {error}")

    def _after_read(self, began: float) -> None:
        """What it brought is handled: send what was written meanwhile, and count what is under way."""
        inbox, outbox, gate = self._inbox, self._outbox, self._gate
        if outbox.frames:
            self._flush()
        else:
            outbox.flush = _NOT_DUE
        if inbox.begun_at is not None or inbox.counted or gate.asked:
            self._count()
        if gate.handling >= REQUESTS_MAX or gate.later or gate.queued:
            self.regulate()
        took_s = self._loop.time() - began
        if took_s > 0:  # uvloop's clock has whole ms
            self._endpoint.guard.slow.on_read(took_s, self.remote)

    def _spend(self, reads: Reads, nbytes: int) -> None:
        """Count what was read behind the begin of a frame. Long frames have their own line."""
        inbox = self._inbox
        if inbox.is_long:
            reads.copied(nbytes)
            return
        size = inbox.looked_at(nbytes)
        reads.left -= size
        self._wait_if_spent(reads, nbytes, size)
        self._gate.woken_at = 0

    def _wait_if_spent(self, reads: Reads, nbytes: int, size: int) -> None:
        """Is it the last of clients in this turn?"""
        line = self._endpoint.guard.lines.reads
        # Who had much waits behind those that wait, also when it left a rest.
        if (reads.left < reads.low and reads.is_spent(size)) or (
            nbytes >= line.much and (line.line or line.first)
        ):
            line.wait_its_turn(self, nbytes)
            self._gate.on_spent()

    def _count(self) -> None:
        """What the frame that is not whole and those without an answer take, and whether more is read."""
        inbox, gate, guard = self._inbox, self._gate, self._endpoint.guard
        if self._state is _CLOSED:
            return
        size = inbox.owned + gate.asked
        if size != inbox.counted:
            inbox.counted = size
            guard.on_frames(self, size)
        if inbox.part_is_full and not gate.joining:
            gate.queued = True
            guard.lines.reads.wait(self)
        if gate.asked > ASKED_BYTES_LEAST:
            self.regulate()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def pause_writing(self) -> None:
        self._gate.unread = True
        self.regulate()

    def resume_writing(self) -> None:
        self.last_io = self._loop.time()
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
        tls = "TLS " if self._transport is not None and self._transport.get_extra_info("ssl_object") else ""
        self._calls.fail(f"the {tls}connection to {self.remote} ended before the answer{alert(exc)}")
        self._inbox.drop()
        if self._on_close is not None:
            self._on_close(self)

    # reading

    def _frames(self) -> None:
        """Begin the request in each frame that is whole."""
        inbox, limit = self._inbox, self._endpoint.guard.limits.frame_bytes_max
        start, end = inbox.start, inbox.end
        with memoryview(inbox.buffer) as view:
            while stop := frame_end(view, start, end, limit):
                self._begin(view[start:stop])
                start = stop
        inbox.took(start, self.last_io)

    def _took(self, start: int, slow: list[bytes]) -> None:
        """The fast path took what is before ``start`` but for ``slow``, whose requests begin."""
        inbox = self._inbox
        buffer, end = inbox.buffer, inbox.end
        if start == end and inbox.begun_at is None:  # as ``took``, of a read that left nothing
            inbox.start = inbox.end = 0
        else:
            inbox.took(start, self.last_io)
        for frame in slow:
            self._begin(frame)
        if slow and start < end:
            limit = self._endpoint.guard.limits.frame_bytes_max
            frame_end(buffer, start, end, limit)  # it may be broken

    def _long_frame(self) -> bool:
        """Begin the request in a long frame that is whole; whether there is anything behind it."""
        size = self._inbox.owned
        found = self._inbox.long_frame(self._endpoint.guard.limits.frame_bytes_max)
        if found is not None:
            self._begin(found, size)
        return found is not None and self._inbox.end > 0

    def _begin(self, frame: bytes | memoryview | Command, size: int = 0) -> None:
        """Begin the request in a frame, in this turn or a later one; what a client hears never waits.
        ``size``: of the frame's bytes, where it has been taken apart."""
        gate, starts, later = self._gate, self._endpoint.guard.starts, self._gate.later
        if not isinstance(frame, Command):
            size = len(frame)
        is_kept = later or (gate.asked > ASKED_BYTES_LEAST and gate.is_full(self._asked_max()))
        if self.address or (not is_kept and starts.take(first=self.goes_first)):
            self._dispatch(decoded(frame), size)
            return
        if self._state is _CLOSED:
            return
        if not later:
            starts.wait(self)
        gate.put_off(frame if isinstance(frame, Command) else bytes(frame), size)

    def go_on(self) -> bool:
        """See ``starts.Waiting``."""
        gate = self._gate
        if self._state is _CLOSED:
            return False
        if gate.blocked or gate.held or not gate.later or gate.is_full(self._asked_max()):
            return False  # back in line when the peer has read, or what it asked for goes on or is done
        frame, size = gate.take_later()
        try:
            self._dispatch(decoded(frame), size)
        except PeerError as error:
            self.fail(error)
        self._count()  # it takes more than while it waited
        if not gate.later:
            self.regulate()
        return bool(gate.later)

    def _dispatch(self, command: Command, size: int) -> None:
        if command.flag & FLAG_RESPONSE:
            self._calls.on_answer(command)
            return
        gate = self._gate
        # What this side's own servers ask counts for nobody, nor what comes too late.
        size = 0 if self.address or self._state is _CLOSED else size + REQUEST_BYTES
        gate.handling += 1
        gate.asked += size
        place = order.begins(self.attributes, command.code)
        self._endpoint.tasks.spawn(self._handle(command, size, place), name=f"request.{command.code}")

    async def _handle(self, request: Command, size: int, place: order.Place | None) -> None:
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
            answer = await guard.lines.steps.run(self, answer_to(self._endpoint, self, request, place), what)
            if answer is not None and not request.flag & FLAG_ONEWAY:
                guard.slow.on_answered(what, self.remote, self._loop.time() - began, answer.code)
                answer.opaque = request.opaque
                answer.flag |= FLAG_RESPONSE
                self.send(answer)
                if len(answer.body) >= LONG_ANSWER_BYTES:
                    guard.made.add(len(answer.body))
            if self.share.standing is _PROBATION:
                self.close()
        finally:
            self._gate.handling -= 1
            order.ends(place)
            if size:
                self._done(size)
            self._go_on_soon()
            if self._gate.paused:
                if self.share.reads is None:
                    self._gate.queued = False  # it showed itself a peer's, and waits behind no client
                    self.join_on()
                self.regulate()

    def _done(self, size: int) -> None:
        """A request of so many bytes is not under way any more."""
        self._gate.asked -= size
        if self._state is _CLOSED:
            self._endpoint.guard.on_done(self, size)
        else:
            self._count()

    async def _taken(self) -> None:
        """Wait until the peer has read what it was sent; meanwhile none of its frames begins."""
        gate = self._gate
        gate.blocked += 1
        try:
            while self.untaken > UNSENT_BYTES_HIGH and self._state is not _CLOSED:
                await self._outbox.emptied()
        finally:
            gate.blocked -= 1
            self._go_on_soon()

    def read_on(self) -> None:
        """See ``inbox.Lined``."""
        self._gate.queued, self._gate.woken_at = False, self._endpoint.guard.lines.reads.turn
        self.regulate()

    # what goes on

    def regulate(self) -> None:
        """Read from the peer only while it reads what it is sent and has not too much under way, or owes an
        answer to this side: what it has under way may wait for that."""
        if self._state is _CLOSED or self._transport is None:
            return
        now, held, most = self._loop.time(), self._endpoint.held, self._asked_max()
        self._inbox.stood_still(self._gate.move(self._transport, now, all_held=held, asked_max=most), now)

    def _asked_max(self) -> int:
        return self._endpoint.guard.asked_max(self, self._gate.asked, owes=len(self._calls) > 0)

    def _go_on_soon(self) -> None:
        """What waits of it begins in its turn, where nothing keeps it."""
        gate = self._gate
        if gate.later and not gate.blocked and not gate.held and self._state is not _CLOSED:
            self._endpoint.guard.starts.wait(self)
