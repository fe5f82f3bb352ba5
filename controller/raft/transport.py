"""How do Controllers talk to each other, and how do they know it is one of them?

One TCP connection for each pair of members; the one with the smaller id dials. Frames::

    at  size  field
     0     4  length  bytes that follow, big-endian
     4        body    a Raft message (``controller.raft.codec``), or nothing: a sign of life
           32  mac     HMAC-SHA256 of frame number (8 bytes, big-endian) and body, by the sender's session key

Before that, three unframed pieces of fixed form; an id is one length byte and UTF-8::

    dialer   -> acceptor   b"KMQRAFT1", nonce (32), own id, id it wants to reach
    acceptor -> dialer     nonce (32), proof (32)
    dialer   -> acceptor   proof (32)

A proof is the HMAC, under the shared secret, of the prover's role and everything said, together with the list
of member ids: members with another secret or another list do not connect. Session keys come from the same
transcript, one for each direction. Numbered MACs make a repeated, dropped or reordered frame end the
connection. Nothing is decoded before its MAC was checked. The secret gives authenticity, not secrecy.
Without a secret the proofs prove nothing, so then only loopback peers are accepted. With TLS
(``controller.raft.tls``) all this happens inside a connection both ends of which have shown their
certificates.

Nonces only have to be new, not secret: the acceptor proves itself first, so nobody can collect a dialer's
proofs in advance. Their first half is the same in all those of one process: a member is not replaced by
another process that has its id, secret and directory (a copy of its disk) as long as it is connected.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from controller.raft.codec import FRAME_BYTES_MAX
from controller.raft.tls import TlsFiles, TlsNetwork, member_names
from model.errors import ConfigError, PeerError
from model.settings import is_loopback, split_address
from runtime.env import Env, Listener
from runtime.handshake import Initiator, Keys, NotProven, Responder, State
from runtime.mac import MAC_BYTES, is_mac, mac
from runtime.secret import NONCE_BYTES
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

_MAGIC: Final = b"KMQRAFT1"
_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")

PROCESS_BYTES: Final = NONCE_BYTES // 2
STRANGERS_MAX: Final = 16  # accepted connections that have not proven who they are
WRITE_BUFFER_BYTES_MAX: Final = 16 << 20  # a peer that takes nothing is cut off


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    handshake_s: float = 2.0
    ping_s: float = 0.5
    silence_s: float = 2.0
    retry_s: float = 0.2


class Transport:
    """The links of one member. All callbacks run in the loop, one after the other.

    ``on_message(peer, body)`` may raise PeerError: the link ends. ``on_up`` and ``on_down`` come in turn
    for each peer.
    """

    def __init__(
        self,
        env: Env,
        node_id: str,
        addresses: dict[str, str],
        *,
        secret: bytes | None,
        on_message: Callable[[str, bytes], None],
        on_up: Callable[[str], None],
        on_down: Callable[[str], None],
        limits: Limits | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Raises ConfigError: members beyond loopback without secret or TLS, files that cannot be used."""
        self.env = env
        self.node_id = node_id
        self.addresses = addresses
        self.secret = secret or b""
        self.tls = tls is not None
        self.loopback_only = not secret and not self.tls
        self._network = env.network if tls is None else TlsNetwork(tls)
        if self.loopback_only:
            far = [
                f"{n} at {a}" for n, a in sorted(addresses.items()) if not is_loopback(split_address(a)[0])
            ]
            if far:
                raise ConfigError(
                    f"raftSecretFile is needed: Controller {far[0]} is not on loopback, and without a secret "
                    "or TLS anyone who reaches the port could vote"
                )
        if any(not 0 < len(node.encode()) < 256 for node in addresses):
            raise ConfigError("ids in controllerDLegerPeers must have 1 to 255 bytes")
        self.keys = Keys(
            self.secret,
            initiator=b"dialer\0",
            responder=b"acceptor\0",
            context=hashlib.sha256("\n".join(sorted(addresses)).encode()).digest(),
        )
        self.limits = limits or Limits()
        self._on_message, self._on_up, self._on_down = on_message, on_up, on_down
        self._links: dict[str, Link] = {}
        self._strangers: dict[int, Link] = {}
        self._process = b""
        self._doubled: dict[str, float] = {}  # id -> since when a second one is refused; inf = it was told
        self._numbers = 0
        self._tasks = Tasks(f"raft.{node_id}")
        self._listener: Listener | None = None
        self._closed = False

    async def start(self) -> None:
        """Listen and dial. Raises OSError when the port is taken."""
        if len(self.addresses) == 1:
            return
        host, port = split_address(self.addresses[self.node_id])
        self._listener = await self._network.listen(lambda: Link(self, None), host, port)
        for peer in sorted(self.addresses):
            if self.dials(self.node_id, peer):
                self._tasks.spawn(self._dial(peer), name=f"dial.{peer}")
        self._tasks.spawn(self._watch(), name="watch")

    async def stop(self) -> None:
        self.abort()
        await self._tasks.cancel()

    def abort(self) -> None:
        """Cut everything off at once."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        for link in [*self._links.values(), *self._strangers.values()]:
            link.abort()

    @property
    def peers(self) -> list[str]:
        """Ids of the members there is a link to."""
        return sorted(self._links)

    def send(self, peer: str, body: bytes) -> bool:
        """Whether ``body`` was handed to a link; that says nothing about its arrival."""
        link = self._links.get(peer)
        return link is not None and link.send(body)

    def drop(self, peer: str) -> None:
        """End the link to ``peer``; it is made anew."""
        link = self._links.get(peer)
        if link is not None:
            link.abort()

    @staticmethod
    def dials(one: str, other: str) -> bool:
        """Whether ``one`` makes the connection of the two."""
        return one < other

    # called by links

    def stranger(self, link: Link) -> int | None:
        """Admit a connection to the handshake: its number, or None after the end.

        When too many have not said who they are, the oldest goes: a member needs one round trip only.
        """
        if self._closed:
            return None
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = self._strangers.pop(next(iter(self._strangers)))
            log.warning("too many Raft connections without a name: %s dropped", oldest.remote)
            oldest.abort()
        self._numbers += 1
        self._strangers[self._numbers] = link
        return self._numbers

    def nonce(self) -> bytes:
        """A new one of this process."""
        nonce = self.env.random.randbytes(NONCE_BYTES)
        self._process = self._process or nonce[:PROCESS_BYTES]
        return self._process + nonce[PROCESS_BYTES:]

    def proven(self, link: Link, peer: str) -> None:
        """``link`` leads to ``peer``, for sure. A former link is a leftover if the same process made it."""
        self._strangers.pop(link.number, None)
        former = self._links.get(peer)
        if former is not None:
            if former.process != link.process and not former.closing:
                self._refuse_double(link, former, peer)
                return
            del self._links[peer]
            former.abort()
            self._on_down(peer)
        self._links[peer] = link
        self._on_up(peer)

    def _refuse_double(self, link: Link, former: Link, peer: str) -> None:
        """Two processes say that they are ``peer``. One that came back from a loss of power is such a second
        one, too, until the silence of its former life has lasted; whoever is refused longer is told of."""
        now = asyncio.get_running_loop().time()
        since = self._doubled.setdefault(peer, now)
        if now - since > 2 * self.limits.silence_s:
            self._doubled[peer] = float("inf")
            self.env.events.add("member_doubled", member=peer, at=former.remote, refused=link.remote)
            log.error(
                "Controller %s: %s is connected from %s, and who calls itself so at %s is refused:"
                " has it a copy of that one's directory? End one of them for good",
                self.node_id,
                peer,
                former.remote,
                link.remote,
            )
        link.abort()

    def received(self, peer: str, body: bytes) -> None:
        self._on_message(peer, body)

    def gone(self, link: Link) -> None:
        self._strangers.pop(link.number, None)
        if link.peer is not None and self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._doubled.pop(link.peer, None)
            self._on_down(link.peer)

    # tasks

    async def _dial(self, peer: str) -> None:
        host, port = split_address(self.addresses[peer])
        told = ""
        while not self._closed:
            try:
                _, link = await self._network.connect(
                    lambda: Link(self, peer), host, port, timeout_s=self.limits.handshake_s
                )
                await link.ended.wait()
                told = ""
            except OSError as error:
                if str(error) != told:
                    log.info(
                        "Controller %s cannot reach %s at %s:%d: %s", self.node_id, peer, host, port, error
                    )
                told = str(error)
            await asyncio.sleep(self.limits.retry_s * (0.5 + self.env.random.random()))

    async def _watch(self) -> None:
        """Signs of life on quiet links; an end to links and strangers that give none."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while not self._closed:
            await asyncio.sleep(self.limits.ping_s / 2)
            before, looked = looked, loop.time()
            now = looked
            # Of a process that stood still none can say whether others were silent.
            stood_still = now - before > self.limits.silence_s / 2
            for link in list(self._links.values()):
                if stood_still:
                    link.heard = now
                if now - link.heard > self.limits.silence_s:
                    log.warning("Controller %s: no sign of life from %s", self.node_id, link.peer)
                    link.abort()
                elif now - link.spoke >= self.limits.ping_s:
                    link.send(b"")


