"""How much may the clients of one server take, and which connection ends beyond that?

One ``Guard`` stands for all ports of a server. It counts connections, bytes of frames that have begun, and
bytes of answers that nobody reads. Beyond a cap the connection that has most of it ends, with one line in the
log as far as the rate limit lets it; everybody else goes on.

Peers (brokers, Controllers, NameServers, operators) do not count: a connection is a peer's once it has asked
for something that only peers ask for, signed where this server has a key. When clients have taken all
places, ``PROBATION_MAX`` more connections are taken for ``PROBATION_S``: one whose first request is a peer's
stays, any other is answered SYSTEM_BUSY and closed.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from model.codes import Request, Response
from model.config.server import ServerConfig
from model.errors import Refused
from remoting.acl.audit import Audit
from remoting.acl.gate import Gate, is_peer
from remoting.auth import PEER_CODES
from remoting.codec import FRAME_BYTES_MAX, Command
from remoting.inbox import PartsLine
from remoting.keys import Signer
from remoting.starts import Starts
from runtime.complaints import Complaints
from runtime.descriptors import SPARE
from runtime.slow_turns import SlowTurns

log = logging.getLogger(__name__)

CAPS: Final = (
    "descriptors",
    "maxBegunFrameBytes",
    "maxConnections",
    "maxConnectionsPerAddress",
    "maxUnreadBytes",
    "maxUnreadBytesPerConnection",
)
LONG_ANSWER_BYTES: Final = 4096
MADE_BYTES_MAX: Final = 16 << 20
"""Of long answers, so much is made in one turn of the loop: what has no place in the system's buffers waits
in ours, and thousands of clients may ask in one turn."""
PROBATION_MAX: Final = 64
PROBATION_SHORT: Final = 8  # while descriptors lack
PROBATION_S: Final = 2.0
IDLE_S: Final = 120.0
_ALSO_PEERS: Final = frozenset(
    {
        Request.GET_BROKER_EPOCH_CACHE,
        Request.CONTROLLER_GET_REPLICA_INFO,
        Request.CONTROLLER_GET_METADATA_INFO,
    }
)
"""Reads that only peers and operators make; they need no signature, but show a peer where there is no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps of one server. Connections and bytes are of its clients; those of peers do not count."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    idle_s: float = IDLE_S
    connections_max: int = 20_000
    connections_per_address: int = 10_000
    begun_bytes_max: int = 256 << 20
    unread_bytes_per_connection: int = 64 << 20
    unread_bytes_max: int = 512 << 20

    @classmethod
    def of(cls, config: ServerConfig) -> Limits:
        return cls(
            frame_bytes_max=config.frame_bytes_max,
            idle_s=config.server_channel_max_idle_s,
            connections_max=config.connections_max,
            connections_per_address=config.connections_per_address,
            begun_bytes_max=config.begun_bytes_max,
            unread_bytes_per_connection=config.unread_bytes_per_connection,
            unread_bytes_max=config.unread_bytes_max,
        )


class Standing(enum.Enum):
    """Whose connection is it?"""

    OWN = "this side made it"
    CLIENT = "it counts"
    PROBATION = "all places are taken: its first request decides"
    PEER = "it does not count"
    GONE = "it was turned away, or has ended"


class Share:
    """What one connection takes of its server. Changed by the guard alone."""

    __slots__ = ("host", "standing", "told_unsigned")

    def __init__(self) -> None:
        self.standing = Standing.OWN
        self.host = ""
        self.told_unsigned = False


class Guarded(Protocol):
    """A connection, as far as its guard is concerned."""

    share: Share
    remote: str

    @property
    def untaken(self) -> int:
        """Bytes written for the peer that it has not read."""

    def fail(self, why: object) -> None:
        """End it with one line in the log."""


