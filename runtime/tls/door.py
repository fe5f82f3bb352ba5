"""What does the first byte of a connection decide?

A TLS connection begins with 0x16 (a handshake record), no protocol of ours or RocketMQ's does. The byte is
looked at and left in the socket; then whoever is to serve the connection is given the socket, and nothing of
this stays on its way: a plain connection costs nothing more per message.

A connection that says nothing, or does not end its handshake, holds nothing but a descriptor: it ends after
``FIRST_BYTE_S`` or ``HANDSHAKE_S``, and the oldest silent one gives way when ``places`` are taken. A
handshake is a millisecond or two of computing in the event loop: ``STARTS_A_TURN`` begin in one turn and
``SHAKING_MAX`` are under way, and addresses take turns (``runtime/tls/queue``). When others wait, the oldest
one of the address that has most of them ends once it is ``GIVE_WAY_S`` old; for an address that has fewer
after ``SHARE_S`` already: however many handshakes one address begins, others have their places. What waited
for ``HANDSHAKE_S`` ends.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from model.config.tls import Mode
from runtime.report.complaints import Complaints
from runtime.tasks import Tasks
from runtime.tls.alerts import Alerts
from runtime.tls.places import Places
from runtime.tls.queue import Queue
from runtime.tls.words import told

HANDSHAKE_BYTE: Final = 0x16
FIRST_BYTE_S: Final = 30.0
HANDSHAKE_S: Final = 10.0
SHUTDOWN_S: Final = 3.0
SHAKING_MAX: Final = 64
STARTS_A_TURN: Final = 4
LOOKED_AT: Final = 8
"""So many addresses are asked in one turn whether a place is theirs."""
GIVE_WAY_S: Final = 1.0
SHARE_S: Final = 0.1
ACCEPTS_A_TURN: Final = 16
NO_DESCRIPTOR_S: Final = 1.0
"""So long nothing is accepted after the system had no descriptor left."""
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Choice(enum.Enum):
    """How a connection goes on; a refusal has its text."""

    PLAIN = "without TLS"
    TLS = "with TLS"
    NO_PLAIN = "it begins without TLS, and tls.server.mode=enforcing here: dial with TLS"
    NO_TLS = "it begins a TLS handshake, and tls.server.mode=disabled here"


def choose(mode: Mode, first: int) -> Choice:
    """Which protocol a connection speaks whose first byte is ``first``."""
    if first == HANDSHAKE_BYTE:
        return Choice.NO_TLS if mode is Mode.DISABLED else Choice.TLS
    return Choice.NO_PLAIN if mode is Mode.ENFORCING else Choice.PLAIN


class Source(Protocol):
    """Where a port has its certificates from, and where it counts."""

    handshakes: Counter[str]
    complaints: Complaints

    @property
    def server(self) -> ssl.SSLContext | None:
        """For connections that begin now; None: no TLS."""


class _Knock:
    """A connection that has not begun."""

    __slots__ = ("began", "given", "host", "remote", "sock", "task", "timer")

    def __init__(self, sock: socket.socket, remote: str, host: str) -> None:
        self.sock = sock
        self.remote = remote
        self.host = host
        self.began = 0.0
        self.given = False  # the socket is a transport's
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class Door:
    """One listening port."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        state: Source,
        mode: Callable[[], Mode],
        places: Places,
    ) -> None:
        self._factory = factory
        self._state = state
        self._mode = mode
        self._places = places
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("tls")
        self._listening: list[socket.socket] = []
        self._silent: dict[_Knock, None] = {}  # in order of arrival
        self._queued: Queue[_Knock] = Queue()
        self._shaking: dict[_Knock, None] = {}
        self._places_of: Counter[str] = Counter()  # addresses of those that shake hands
        self._hosts: Counter[str] = Counter()
        self._due = False
        self._again_at: asyncio.TimerHandle | None = None
        self._alerts = Alerts()

    def open(self, listening: socket.socket) -> None:
        """Accept what comes on a socket that listens; it is the door's own from now on."""
        listening.setblocking(False)
        self._listening.append(listening)
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def close(self) -> None:
        """Accept no more, and end what says nothing; what has begun goes on, as everywhere."""
        listening, self._listening = self._listening, []
        for own in listening:
            self._loop.remove_reader(own.fileno())
            own.close()
        for knock in list(self._silent):
            self._look(knock)  # its first byte may have come, and not been looked at yet
        for knock in list(self._silent):
            self._end(knock)
        self._alerts.close()

    @property
    def waiting(self) -> int:
        """Connections that have not begun."""
        return len(self._silent) + len(self._queued) + len(self._shaking)

    def check_invariants(self) -> None:
        assert self.waiting == self._hosts.total(), "each connection that has not begun has one address"
        assert self.waiting <= self._places.total, "no more than there are places"
        assert len(self._shaking) <= SHAKING_MAX, "no more handshakes than SHAKING_MAX at a time"
        assert self._places_of == Counter(knock.host for knock in self._shaking), "each has one place"
        self._queued.check_invariants()

    # accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Others are the connection's own (accept(2)): it is gone, and the next one comes.
                self._state.complaints.warn("cannot accept a connection: %s", error.strerror)
                if error.errno in _FULL:
                    self._loop.remove_reader(listening.fileno())
                    self._loop.call_later(NO_DESCRIPTOR_S, self._again, listening)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._knock(sock, address)

    def _again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _knock(self, sock: socket.socket, address: Any) -> None:
        host, remote = str(address[0]), f"{address[0]}:{address[1]}"
        if self._hosts[host] >= self._places.per_address:
            self._state.complaints.warn("%s has too many connections that say nothing: refused", host)
            sock.close()
            return
        if self.waiting >= self._places.total:
            if self._queued and not self._silent:
                self._end(self._queued.last(SHAKING_MAX))
            else:
                self._end(next(iter(self._silent or self._shaking)))
        knock = _Knock(sock, remote, host)
        self._hosts[host] += 1
        self._silent[knock] = None
        knock.timer = self._loop.call_later(FIRST_BYTE_S, self._end, knock)
        self._loop.add_reader(sock.fileno(), self._look, knock)

    def _look(self, knock: _Knock) -> None:
        try:
            first = knock.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._end(knock)
            return
        choice = choose(self._mode(), first[0])
        if choice is Choice.TLS:
            self._hush(knock)
            self._queued.add(knock)
            knock.timer = self._loop.call_later(HANDSHAKE_S, self._waited, knock)
            self._pump_soon()
        elif choice is Choice.PLAIN:
            self._hush(knock)
            self._shaking_off(knock)
            self._tasks.spawn(self._begin(knock), name="plain")
        else:
            self._state.handshakes["refused"] += 1
            self._state.complaints.warn("connection of %s refused: %s", knock.remote, choice.value)
            self._end(knock)

    # handshakes

    def _pump_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Begin handshakes: a few in each turn of the loop."""
        self._due = False
        for _ in range(STARTS_A_TURN):
            knock = self._next()
            if knock is None:
                return
            self._queued.take(knock, SHAKING_MAX)
            if knock.timer is not None:
                knock.timer.cancel()
                knock.timer = None
            self._shaking[knock] = None
            self._places_of[knock.host] += 1
            knock.began = self._loop.time()
            knock.task = self._tasks.spawn(self._begin(knock, self._state.server), name="shake")
        if self._queued:
            self._pump_soon()

    def _next(self) -> _Knock | None:
        """The next one for which there is a place, or None: then this is called again when there is."""
        if not self._queued:
            return None
        if len(self._shaking) < SHAKING_MAX:
            return self._queued.next(SHAKING_MAX)
        waits_s = GIVE_WAY_S
        for _ in range(LOOKED_AT):
            knock = self._queued.look(SHAKING_MAX)
            if knock is None:
                break
            oldest, at = self._gives_way_to(knock.host)
            left_s = at - self._loop.time()
            if left_s <= 0:
                self._fail(oldest, "it is slow, and others wait")
                self._end(oldest)
                return knock
            waits_s = min(waits_s, left_s)
        at = self._loop.time() + waits_s
        if self._again_at is None or at < self._again_at.when():
            if self._again_at is not None:
                self._again_at.cancel()
            self._again_at = self._loop.call_at(at, self._look_anew)
        return None

    def _look_anew(self) -> None:
        self._again_at = None
        self._queued.look_anew()
        self._pump_soon()

    def _gives_way_to(self, host: str) -> tuple[_Knock, float]:
        """Whose place an address gets, and when (the loop's clock)."""
        ((greatest, most),) = self._places_of.most_common(1)
        oldest = next(knock for knock in self._shaking if knock.host == greatest)
        has_share = self._places_of[host] + 1 >= most
        return oldest, oldest.began + (GIVE_WAY_S if has_share else SHARE_S)

    async def _begin(self, knock: _Knock, context: ssl.SSLContext | None = None) -> None:
        """Give the socket to the one who serves it, after the handshake that ``context`` asks for."""
        try:
            if context is None:
                knock.given = True  # the transport closes the socket when this fails or is cancelled
                await self._loop.connect_accepted_socket(self._factory, knock.sock)
            else:
                with self._alerts.watched(knock.sock):
                    await self._shake(knock, context)
        except OSError as error:
            if context is not None:
                self._fail(knock, told(error))
        finally:
            self._shaking_off(knock)
            if self._queued:
                self._pump_soon()

    async def _shake(self, knock: _Knock, context: ssl.SSLContext) -> None:
        knock.given = True
        await self._loop.connect_accepted_socket(
            self._factory,
            knock.sock,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
        self._state.handshakes["ok"] += 1
        self._queued.on_ended_well(knock.remote.rpartition(":")[0])

    def _waited(self, knock: _Knock) -> None:
        self._fail(knock, f"others came before it for {HANDSHAKE_S:.0f} s")
        self._end(knock)

    def _fail(self, knock: _Knock, why: str) -> None:
        self._state.handshakes["failed"] += 1
        self._state.complaints.warn("TLS handshake of %s failed: %s", knock.remote, why)

    # ends

    def _hush(self, knock: _Knock) -> None:
        """Nothing more is looked at: it has a protocol, or ends."""
        del self._silent[knock]
        self._loop.remove_reader(knock.sock.fileno())
        if knock.timer is not None:
            knock.timer.cancel()
            knock.timer = None

    def _shaking_off(self, knock: _Knock) -> None:
        """It waits no more."""
        if knock.timer is not None:
            knock.timer.cancel()
            knock.timer = None
        host, knock.host = knock.host, ""
        if knock in self._shaking:
            del self._shaking[knock]
            self._places_of[host] -= 1
            if not self._places_of[host]:
                del self._places_of[host]
        if host:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]

    def _end(self, knock: _Knock) -> None:
        if knock in self._silent:
            self._hush(knock)
        self._queued.remove(knock)
        self._shaking_off(knock)
        if knock.task is not None:
            knock.task.cancel()
        if not knock.given:
            knock.sock.close()
