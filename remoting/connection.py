"""What happens on one TCP connection: frames in, commands to a handler, answers and calls out.

Both ends use the same class: a client calls servers, and a server calls its clients (``call``, ``oneway``).

- All frames of one read are handled in one go, and everything written in one turn of the loop leaves in one
  ``transport.write``.
- Bytes that cannot be a frame end the connection with one line in the log; other connections go on.
- While the peer does not read what it is sent, nothing more is read from it; beyond ``UNSENT_BYTES_MAX`` it
  is dropped.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

from model.codes import Response, name_of
from model.errors import PeerError, Refused, Unknown
from remoting.auth import Credentials
from remoting.codec import FLAG_ONEWAY, FLAG_RESPONSE, Command, decode, encode, frame_end
from remoting.inbox import Inbox, ReadGate
from runtime.complaints import Complaints
from runtime.reset import reset
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

UNSENT_BYTES_HIGH: Final = 1024 * 1024
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
REQUESTS_MAX: Final = 4096  # requests of one connection being handled at the same time
CLOSING_S: Final = 5.0  # after close(): time for the last bytes to leave
GO_AWAY_VERSION: Final = 475  # clients up to this one (5.3.1) do not know GO_AWAY
_OPAQUE_MAX: Final = 2**31 - 1

Handler = Callable[["Connection", Command], Awaitable[Command | None]]


class State(enum.Enum):
    """Of a connection; it goes down this list, and may skip."""

    CONNECTING = "there is no transport yet"
    OPEN = "commands go both ways"
    FINISHING = "it closes when the calls under way have their answers"
    CLOSED = "nothing can be sent any more"


class Flush(enum.Enum):
    """When does what is written leave?"""

    NOT_DUE = enum.auto()  # nothing is written
    AT_TURN = enum.auto()  # with all else of this turn of the loop
    AFTER_READ = enum.auto()  # with all answers to what was just read


_CLOSED: Final = State.CLOSED  # looked at for each answer
_NOT_DUE, _AT_TURN, _AFTER_READ = Flush.NOT_DUE, Flush.AT_TURN, Flush.AFTER_READ


class BufferHandler(Protocol):
    """Handles the frequent requests of a whole read buffer in one call."""

    def process(
        self, connection: Connection, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        """Handle the whole frames in ``buffer[start:end]``.

        Returns where the first frame that is not whole begins, and copies of the frames left to the handler,
        in order. ``buffer`` is the connection's own and is overwritten after the call: keep copies, no views.
        Answers go through ``connection.write``, now or later. Raises PeerError to end the connection.
        """


class Owner:
    """What the connections of one server or client share: who handles, limits, and the tasks."""

    def __init__(
        self,
        name: str,
        handler: Handler | None,
        *,
        fast: BufferHandler | None = None,
        on_open: Callable[[Connection], object] | None = None,
        on_close: Callable[[Connection], object] | None = None,
        credentials: Credentials | None = None,
        signs: bool = False,
        frame_bytes_max: int,
        idle_s: float,
    ) -> None:
        self.name = name
        self.handler = handler
        self.fast = fast
        self.on_open = on_open
        self.on_close = on_close
        self.credentials = credentials
        self._sign = credentials.signed if signs and credentials is not None else None
        self.frame_bytes_max = frame_bytes_max
        self.idle_s = idle_s
        self.going_away = False
        self.held = False
        self.stopped = False
        self.tasks = Tasks(name)
        self.connections: dict[Connection, None] = {}  # in order of arrival
        self.emptied = asyncio.Event()
        self.complaints = Complaints(log, lambda: asyncio.get_running_loop().time())

    def outgoing(self, request: Command) -> Command:
        """``request`` as it is sent: signed, where this side signs."""
        return request if self._sign is None else self._sign(request)

    def sweep(self, now: float) -> None:
        """Close what has been silent, half a frame, or closing for too long. ``now``: the loop's clock."""
        for connection in list(self.connections):
            connection.check(now)

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

    def __init__(self, owner: Owner, address: str = "") -> None:
        self.address = address  # what a client dialled; empty at a server
        self.remote = address
        self.attributes: dict[str, Any] = {}
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbox = Inbox()
        self._out: list[bytes] = []
        self._flush_when = Flush.NOT_DUE
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._handling = 0
        self._state = State.CONNECTING
        self._gate = ReadGate()
        self._on_close: Callable[[Connection], object] | None = None  # set once it is open
        self._closed_at = 0.0
        self._told_unsigned = False
        self._last_io = self._loop.time()

    # for those who use it

    @property
    def closed(self) -> bool:
        """Nothing can be sent any more."""
        return self._state is _CLOSED

    @property
    def handling(self) -> int:
        """Requests of the peer that have no answer yet."""
        return self._handling

    @property
    def last_io(self) -> float:
        """When bytes last came or left (the loop's clock)."""
        return self._last_io

    def send(self, command: Command) -> None:
        """Send as it is: an answer (``request.reply(...)``). Nothing happens on a closed connection."""
        self.write(encode(command))

    def write(self, data: bytes) -> None:
        """Send whole frames already encoded. Nothing happens on a closed connection."""
        if self._state is _CLOSED:
            return
        self._out.append(data)
        if self._flush_when is _NOT_DUE:
            self._flush_when = _AT_TURN
            self._loop.call_soon(self._flush)

    def oneway(self, command: Command) -> None:
        """Send a request nobody answers. Raises ConnectionError on a closed connection."""
        self._need_open()
        self.send(self._owner.outgoing(command).numbered(self._next_opaque(), FLAG_ONEWAY))

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        """Send a request and return its answer, whatever its code.

        Raises ConnectionError when nothing was sent, Unknown when no answer came in time or the connection
        ended first.
        """
        self._need_open()
        opaque = self._next_opaque()
        answer: asyncio.Future[Command] = self._loop.create_future()
        self._calls[opaque] = answer
        try:
            self.send(self._owner.outgoing(command).numbered(opaque))
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            what = name_of(command.code)
            raise Unknown(f"{self.remote} did not answer {what} within {timeout_s} s") from None
        finally:
            self._calls.pop(opaque, None)
            if self._state is State.FINISHING and not self._calls:
                self.close()
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: a caller cancelled just now will not ask for it

    def close(self) -> None:
        """End the connection once what was written has left (at most ``CLOSING_S`` later)."""
        if self._state is _CLOSED:
            return
        self._flush()
        self._shut()
        if self._transport is not None:
            self._transport.close()  # what is unsent still leaves; check() bounds the time

    def finish(self, grace_s: float) -> None:
        """Close once the calls under way have their answers, or after ``grace_s``."""
        if self._state is not State.CLOSED:
            self._state = State.FINISHING
        if self._calls:
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

    def reset(self) -> None:
        """End the connection now; what the peer has not got of it, it does not get any more."""
        self._shut()
        if self._transport is not None:
            reset(self._transport)

    def _need_open(self) -> None:
        if self._state is _CLOSED:
            raise ConnectionError(f"the connection to {self.remote} is closed")

    def _next_opaque(self) -> int:
        self._opaque = self._opaque + 1 if self._opaque < _OPAQUE_MAX else 1
        return self._opaque

    def _shut(self) -> None:
        if self._state is not State.CLOSED:
            self._state = State.CLOSED
            self._closed_at = self._loop.time()
            self._out.clear()

    def _fail(self, why: object) -> None:
        """The one line a broken peer gets in the log."""
        if self._state is _CLOSED:
            return
        self._owner.complaints.warn("%s: closing connection of %s: %s", self._owner.name, self.remote, why)
        # One try to hand over the answers to what came before; the rest of the peer's bytes is not looked at.
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._transport.write(b"".join(out))
        self.abort()

    def check(self, now: float) -> None:
        """Apply the time limits. ``now``: the loop's clock."""
        if self._state is _CLOSED:
            if now - self._closed_at > CLOSING_S and self._transport is not None:
                self._transport.abort()
            return
        begun_at = self._inbox.begun_at
        if begun_at is not None and not self._gate.paused and self._inbox.overdue(now):
            self._fail(f"a frame is still not whole after {now - begun_at:.0f} s")
        elif now - self._last_io > self._owner.idle_s:
            if self._gate.unread or begun_at is not None:
                self._fail(f"no progress for {self._owner.idle_s:.0f} s")
            else:
                log.debug("%s: closing idle connection of %s", self._owner.name, self.remote)
                self.close()

    # asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.remote = _address(transport.get_extra_info("peername")) or self.address
        self._owner.connections[self] = None
        if self._owner.stopped:
            self.abort()
            return
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        if self._state is State.CONNECTING:
            self._state = State.OPEN
        self._on_close = self._owner.on_close
        self.regulate()
        if self._owner.on_open is not None:
            self._owner.on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        inbox = self._inbox
        if len(inbox.buffer) - inbox.end < inbox.room_bytes_min:
            inbox.make_room(self._owner.frame_bytes_max)
        return memoryview(inbox.buffer)[inbox.end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._inbox.end += nbytes
        self._last_io = self._loop.time()
        if self._state is _CLOSED:
            self._inbox.drop()
            return
        self._flush_when = _AFTER_READ
        try:
            self._frames()
        except PeerError as error:
            self._fail(error)
        except Exception as error:
            # A mistake of our own: the state of this connection is unknown, the others go on.
            log.exception("%s: handling what %s sent failed", self._owner.name, self.remote)
            self._fail(f"{type(error).__name__}: {error}")
        self._flush()
        if self._handling >= REQUESTS_MAX:
            self.regulate()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def pause_writing(self) -> None:
        self._gate.unread = True
        self.regulate()

    def resume_writing(self) -> None:
        self._last_io = self._loop.time()
        self._gate.unread = False
        self.regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            log.debug("%s: connection of %s lost: %s", self._owner.name, self.remote, exc)
        self._shut()
        self._owner.connections.pop(self, None)
        if not self._owner.connections:
            self._owner.emptied.set()
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(Unknown(f"the connection to {self.remote} ended before the answer"))
        self._inbox.free()
        if self._on_close is not None:
            self._on_close(self)

    # reading

    def _frames(self) -> None:
        inbox = self._inbox
        buffer, start, end = inbox.buffer, inbox.start, inbox.end
        fast = self._owner.fast
        if fast is not None and not self._owner.going_away:
            start, slow = fast.process(self, buffer, start, end)
            inbox.took(start, self._last_io)
            for frame in slow:
                self._dispatch(decode(frame))
            return
        limit = self._owner.frame_bytes_max
        with memoryview(buffer) as view:
            while stop := frame_end(view, start, end, limit):
                self._dispatch(decode(view[start:stop]))
                start = stop
        inbox.took(start, self._last_io)

    def _dispatch(self, command: Command) -> None:
        if command.flag & FLAG_RESPONSE:
            answer = self._calls.get(command.opaque)
            # No such call: its time was over. The caller was told Unknown.
            if answer is not None and not answer.done():
                answer.set_result(command)
            return
        self._handling += 1
        self._owner.tasks.spawn(self._handle(command), name=f"request.{command.code}")

    async def _handle(self, request: Command) -> None:
        try:
            answer = await self._answer(request)
            if answer is not None and not request.flag & FLAG_ONEWAY:
                answer.opaque = request.opaque
                answer.flag |= FLAG_RESPONSE
                self.send(answer)
        finally:
            self._handling -= 1
            if self._gate.paused:
                self.regulate()

    async def _answer(self, request: Command) -> Command | None:
        owner = self._owner
        if owner.going_away and request.version > GO_AWAY_VERSION and not request.is_oneway:
            return request.reply(Response.GO_AWAY, remark="this server is going away: connect elsewhere")
        if owner.handler is None:
            return request.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=unsupported(request).remark)
        try:
            if owner.credentials is not None:
                self._check(owner.credentials, request)
            return await owner.handler(self, request)
        except Refused as refused:
            return request.reply(refused.code, remark=refused.remark)
        except PeerError as error:
            # A body that is not what the request needs; the frames are whole, so the peer may go on.
            what = name_of(request.code)
            owner.complaints.warn("%s: %s from %s: %s", owner.name, what, self.remote, error)
            return request.reply(Response.SYSTEM_ERROR, remark=str(error))
        except Exception as error:
            log.exception("%s: %s from %s failed", owner.name, name_of(request.code), self.remote)
            return request.reply(Response.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _check(self, credentials: Credentials, request: Command) -> None:
        try:
            credentials.check(request)
        except Refused as refused:
            # Once a connection: an unsigned heartbeat hears no answer (oneway), and comes twice a second.
            level = logging.DEBUG if self._told_unsigned else logging.WARNING
            self._told_unsigned = True
            log.log(level, "%s: refused %s: %s", self._owner.name, self.remote, refused)
            raise

    # writing

    def _flush(self) -> None:
        self._flush_when = _NOT_DUE
        out = self._out
        if not out or self._state is _CLOSED or self._transport is None:
            return
        self._out = []
        self._last_io = self._loop.time()
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._gate.unread and self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._fail(f"it left {self._transport.get_write_buffer_size()} bytes unread")

    def regulate(self) -> None:
        """Read from the peer only while it reads what it is sent and has not too much under way."""
        if self._state is State.CLOSED or self._transport is None:
            return
        busy = self._owner.held or self._handling >= REQUESTS_MAX
        if self._gate.move(self._transport, busy=busy):
            self._inbox.begin_anew(self._loop.time())


def unsupported(request: Command) -> Refused:
    """What a request with an unknown code is answered."""
    return Refused(f"request code {request.code} is not supported", Response.REQUEST_CODE_NOT_SUPPORTED)


def _address(peer: Any) -> str:
    """``ip:port`` of a socket address."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return ""
    host = str(peer[0])
    return f"[{host}]:{peer[1]}" if ":" in host else f"{host}:{peer[1]}"
