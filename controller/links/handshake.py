"""How do two Controllers prove to each other which members they are?

Three unframed pieces of fixed form; an id is one length byte and UTF-8, with the incarnation of a member that
was replaced (``controller.links.roster``)::

    dialer   -> acceptor   b"KMQRAFT1", nonce (32), own id, id it wants to reach
    acceptor -> dialer     nonce (32), proof (32)
    dialer   -> acceptor   proof (32)

A dialer that was never admitted begins with b"KMQRAFT2" and says its own Raft address behind the two ids, in
the same form. An admitted one does not: its incarnation says which machine it is.

A proof is the HMAC, under the shared secret, of the prover's role and everything said, together with the
list of member ids: members with another secret or another list do not connect (``runtime.handshake``). While
a secret is exchanged a member has two: it proves itself with the first, and a dialer answers with the one
that the acceptor used.
Session keys come from the same transcript, one for each direction.

Nonces must be new, not secret: the acceptor proves itself first, so nobody can collect a dialer's proofs in
advance. Their first half is the same in all those of one process, so two processes with one id (a copied
directory) are told apart. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from controller.links.frames import Frames
from controller.links.roster import Replaced, Roster
from model.errors import ConfigError, PeerError
from runtime.handshake import Initiator, Keys, NotProven, Responder, State
from runtime.secret import NONCE_BYTES

MAGIC: Final = b"KMQRAFT1"
MAGIC_NEW: Final = b"KMQRAFT2"  # of a dialer that was never admitted: its address follows
assert len(MAGIC) == len(MAGIC_NEW), "what follows has one place"
ID_BYTES_MAX: Final = 230  # with an incarnation behind it an id still fits its length byte
TEXT_BYTES_MAX: Final = 255
PROCESS_BYTES: Final = NONCE_BYTES // 2


@dataclass(frozen=True, slots=True)
class Identity:
    """Which member this is, the ids of all, and what proves it. ``tls``: certificates name members."""

    roster: Roster
    ids: frozenset[str]
    keys: Keys
    tls: bool

    @property
    def node_id(self) -> str:
        return self.roster.node_id

    @classmethod
    def of(cls, roster: Roster, secrets: tuple[bytes, ...], *, tls: bool) -> Identity:
        """Raises ConfigError for ids the handshake cannot carry."""
        members = frozenset(roster.addresses)
        if any(not 0 < len(member.encode()) <= ID_BYTES_MAX or "\n" in member for member in members):
            raise ConfigError(f"ids in controllerDLegerPeers must be one line of 1 to {ID_BYTES_MAX} bytes")
        if len(roster.addresses[roster.node_id].encode()) > TEXT_BYTES_MAX:
            raise ConfigError(f"this Controller's Raft address has more than {TEXT_BYTES_MAX} bytes")
        context = hashlib.sha256("\n".join(sorted(members)).encode()).digest()
        keys = Keys(b"", initiator=b"dialer\0", responder=b"acceptor\0", context=context)
        return cls(roster, members, keys, tls).proving_by(secrets)

    def proving_by(self, secrets: tuple[bytes, ...]) -> Identity:
        """The same member with other secrets. Without one its proofs prove nothing."""
        first, *others = secrets or (b"",)
        return replace(self, keys=replace(self.keys, secret=first, also=tuple(others)))

    def takes(self, secret: bytes) -> bool:
        """Whether a link that ``secret`` proved may go on."""
        return secret == self.keys.secret or secret in self.keys.also

    def check_certificate(self, peer: str, names: frozenset[str]) -> None:
        """Raises PeerError when the certificate shown is not ``peer``'s."""
        if self.tls and peer not in names:
            raise PeerError(f"its certificate is that of {', '.join(sorted(names))}, not of {peer}")


class Opened(NamedTuple):
    """What a finished handshake leaves. ``process``: which process of ``peer`` this is. ``secret``: by which
    both ends proved themselves."""

    peer: str
    process: bytes
    frames: Frames
    secret: bytes


def dials(one: str, other: str) -> bool:
    """Whether ``one`` makes the connection of the two."""
    return one < other


