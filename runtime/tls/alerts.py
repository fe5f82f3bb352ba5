"""How does a peer learn why its handshake failed?

TLS says it in an alert, and OpenSSL writes one; asyncio and uvloop close the connection without sending it,
so that a client sees a hang-up and nobody knows that it lacks a certificate. Here what OpenSSL left to send
goes with the error, and is sent on a second descriptor of the socket.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

LINGER_S: Final = 0.5
"""What the peer sent meanwhile is read: closing over unread bytes resets the connection, alert and all."""
LINGERING_MAX: Final = 64
_DRAIN_BYTES: Final = 65_536
_ALERT: Final = "alert"


class _TellingObject(ssl.SSLObject):
    """Leaves the alert in the error of its handshake."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLSyscallError):
            raise
        except ssl.SSLError as error:
            vars(error)[_ALERT] = self.outgoing.read()
            raise


class TellingContext(ssl.SSLContext):
    """A server's context whose failed handshakes have something to say."""

    sslobject_class = _TellingObject

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _TellingObject), "what sslobject_class says"
        made.outgoing = outgoing
        return made


class Alerts:
    """Of one port."""

    def __init__(self) -> None:
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}

    @contextmanager
    def watched(self, sock: socket.socket) -> Iterator[None]:
        """Around one handshake on ``sock``: when it fails, the alert is sent."""
        own: socket.socket | None = sock.dup()
        try:
            yield
        except ssl.SSLError as error:
            alert = vars(error).get(_ALERT)
            if alert and own is not None and len(self._lingering) < LINGERING_MAX:
                self._send(own, alert)
                own = None
            raise
        finally:
            if own is not None:
                own.close()

    def close(self) -> None:
        for own in list(self._lingering):
            self._end(own)

    def _send(self, own: socket.socket, data: bytes) -> None:
        self._lingering[own] = asyncio.get_running_loop().call_later(LINGER_S, self._end, own)
        with suppress(OSError):  # best effort: the peer may be gone
            own.send(data)
            own.shutdown(socket.SHUT_WR)

    def _end(self, own: socket.socket) -> None:
        self._lingering.pop(own).cancel()
        with suppress(OSError):
            own.recv(_DRAIN_BYTES)
        own.close()
