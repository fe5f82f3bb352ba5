"""One connection between two Controllers: first the handshake, then frames."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol, cast

from controller.links.frames import Frames
from controller.links.handshake import Accepting, Dialing, Identity, Opened
from controller.links.roster import Replaced
from controller.links.tls import member_names
from model.errors import PeerError
from model.settings import is_loopback
from runtime.report.complaints import Complaints

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES_MAX: Final = 16 << 20  # a peer that takes nothing is cut off


class Owner(Protocol):
    """What a link asks of the transport it belongs to."""

    @property
    def identity(self) -> Identity: ...
    @property
    def loopback_only(self) -> bool: ...
    @property
    def complaints(self) -> Complaints: ...
    def nonce(self) -> bytes: ...
    def on_connection(self, link: Link) -> float | None: ...
    def on_opened(self, link: Link, opened: Opened) -> None: ...
    def on_body(self, link: Link, body: bytes) -> None: ...
    def on_ended(self, link: Link, error: Exception | None) -> None: ...


class Link(asyncio.Protocol):
    """``dialed``: the member this end wants to reach; None = this end was dialed."""

    def __init__(self, owner: Owner, dialed: str | None) -> None:
        self.peer: str | None = None
        self.process = b""
        self.secret = b""  # by which both ends proved themselves
        self.remote = "?"
        self.heard = self.spoke = 0.0  # loop time of the last bytes in, of the last frame out
        self.ended = asyncio.Event()
        self._owner = owner
        self.dialed = dialed
        self._wire: asyncio.Transport | None = None
        self._handshake: Dialing | Accepting | None = None
        self._frames: Frames | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._wire = cast(asyncio.Transport, transport)  # uvloop has its own class
        loop, owner = asyncio.get_running_loop(), self._owner
        self.heard = self.spoke = loop.time()
        peername = wire.get_extra_info("peername") or ("?", 0)
        self.remote = f"{peername[0]}:{peername[1]}"
        if owner.loopback_only and not is_loopback(str(peername[0])):
            owner.complaints.warn(
                "Raft connection from %s refused: without raftSecretFile only loopback may connect",
                self.remote,
            )
            wire.abort()
            return
        handshake_s = owner.on_connection(self)
        if handshake_s is None:
            wire.abort()
            return
        self._deadline = loop.call_later(handshake_s, self._too_late)
        names = member_names(wire.get_extra_info("peercert"))
        if self.dialed is None:
            self._handshake = Accepting(owner.identity, names, owner.nonce())
            return
        try:
            owner.identity.check_certificate(self.dialed, names)
        except PeerError as error:
            log.warning("Raft connection to %s (%s) ended: %s", self.dialed, self.remote, error)
            self.abort()
            return
        self._handshake = Dialing(owner.identity, self.dialed, owner.nonce())
        wire.write(self._handshake.hello)

    def data_received(self, data: bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        try:
            if self._frames is None:
                self._shake_hands(data)
            else:
                self._frames.feed(data)
            self._take_frames()
        except PeerError as error:
            say = log.debug if isinstance(error, Replaced) else self._owner.complaints.warn
            peer = self.peer or "a stranger"
            say("Raft connection with %s (%s) ended: %s", peer, self.remote, error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._owner.on_ended(self, exc)
        self.ended.set()

    def _shake_hands(self, data: bytes) -> None:
        if self.closing or self._handshake is None:
            return
        said = self._handshake.feed(data)
        if said and self._wire is not None:
            self._wire.write(said)
        opened = self._handshake.opened
        if opened is None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self.peer, self.process, self._frames, self.secret = opened
        self._owner.on_opened(self, opened)

    def _take_frames(self) -> None:
        while self._frames is not None and not self.closing and (body := self._frames.take()) is not None:
            if body:
                self._owner.on_body(self, body)

    def _too_late(self) -> None:
        self._owner.complaints.warn("Raft connection with %s ended: no handshake in time", self.remote)
        self.abort()

    # what the transport does with a link

    def send(self, body: bytes) -> bool:
        """Whether the frame was handed to the connection."""
        wire = self._wire
        if wire is None or wire.is_closing() or self._frames is None:
            return False
        if wire.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX:
            log.warning("Controller %s takes nothing: link ended", self.peer)
            self.abort()
            return False
        wire.write(self._frames.pack(body))
        self.spoke = asyncio.get_running_loop().time()
        return True

    def abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()

    @property
    def closing(self) -> bool:
        return self._wire is None or self._wire.is_closing()
