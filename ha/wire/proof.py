"""What two brokers of a group say on the HA port before the HA protocol, when they share ``haSecretFile``.

    slave -> master, hello, 88 bytes       master -> slave, answer, 80 bytes      slave -> master, 32 bytes
    at  size  field                        at  size  field                        at  size  field
     0     8  b"\\xffKMQHA01"                0     8  b"\\xffKMQHA01"                0    32  proof
     8    32  nonce                         8    32  nonce                       then the HA protocol
    40    32  cluster and group            40     8  epoch the master leads
    72     8  ~ broker id of the slave     48    32  proof
    80     8  ~ epoch the slave follows

A proof is an HMAC-SHA256 under the secret, of the prover's role and of all 136 bytes said before the first
one: so it is good for one connection, one cluster, group, broker id and direction only. The master proves
itself first: nobody can collect proofs of slaves beforehand. In place of an answer a master may say why not,
8 bytes: b"\\xffKMQHA!" and a ``Reason``. That is a hint for a log, which nobody has proven.

Every 8 bytes of the hello are a negative number (nonce and names give a bit each for it; ``~`` is the
complement): a RocketMQ master that gets one by mistake reads states that do not exist, or in a group without
Controller acknowledgements below zero, and counts none of them. What it is told by a slave of its own begins
with a byte below 0x80, which is how the two are told apart.

Not protected is what comes after: who can change bytes of a connection on its way, or stands between both
ends and passes the proofs on, can do so with the HA protocol. That takes a tunnel or a closed network.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from model.errors import PeerError
from model.ids import BrokerId, Epoch
from runtime.handshake import Initiator, Keys, NotProven, Responder, State
from runtime.mac import MAC_BYTES
from runtime.secret import fresh_nonce, read_secret

if TYPE_CHECKING:
    from model.config import BrokerConfig
    from runtime.env import Env

PROOF_S: Final = 2.0
"""Both ends have proven themselves within this long, seconds; it takes one round trip."""
MAGIC: Final = b"\xffKMQHA01"
_REFUSED: Final = b"\xffKMQHA!"
_HELLO: Final = struct.Struct(">8s32s32sqq")
_ANSWER: Final = struct.Struct(">8s32sq")
HELLO_BYTES: Final = _HELLO.size
ANSWER_BYTES: Final = _ANSWER.size + MAC_BYTES
REFUSAL_BYTES: Final = 8
assert (HELLO_BYTES, ANSWER_BYTES) == (88, 80)
_MASTER: Final = b"keelmq ha master\0"
_SLAVE: Final = b"keelmq ha slave\0"


class Reason(enum.Enum):
    """Why a master turns a link away, as its last byte says."""

    NO_SECRET = b"1"
    NEEDS_PROOF = b"2"
    OTHER_GROUP = b"3"


_TEXTS: Final = {
    Reason.NO_SECRET: "the master has no haSecretFile, so it cannot prove that it is of this group",
    Reason.NEEDS_PROOF: "the master believes brokers that prove themselves only: haSecretFile is needed here",
    Reason.OTHER_GROUP: "the master is of another brokerClusterName or brokerName",
}


class UnprovenError(PeerError):
    """The other side did not prove that it is a broker of this group, or says that we did not."""

    def __init__(self, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a broker proves itself with: the secret (None: there is none) and of which group it is.

    ``lenient`` (``trustPeers``): links without a proof are believed beside those with one.
    """

    secret: bytes | None
    scope: bytes
    lenient: bool

    @classmethod
    def of(cls, env: Env, config: BrokerConfig) -> Credentials:
        """Read ``haSecretFile``. Raises ConfigError."""
        secret = read_secret(env.disk, config.ha_secret_file, "haSecretFile")
        cluster = config.cluster_name.encode()
        names = len(cluster).to_bytes(4, "big") + cluster + config.broker_name.encode()
        return cls(secret, _negative(hashlib.sha256(names).digest()), config.trust_peers)