class Dialing:
    """The end that dialed ``peer``."""

    def __init__(self, identity: Identity, peer: str, nonce: bytes) -> None:
        roster = identity.roster
        self._wanted = roster.label_of(peer)
        ids = nonce + _text(roster.own_label()) + _text(self._wanted)
        address = roster.own_address()
        self.hello = MAGIC + ids if address is None else MAGIC_NEW + ids + _text(address)
        self.opened: Opened | None = None
        self._peer = peer
        self._roster = roster
        self._end = Initiator(identity.keys, self.hello, NONCE_BYTES)

    def feed(self, data: bytes) -> bytes:
        """Take what came; what to say now. Raises PeerError."""
        try:
            head = self._end.feed(data)
        except NotProven:
            raise _not_proven() from None
        if head is None:
            return b""
        if self._roster.label_of(self._peer) != self._wanted:
            raise Replaced(f"{self._peer} was replaced meanwhile")
        own = self._end.own_proof()
        frames = _frames(self._end, b"dialer", b"acceptor")
        self.opened = Opened(self._peer, head[:PROCESS_BYTES], frames, self._end.secret)
        return own


class Accepting:
    """The end that was dialed. ``names``: of the certificate shown."""

    def __init__(self, identity: Identity, names: frozenset[str], nonce: bytes) -> None:
        self.opened: Opened | None = None
        self._identity = identity
        self._names = names
        self._nonce = nonce
        self._end = Responder(identity.keys)
        self._said = b""
        self._hello: _Hello | None = None
        self._claimed = ""
        self._process = b""

    def feed(self, data: bytes) -> bytes:
        """Take what came; what to say now. Raises PeerError."""
        if self._end.state is State.HELLO:
            self._said += data
            return self._on_hello()
        try:
            rest = self._end.feed(data)
        except NotProven:
            raise _not_proven() from None
        if rest is not None:
            assert self._hello is not None, "it was answered"
            # Its seat may have changed since it was answered: links that are open end then, this one was not.
            self._identity.roster.check_claim(self._hello.claimed, self._hello.address)
            frames = _frames(self._end, b"acceptor", b"dialer")
            frames.feed(rest)
            self.opened = Opened(self._claimed, self._process, frames, self._end.secret)
        return b""

    def _on_hello(self) -> bytes:
        said, identity = self._said, self._identity
        hello = _read_hello(said)
        if hello is None:
            return b""
        if not identity.roster.is_wanted(hello.wanted):
            raise PeerError(f"it looks for {hello.wanted!r}, this is {identity.roster.own_label()!r}")
        claimed = identity.roster.check_claim(hello.claimed, hello.address)
        if claimed not in identity.ids or not dials(claimed, identity.node_id):
            raise PeerError(f"it calls itself {claimed!r}, which is no member that dials this one")
        identity.check_certificate(claimed, self._names)
        if len(said) > hello.size:
            raise PeerError("it talks before it was answered")
        self._hello = hello
        self._claimed, self._process = claimed, said[len(MAGIC) : len(MAGIC) + PROCESS_BYTES]
        return self._end.answer(said, self._nonce)


def _not_proven() -> PeerError:
    return PeerError("it has another raftSecretFile, or another list of members")


def _frames(end: Initiator | Responder, own: bytes, other: bytes) -> Frames:
    return Frames(end.proof(b"session " + own + b"\0"), end.proof(b"session " + other + b"\0"))


class _Hello(NamedTuple):
    claimed: str
    wanted: str
    address: str | None
    size: int


def _read_hello(data: bytes) -> _Hello | None:
    """The hello at the begin of ``data``, or None while it is not whole. Raises PeerError."""
    magic = data[: len(MAGIC)]
    if not (MAGIC.startswith(magic) or MAGIC_NEW.startswith(magic)):
        raise PeerError("it does not speak Raft")
    texts, at = list[bytes](), len(MAGIC) + NONCE_BYTES
    for _ in range(3 if magic == MAGIC_NEW else 2):
        if len(data) <= at or len(data) < (end := at + 1 + data[at]):
            return None
        texts.append(data[at + 1 : end])
        at = end
    try:
        claimed, wanted, *address = [text.decode() for text in texts]
    except UnicodeDecodeError:
        raise PeerError("its id is not UTF-8") from None
    return _Hello(claimed, wanted, address[0] if address else None, at)


def _text(value: str) -> bytes:
    data = value.encode()
    return bytes((len(data),)) + data