class Link(asyncio.Protocol):
    """One connection: first the handshake, then frames."""

    def __init__(self, owner: Transport, dialed: str | None) -> None:
        self.peer: str | None = None
        self.process = b""  # which process of the peer this is
        self.number = 0
        self.heard = self.spoke = 0.0
        self.ended = asyncio.Event()
        self._owner = owner
        self._dialed = dialed
        self._wire: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._end: Initiator | Responder = Responder(owner.keys)
        self._claimed = ""
        self._names: frozenset[str] = frozenset()  # of the certificate shown
        self._send_key = self._receive_key = b""
        self._sent = self._taken = 0
        self._deadline: asyncio.TimerHandle | None = None
        self.remote = "?"

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._wire = cast(asyncio.Transport, transport)  # uvloop has its own class
        loop = asyncio.get_running_loop()
        self.heard = self.spoke = loop.time()
        peername = wire.get_extra_info("peername") or ("?", 0)
        self.remote = f"{peername[0]}:{peername[1]}"
        if self._owner.loopback_only and not is_loopback(str(peername[0])):
            log.warning(
                "refused Raft connection of %s: without raftSecretFile only loopback may connect", self.remote
            )
            wire.abort()
            return
        self._names = member_names(wire.get_extra_info("peercert"))
        number = self._owner.stranger(self)
        if number is None:
            wire.abort()
            return
        self.number = number
        self._deadline = loop.call_later(self._owner.limits.handshake_s, self._too_late)
        if self._dialed is not None:
            try:
                self._check_certificate(self._dialed)
            except PeerError as error:
                log.warning("Raft connection to %s (%s) ended: %s", self._dialed, self.remote, error)
                self.abort()
                return
            hello = _MAGIC + self._owner.nonce() + _text(self._owner.node_id) + _text(self._dialed)
            self._end = Initiator(self._owner.keys, hello, NONCE_BYTES)
            wire.write(hello)

    def _check_certificate(self, peer: str) -> None:
        if self._owner.tls and peer not in self._names:
            raise PeerError(f"its certificate is that of {', '.join(sorted(self._names))}, not of {peer}")

    def data_received(self, data: bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        self._buffer += data
        try:
            while self._wire is not None and not self._wire.is_closing() and self._step():
                pass
        except PeerError as error:
            log.warning(
                "Raft connection with %s (%s) ended: %s", self.peer or "a stranger", self.remote, error
            )
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._owner.gone(self)
        self.ended.set()

    # what the transport does with a link

    def send(self, body: bytes) -> bool:
        wire = self._wire
        if wire is None or wire.is_closing():
            return False
        if wire.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX:
            log.warning("Controller %s takes nothing: cut off", self.peer)
            self.abort()
            return False
        self._sent += 1
        proof = mac(self._send_key, _NUMBER.pack(self._sent), body)
        wire.write(b"".join((_LENGTH.pack(len(body) + MAC_BYTES), body, proof)))
        self.spoke = asyncio.get_running_loop().time()
        return True

    def abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()

    @property
    def closing(self) -> bool:
        return self._wire is None or self._wire.is_closing()

    # the handshake; a step returns whether it found all it needs in the buffer

    def _step(self) -> bool:
        if self.peer is not None:
            return self._on_frame()
        end, data = self._end, bytes(self._buffer)
        try:
            if isinstance(end, Initiator):
                return self._on_answer(end, data)
            if end.state is State.HELLO:
                return self._on_hello(end, data)
            return self._on_proof(end, data)
        except NotProven:
            raise PeerError("it has another raftSecretFile, or another list of members") from None

    def _on_hello(self, end: Responder, data: bytes) -> bool:
        hello = _read_hello(data)
        if hello is None:
            return False
        owner = self._owner
        if hello.wanted != owner.node_id:
            raise PeerError(f"it looks for {hello.wanted!r}, this is {owner.node_id}")
        claimed = hello.claimed
        if claimed not in owner.addresses or not owner.dials(claimed, owner.node_id):
            raise PeerError(f"it calls itself {claimed!r}, which is no member that dials this one")
        self._check_certificate(claimed)
        if len(data) > hello.size:
            raise PeerError("it talks before it was answered")
        self._buffer.clear()
        self._claimed = claimed
        self.process = data[len(_MAGIC) : len(_MAGIC) + PROCESS_BYTES]
        self._write(end.answer(data, owner.nonce()))
        return True

    def _on_answer(self, end: Initiator, data: bytes) -> bool:
        self._buffer.clear()
        head = end.feed(data)
        if head is None:
            return False
        self.process = head[:PROCESS_BYTES]
        self._write(end.own_proof())
        assert self._dialed is not None, "only the dialer gets an answer"
        self._open(self._dialed, b"dialer", b"acceptor")
        return True

    def _on_proof(self, end: Responder, data: bytes) -> bool:
        self._buffer.clear()
        rest = end.feed(data)
        if rest is None:
            return False
        self._buffer += rest
        self._open(self._claimed, b"acceptor", b"dialer")
        return True

    def _open(self, peer: str, own: bytes, other: bytes) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._send_key = self._end.proof(b"session " + own + b"\0")
        self._receive_key = self._end.proof(b"session " + other + b"\0")
        self.peer = peer
        self._owner.proven(self, peer)

    def _on_frame(self) -> bool:
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(buffer)
        if not MAC_BYTES <= length <= FRAME_BYTES_MAX + MAC_BYTES:
            raise PeerError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return False
        body = bytes(buffer[_LENGTH.size : end - MAC_BYTES])
        given = bytes(buffer[end - MAC_BYTES : end])
        del buffer[:end]
        self._taken += 1
        if not is_mac(given, self._receive_key, _NUMBER.pack(self._taken), body):
            raise PeerError("a frame fails its authentication")
        if body:
            assert self.peer is not None, "frames come after the handshake"
            self._owner.received(self.peer, body)
        return True

    def _write(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.write(data)

    def _too_late(self) -> None:
        log.warning("Raft connection with %s ended: no handshake in time", self.remote)
        self.abort()


class _Hello(NamedTuple):
    claimed: str
    wanted: str
    size: int


def _read_hello(data: bytes) -> _Hello | None:
    """The hello at the begin of ``data``, or None while it is not whole. Raises PeerError."""
    if not _MAGIC.startswith(data[: len(_MAGIC)]):
        raise PeerError("it does not speak Raft")
    ids = len(_MAGIC) + NONCE_BYTES
    if len(data) <= ids or len(data) <= (second := ids + 1 + data[ids]):
        return None
    end = second + 1 + data[second]
    if len(data) < end:
        return None
    try:
        return _Hello(data[ids + 1 : second].decode(), data[second + 1 : end].decode(), end)
    except UnicodeDecodeError:
        raise PeerError("its id is not UTF-8") from None


def _text(value: str) -> bytes:
    data = value.encode()
    return bytes((len(data),)) + data