class HandshakeResponder:
    """The master's end of a new link: what came through it was said by a broker that proved its id, or, with
    ``Credentials`` that ask for no proof, by somebody."""

    def __init__(self, env: Env, credentials: Credentials, epoch: Epoch) -> None:
        self.proven: BrokerId | None = None
        """The broker id of the other side; None before its proof, or when there is none."""
        self._env = env
        self._credentials = credentials
        self._epoch = epoch
        self._end = Responder(_keys(credentials.secret or b""))

    @property
    def answered(self) -> bool:
        """Whether this master has proven itself on this link."""
        return self._end.state is not State.HELLO

    @property
    def strict(self) -> bool:
        """Whether nothing passes without a proof."""
        return self._credentials.secret is not None and not self._credentials.lenient

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Take what came: (what to answer, bytes of the HA protocol), the second None until it is open.

        Never keeps more than a hello. Raises UnprovenError.
        """
        secret, end = self._credentials.secret, self._end
        if self.answered:
            return b"", self._proof(data)
        if secret is None:
            if data.startswith(MAGIC):
                raise UnprovenError("it wants a proof, and haSecretFile is not set here", Reason.NO_SECRET)
            return b"", data
        if not end.kept and data[0] < 0x80:
            if self.strict:
                raise UnprovenError("it speaks without having proven who it is", Reason.NEEDS_PROOF)
            return b"", data
        if len(end.kept) + len(data) > HELLO_BYTES:
            raise UnprovenError("it says more than who it is before it was answered")
        end.kept += data
        if end.kept[: len(MAGIC)] != MAGIC[: len(end.kept)]:
            raise UnprovenError("it does not speak the HA protocol")
        return (self._answer(end.kept, secret) if len(end.kept) == HELLO_BYTES else b""), None

    def _answer(self, hello: bytes, secret: bytes) -> bytes:
        _, _, scope, their_id, their_epoch = _HELLO.unpack(hello)
        if scope != self._credentials.scope:
            raise UnprovenError("it is of another brokerClusterName or brokerName", Reason.OTHER_GROUP)
        if ~their_id <= 0 or ~their_epoch < 0:
            raise UnprovenError(f"it says that it is broker {~their_id} in epoch {~their_epoch}")
        nonce = fresh_nonce(self._env.random, secret)
        return self._end.answer(hello, _ANSWER.pack(MAGIC, nonce, self._epoch))

    def _proof(self, data: bytes) -> bytes | None:
        _, _, _, their_id, their_epoch = _HELLO.unpack_from(self._end.said)
        try:
            rest = self._end.feed(data)
        except NotProven:
            raise UnprovenError(f"it does not prove that it is broker {~their_id} of this group") from None
        if rest is None:
            return None
        if ~their_epoch > self._epoch:
            # There was an election this master has not heard of: nothing may be confirmed by this link.
            raise PeerError(f"broker {~their_id} follows epoch {~their_epoch}, we lead {self._epoch}")
        self.proven = BrokerId(~their_id)
        return rest


class HandshakeInitiator:
    """The slave's end of a new link, until the master has proven itself."""

    def __init__(self, env: Env, secret: bytes, scope: bytes, broker_id: BrokerId, epoch: Epoch) -> None:
        nonce = _negative(fresh_nonce(env.random, secret))
        self.hello = _HELLO.pack(MAGIC, nonce, scope, ~broker_id, ~epoch)
        self._epoch = epoch
        self._end = Initiator(_keys(secret), self.hello, _ANSWER.size)

    def feed(self, data: bytes) -> bytes | None:
        """Take what came: our proof, or None while the master's is not there. Raises PeerError: the master
        leads a former epoch, or, as an UnprovenError, did not prove itself."""
        heard = self._end.kept + data
        if len(heard) > ANSWER_BYTES:
            raise UnprovenError(_WITHOUT)
        need_no_refusal(heard)
        if not heard.startswith(_REFUSED) and heard[: len(MAGIC)] != MAGIC[: len(heard)]:
            raise UnprovenError(_WITHOUT)
        try:
            head = self._end.feed(data)
        except NotProven:
            raise UnprovenError(
                "the master does not prove that it is of this group: haSecretFile differs"
            ) from None
        if head is None:
            return None
        epoch = _ANSWER.unpack(head)[2]
        if epoch < self._epoch:
            raise PeerError(f"the master leads epoch {epoch}, this slave follows {self._epoch}")
        return self._end.own_proof()


def _keys(secret: bytes) -> Keys:
    return Keys(secret, initiator=_SLAVE, responder=_MASTER)


_WITHOUT: Final = "the master answers without a proof: it is no broker of keelmq with haSecretFile"
NO_PROOF: Final = "the master closed the connection before it proved itself (its haSecretFile, or it stops)"


def refusal(reason: Reason) -> bytes:
    """What a master says to a link it turns away. So short that a RocketMQ slave waits for more of it."""
    return _REFUSED + reason.value


def need_no_refusal(data: bytes) -> None:
    """Raise UnprovenError when ``data``, the first a master said, is a ``refusal``."""
    if data.startswith(_REFUSED) and len(data) >= REFUSAL_BYTES:
        try:
            reason = Reason(data[len(_REFUSED) : REFUSAL_BYTES])
        except ValueError:
            raise UnprovenError("the master turns us away") from None
        raise UnprovenError(_TEXTS[reason], reason)


def _negative(data: bytes) -> bytes:
    """Set the highest bit of each 8 bytes."""
    return bytes(byte | 0x80 if at % 8 == 0 else byte for at, byte in enumerate(data))
