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
complement): a real master that gets one by mistake reads states that do not exist, or in a group without
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
from runtime.secret import MAC_BYTES, fresh_nonce, is_mac, mac, read_secret

if TYPE_CHECKING:
    from model.config import BrokerConfig
    from runtime.env import Env

PROOF_S: Final = 2.0
"""Both ends have proven themselves within so long, seconds; it takes one round trip."""
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

    def __init__(self, env: Env, credentials: Credentials, epoch: int) -> None:
        self.proven: int | None = None
        """The broker id of the other side; None before its proof, or when there is none."""
        self.answered = False
        self._env = env
        self._credentials = credentials
        self._epoch = epoch
        self._buffer = b""
        self._said = b""
        self._their_epoch = 0

    @property
    def strict(self) -> bool:
        """Whether nothing passes without a proof."""
        return self._credentials.secret is not None and not self._credentials.lenient

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Take what came: (what to answer, bytes of the HA protocol), the second None until it is open.

        Never keeps more than a hello. Raises UnprovenError.
        """
        secret = self._credentials.secret
        if self.answered:
            return b"", self._proof(data)
        if secret is None:
            if data.startswith(MAGIC):
                raise UnprovenError("it wants a proof, and haSecretFile is not set here", Reason.NO_SECRET)
            return b"", data
        if not self._buffer and data[0] < 0x80:
            if self.strict:
                raise UnprovenError("it speaks without having proven who it is", Reason.NEEDS_PROOF)
            return b"", data
        if len(self._buffer) + len(data) > HELLO_BYTES:
            raise UnprovenError("it says more than who it is before it was answered")
        self._buffer += data
        if self._buffer[: len(MAGIC)] != MAGIC[: len(self._buffer)]:
            raise UnprovenError("it does not speak the HA protocol")
        return (self._answer(secret) if len(self._buffer) == HELLO_BYTES else b""), None

    def _answer(self, secret: bytes) -> bytes:
        _, _, scope, their_id, their_epoch = _HELLO.unpack(self._buffer)
        if scope != self._credentials.scope:
            raise UnprovenError("it is of another brokerClusterName or brokerName", Reason.OTHER_GROUP)
        if ~their_id <= 0 or ~their_epoch < 0:
            raise UnprovenError(f"it says that it is broker {~their_id} in epoch {~their_epoch}")
        self._their_epoch = ~their_epoch
        head = _ANSWER.pack(MAGIC, fresh_nonce(self._env.random, secret), self._epoch)
        self._said = self._buffer + head
        self._buffer = b""
        self.answered = True
        return head + mac(secret, _MASTER, self._said)

    def _proof(self, data: bytes) -> bytes | None:
        self._buffer += data
        if len(self._buffer) < MAC_BYTES:
            return None
        secret = self._credentials.secret
        given, rest = self._buffer[:MAC_BYTES], self._buffer[MAC_BYTES:]
        their_id = ~_HELLO.unpack_from(self._said)[3]
        if secret is None or not is_mac(given, secret, _SLAVE, self._said):
            raise UnprovenError(f"it does not prove that it is broker {their_id} of this group")
        if self._their_epoch > self._epoch:
            # There was an election this master has not heard of: nothing may be confirmed by this link.
            raise PeerError(f"broker {their_id} follows epoch {self._their_epoch}, we lead {self._epoch}")
        self.proven = their_id
        self._buffer = b""
        return rest


class HandshakeInitiator:
    """The slave's end of a new link, until the master has proven itself."""

    def __init__(self, env: Env, secret: bytes, scope: bytes, broker_id: int, epoch: int) -> None:
        nonce = _negative(fresh_nonce(env.random, secret))
        self.hello = _HELLO.pack(MAGIC, nonce, scope, ~broker_id, ~epoch)
        self._secret = secret
        self._epoch = epoch
        self._buffer = b""

    def feed(self, data: bytes) -> bytes | None:
        """Take what came: our proof, or None while the master's is not there. Raises PeerError: the master
        leads a former epoch, or, as an UnprovenError, did not prove itself."""
        if len(self._buffer) + len(data) > ANSWER_BYTES:
            raise UnprovenError(_WITHOUT)
        self._buffer += data
        need_no_refusal(self._buffer)
        if not self._buffer.startswith(_REFUSED) and self._buffer[: len(MAGIC)] != MAGIC[: len(self._buffer)]:
            raise UnprovenError(_WITHOUT)
        if len(self._buffer) < ANSWER_BYTES:
            return None
        head, given = self._buffer[: _ANSWER.size], self._buffer[_ANSWER.size :]
        said = self.hello + head
        if not is_mac(given, self._secret, _MASTER, said):
            raise UnprovenError("the master does not prove that it is of this group: haSecretFile differs")
        epoch = _ANSWER.unpack(head)[2]
        if epoch < self._epoch:
            raise PeerError(f"the master leads epoch {epoch}, this slave follows {self._epoch}")
        return mac(self._secret, _SLAVE, said)


_WITHOUT: Final = "the master answers without a proof: it is no broker of keelmq with haSecretFile"
NO_PROOF: Final = "the master hung up before it proved that it knows haSecretFile"


def refusal(reason: Reason) -> bytes:
    """What a master says to a link it turns away. Short enough for a real slave to wait for more of it."""
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