class Tally:
    """Bytes by connection, and all of them; pure.

    Holds: ``total`` is the sum of what ``by`` has, and nobody has 0.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self.by: dict[Guarded, int] = {}
        self._most = most

    def note(self, connection: Guarded, size: int) -> Guarded | None:
        """It has ``size`` bytes now. Returns the connection to end when the growth passes the limit."""
        before = self.by.get(connection, 0)
        if size == before:
            return None
        self.total += size - before
        if size:
            self.by[connection] = size
        else:
            del self.by[connection]
        return self.worst() if size > before else None

    def worst(self) -> Guarded | None:
        """The connection with most, when the total is over the limit."""
        return max(self.by, key=self.by.__getitem__) if self.total > self._most else None

    def check_invariants(self) -> None:
        assert self.total == sum(self.by.values()), "the total is the sum"
        assert all(size > 0 for size in self.by.values()), "a connection without bytes is not listed"


class Guard:
    """Counts what all connections of one server take, and ends what goes beyond a cap."""

    def __init__(self, name: str, limits: Limits, now_ms: Callable[[], float]) -> None:
        self.limits = limits
        self.slow = SlowTurns(name, now_ms)
        self.starts = Starts(now_ms)
        self.parts = PartsLine()
        self.complaints = Complaints(log, lambda: now_ms() / 1000)
        self.audit = Audit(name, lambda: now_ms() / 1000)
        self.gate: Gate | None = None
        self.refused: Counter[str] = Counter(dict.fromkeys(CAPS, 0))
        self.begun = Tally(limits.begun_bytes_max)
        self.unread = Tally(limits.unread_bytes_max)
        self.made = 0  # bytes of long answers made in this turn of the loop
        self._turned = asyncio.Event()
        self._name = name
        self._count: Counter[Standing] = Counter()
        self._clients: Counter[str] = Counter()  # by address, without ports

    def admit(self, connection: Guarded) -> bool:
        """Take a connection that was just accepted; False: it is to end now."""
        share = connection.share
        share.host = connection.remote.rpartition(":")[0]
        full = self._full(share.host)
        if full is None:
            self._enter(share, Standing.CLIENT)
            return True
        self.refused[full] += 1
        self.complaints.warn("%s: no place for a connection of %s (%s)", self._name, connection.remote, full)
        if self._count[Standing.PROBATION] >= (PROBATION_SHORT if SPARE.short else PROBATION_MAX):
            share.standing = Standing.GONE
            return False
        self._enter(share, Standing.PROBATION)
        return True

    def on_request(self, connection: Guarded, request: Command, credentials: Signer | None) -> None:
        """A request of a connection: does it show a peer? Raises Refused when it had to, and does not."""
        share = connection.share
        if share.standing is Standing.PEER or share.standing is Standing.OWN:
            return
        if _of_a_peer(request, credentials):
            self._leave(share)
            self._enter(share, Standing.PEER)
            self.begun.note(connection, 0)
            self.unread.note(connection, 0)
        elif share.standing is Standing.PROBATION:
            raise Refused(
                f"this server takes no more connections: {self._count[Standing.CLIENT]} clients have one"
                f" ({'LimitNOFILE' if SPARE.short else 'maxConnections, maxConnectionsPerAddress'})",
                Response.SYSTEM_BUSY,
            )

    def on_end(self, connection: Guarded) -> None:
        """It takes nothing any more."""
        share = connection.share
        self.begun.note(connection, 0)
        self.unread.note(connection, 0)
        if share.standing not in (Standing.OWN, Standing.GONE):
            self._leave(share)
            share.standing = Standing.GONE

    def on_begun(self, connection: Guarded, size: int) -> None:
        """Its begun frame takes ``size`` bytes. May end the connection whose frame takes most."""
        if connection.share.standing not in (Standing.OWN, Standing.PEER):
            worst = self.begun.note(connection, size)
            if worst is not None:
                self._end(worst, "maxBegunFrameBytes", f"its begun frame takes {self.begun.by[worst]} bytes")

    def on_unread(self, connection: Guarded, size: int) -> None:
        """It left ``size`` bytes of answers unread. May end it, or the connection that left most."""
        if size > self.limits.unread_bytes_per_connection:
            self._end(connection, "maxUnreadBytesPerConnection", f"it left {size} bytes unread")
            return
        if connection.share.standing not in (Standing.OWN, Standing.PEER):
            worst = self.unread.note(connection, size)
            if worst is not None:
                self.recount()  # others may have read since
                worst = self.unread.worst()
            while worst is not None:
                self._end(worst, "maxUnreadBytes", f"it left {self.unread.by[worst]} bytes unread")
                worst = self.unread.worst()

    def on_made(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        """A long answer was made."""
        if not self.made:
            loop.call_soon(self._new_turn)
        self.made += size

    async def next_turn(self) -> None:
        """Return when a turn of the loop has room for another long answer."""
        while self.made > MADE_BYTES_MAX:
            await self._turned.wait()

    def _new_turn(self) -> None:
        self.made = 0
        self._turned.set()
        self._turned = asyncio.Event()

    def recount(self) -> None:
        """Nothing tells when a peer reads its last answers: look."""
        for connection in list(self.unread.by):
            self.unread.note(connection, connection.untaken)

    def status(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "clients": self._count[Standing.CLIENT],
            "peers": self._count[Standing.PEER],
            "begunBytes": self.begun.total,
            "unreadBytes": self.unread.total,
            "refused": dict(sorted(self.refused.items())),
            "audit": self.audit.status(),
            "slowTurns": self.slow.status(),
        }

    def check_invariants(self) -> None:
        assert sum(self._clients.values()) == self._count[Standing.CLIENT], "each client has one address"
        assert self._count[Standing.CLIENT] <= self.limits.connections_max, "no client is over maxConnections"
        self.begun.check_invariants()
        self.unread.check_invariants()
        self.slow.check_invariants()

    def _full(self, host: str) -> str | None:
        if SPARE.short:
            return "descriptors"
        if self._count[Standing.CLIENT] >= self.limits.connections_max:
            return "maxConnections"
        if self._clients[host] >= self.limits.connections_per_address:
            return "maxConnectionsPerAddress"
        return None

    def _enter(self, share: Share, standing: Standing) -> None:
        share.standing = standing
        self._count[standing] += 1
        if standing is Standing.CLIENT:
            self._clients[share.host] += 1

    def _leave(self, share: Share) -> None:
        self._count[share.standing] -= 1
        if share.standing is Standing.CLIENT:
            self._clients[share.host] -= 1
            if not self._clients[share.host]:
                del self._clients[share.host]

    def _end(self, connection: Guarded, reason: str, text: str) -> None:
        self.refused[reason] += 1
        connection.fail(f"{text} ({reason})")


def _of_a_peer(request: Command, credentials: Signer | None) -> bool:
    """Whether only a peer asks for this: proven by its signature where there is a key."""
    if credentials is None:
        return request.code in PEER_CODES or request.code in _ALSO_PEERS
    return is_peer(request, credentials)
