"""How much may the clients of one server take, and which connection ends beyond that?

One ``Guard`` stands for all ports of a server. It counts connections, bytes of frames from their begin until
their requests are answered, and bytes of answers that nobody reads. Beyond a cap the connection that has most
of it ends, with one line in the log as far as the rate limit lets it; everybody else goes on.

Peers (brokers, Controllers, NameServers, operators) do not count: a connection is a peer's once it has signed
a request with a key of this server, and for as long as that is one. Without a key nothing is proven: who asks
for something that only peers ask for has one of ``CLAIMED_MAX`` places beside the clients', and caps of its
own, twice as large as theirs.

When clients have taken all places, ``PROBATION_MAX`` more connections are taken for ``PROBATION_S`` from
their accept on: one that shows itself a peer's in that time stays, any other is answered SYSTEM_BUSY and
closed.
When those are taken, too, the one that came first gives way once it had ``PROBATION_LEAST_MS``.
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
from remoting.acl.gate import Gate, peer_key
from remoting.auth import PEER_CODES
from remoting.codec import FRAME_BYTES_MAX, Command
from remoting.keys import Signer
from remoting.transport.inbox import ASKED_BYTES_LEAST, ASKED_BYTES_MAX, Lines
from remoting.transport.starts import Reads, Starts
from runtime.descriptors import SPARE
from runtime.report.complaints import ServerComplaints
from runtime.report.slow_turns import SlowTurns
from runtime.turns import Peer, Slice

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
HANDED_PART: Final = 8  # of what a client may leave unread others may fill this part: of 64 MiB, 8
PROBATION_MAX: Final = 64
PROBATION_SHORT: Final = 8  # while descriptors lack
PROBATION_S: Final = 2.0
PROBATION_LEAST_MS: Final = 100.0
"""Time for a peer's first request, however many strangers come behind it."""
CLAIMED_MAX: Final = 1024
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
    """Caps of one server. Connections and bytes are of its clients; those of peers do not count.

    ``slow_request_ms``: a request is told of from then on; 0 = none is.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    idle_s: float = IDLE_S
    connections_max: int = 20_000
    connections_per_address: int = 10_000
    begun_bytes_max: int = 256 << 20
    unread_bytes_per_connection: int = 64 << 20
    unread_bytes_max: int = 512 << 20
    slow_request_ms: int = 0

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
            slow_request_ms=config.slow_request_ms,
        )


class Standing(enum.Enum):
    """Whose connection is it?"""

    OWN = "this side made it"
    CLIENT = "it counts"
    CLAIMED = "it says that it is a peer's, to a server without a key"
    PROBATION = "all places are taken: its first request decides"
    PEER = "it does not count"
    GONE = "it was turned away, or has ended"

    __hash__ = object.__hash__
    """That of an Enum is a call, and each frame looks in tables of these."""


_SETTLED: Final = (Standing.OWN, Standing.PEER, Standing.CLAIMED, Standing.GONE)
"""What a request shows changes nothing: it is a peer's already, or it has ended and takes no place again."""


class Share:
    """What one connection takes of its server. Changed by the guard alone. ``reads``: what is read of all
    that are read with it in one turn of the loop; None: it does not count. ``behind``: where requests count
    that it left. ``goes_first``: its requests do not wait behind those of clients. ``proof``: of a peer, who
    knows the key that it signed with last, and that key."""

    __slots__ = (
        "behind",
        "ended",
        "goes_first",
        "host",
        "proof",
        "reads",
        "since_ms",
        "standing",
        "told_unsigned",
    )

    def __init__(self) -> None:
        self.ended = self.goes_first = False
        self.reads: Reads | None = None
        self.behind: Tally | None = None
        self.proof: tuple[Signer, object] | None = None
        self.since_ms = 0.0
        self.standing = Standing.OWN
        self.host = ""
        self.told_unsigned = False


def _renew(share: Share, request: Command, signer: Signer, key: object) -> None:
    """A peer that signs with another key by now is known by that one: the former is about to be taken out."""
    if not signer.is_named(request, key):
        found = peer_key(request, signer)
        if found is not None:
            share.proof = signer, found


class Guarded(Protocol):
    """A connection, as far as its guard is concerned."""

    share: Share
    remote: str

    @property
    def held(self) -> int:
        """Bytes that stay in memory for what was written for the peer and it has not read."""

    @property
    def frame_bytes(self) -> int:
        """Of its begun frame, and of requests without an answer."""

    def fail(self, why: object) -> None:
        """End it with one line in the log."""

    def abort(self) -> None:
        """End it now."""


class Weighed(Guarded, Peer, Protocol):
    """A connection, as far as its long requests are concerned."""


class Tally:
    """Bytes by connection, and all of them; pure. ``behind``: those of requests that are under way though
    their connections have ended.

    Holds: ``total`` is the sum of what ``by`` has, and nobody has 0.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self.behind = 0
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

    @property
    def is_half_full(self) -> bool:
        """With what others left behind. That ends nobody: who is there cannot help it."""
        return 2 * (self.total + self.behind) > self._most

    def leave(self, size: int) -> None:
        """A connection ended, and has ``size`` bytes under way."""
        self.behind += size

    def done(self, size: int) -> None:
        """Of these, ``size`` bytes are not under way any more."""
        self.behind -= size

    def check_invariants(self) -> None:
        assert self.behind >= 0, "nothing ends twice"
        assert self.total == sum(self.by.values()), "the total is the sum"
        assert min(self.by.values(), default=1) > 0, "a connection without bytes is not listed"


class Tallies:
    """Of those whose bytes count alike. ``begun``: frames, from their begin until their requests have an
    answer. Not of one that has ended: a broken frame ends its connection while
    it is read, and what is noted after that is never taken back."""

    def __init__(self, limits: Limits, times: int, now_ms: Callable[[], float]) -> None:
        self.reads = Reads(now_ms)
        self.begun = Tally(limits.begun_bytes_max * times)
        self.unread = Tally(limits.unread_bytes_max * times)

    def forget(self, connection: Guarded) -> None:
        self.begun.note(connection, 0)
        self.unread.note(connection, 0)

    def recount(self) -> None:
        """Nothing tells when a peer reads its last answers: look."""
        for connection in list(self.unread.by):
            self.unread.note(connection, connection.held)

    async def recount_in(self, slice_: Slice) -> None:
        """``recount``, in slices."""
        for connection in list(self.unread.by):
            if connection in self.unread.by:
                self.unread.note(connection, connection.held)
            await slice_.breathe()

    def check_invariants(self) -> None:
        self.begun.check_invariants()
        self.unread.check_invariants()


class Made:
    """Bytes of long answers made in this turn of the loop. ``at_next_turn`` calls something then.

    Up to half of ``MADE_BYTES_MAX`` may be of earlier turns: no step of the loop is taken for so few."""

    def __init__(self, at_next_turn: Callable[[Callable[[], None]], None]) -> None:
        self.size = 0
        self._at_next_turn = at_next_turn
        self._turned: asyncio.Event | None = None  # somebody waits

    def add(self, size: int) -> None:
        """A long answer was made."""
        before, self.size = self.size, self.size + size
        if before <= MADE_BYTES_MAX // 2 < self.size:
            self._at_next_turn(self._new_turn)

    async def next_turn(self) -> None:
        """Return when a turn of the loop has room for another long answer."""
        while self.size > MADE_BYTES_MAX:
            if self._turned is None:
                self._turned = asyncio.Event()
            await self._turned.wait()

    def _new_turn(self) -> None:
        self.size = 0
        if self._turned is not None:
            self._turned.set()
            self._turned = None


class Guard:
    """Counts what all connections of one server take, and ends what goes beyond a cap."""

    def __init__(self, name: str, limits: Limits, now_ms: Callable[[], float]) -> None:
        self.limits = limits
        self.slow = SlowTurns(name, now_ms, limits.slow_request_ms)
        self.starts = Starts(now_ms)
        self.lines = Lines(self.slow)
        self.complaints = ServerComplaints(log, lambda: now_ms() / 1000)
        self.audit = Audit(name, lambda: now_ms() / 1000)
        self.gate: Gate | None = None
        self.refused: Counter[str] = Counter(dict.fromkeys(CAPS, 0))
        clients, claimed = Tallies(limits, 1, now_ms), Tallies(limits, 2, now_ms)
        self.tallies = {
            Standing.CLIENT: clients,
            Standing.PROBATION: clients,
            Standing.CLAIMED: claimed,
        }
        self.made = Made(self.starts.at_next_turn)
        self._name = name
        self._now_ms = now_ms
        self._probation: dict[Guarded, None] = {}  # in order of arrival
        self._places: dict[Standing, dict[Guarded, None]] = {standing: {} for standing in Standing}
        self._clients: Counter[str] = Counter()  # by address, without ports

    def admit(self, connection: Guarded) -> bool:
        """Take a connection that was just accepted; False: it is to end now."""
        share = connection.share
        share.host = connection.remote.rpartition(":")[0]
        share.since_ms = self._now_ms()
        full = self._full(share.host)
        if full is None:
            self._enter(connection, Standing.CLIENT)
            return True
        self.refused[full] += 1
        self.complaints.warn("%s: no place for a connection of %s (%s)", self._name, connection.remote, full)
        if len(self._probation) >= (PROBATION_SHORT if SPARE.short else PROBATION_MAX):
            first = next(iter(self._probation))
            if share.since_ms - first.share.since_ms < PROBATION_LEAST_MS:
                share.standing = Standing.GONE
                return False
            self._drop(first)
            first.abort()
        self._enter(connection, Standing.PROBATION)
        self._probation[connection] = None
        return True

    def overstayed(self, connection: Guarded) -> bool:
        """Whether it had its time to show that it is a peer's."""
        share = connection.share
        return share.standing is Standing.PROBATION and self._now_ms() - share.since_ms > PROBATION_S * 1000

    async def weigh(self, connection: Weighed, request: Command, credentials: Signer | None) -> None:
        """Look at a long body before its signature is. Raises Refused, and PeerLeft."""
        secrets = [] if self.gate is None else self.gate.secrets(request)
        secrets += [] if credentials is None else credentials.secrets(request)
        proven = connection.share.standing is Standing.PEER
        await self.starts.bodies.weigh(connection, request, secrets, proven=proven)

    def on_request(self, connection: Guarded, request: Command, credentials: Signer | None) -> None:
        """A request of a connection: does it show a peer? Raises Refused when it had to, and does not."""
        share = connection.share
        if share.standing in _SETTLED:
            if share.proof is not None:
                _renew(share, request, *share.proof)
            return
        standing, proof = self._shown(request, credentials)
        if standing is not None:
            self._drop(connection)
            share.proof = proof
            self._enter(connection, standing)
        elif share.standing is Standing.PROBATION:
            raise Refused(
                f"this server takes no more connections: {len(self._places[Standing.CLIENT])} clients have"
                f" one ({'LimitNOFILE' if SPARE.short else 'maxConnections, maxConnectionsPerAddress'})",
                Response.SYSTEM_BUSY,
            )

    def need_signature(self, connection: Guarded, request: Command, credentials: Signer) -> None:
        """Raises Refused for a request that has to be signed, and is not."""
        try:
            credentials.check(request)
        except Refused as refused:
            self.audit.on_denied(request, connection.remote, refused.remark)
            # Once a connection: an unsigned heartbeat hears no answer (oneway), and comes twice a second.
            level = logging.DEBUG if connection.share.told_unsigned else logging.WARNING
            connection.share.told_unsigned = True
            log.log(level, "%s: refused %s: %s", self._name, connection.remote, refused)
            raise

    def on_end(self, connection: Guarded, asked: int = 0) -> None:
        """It takes nothing any more, but for ``asked`` bytes of requests under way."""
        share = connection.share
        tallies = self.tallies.get(share.standing)
        share.ended = True
        self._drop(connection)
        if tallies is not None and asked:
            share.behind = tallies.begun
            tallies.begun.leave(asked)

    def on_done(self, connection: Guarded, size: int) -> None:
        """A request of ``size`` bytes is not under way any more, whose connection has ended."""
        if connection.share.behind is not None:
            connection.share.behind.done(size)

    def is_crowded(self, connection: Guarded) -> bool:
        """Whether it is to keep little under way: half of what all may have is taken."""
        tallies = self.tallies.get(connection.share.standing)
        return tallies is not None and tallies.begun.is_half_full

    def asked_max(self, connection: Guarded, asked: int, *, owes: bool) -> int:
        """How many bytes it may have under way, that has ``asked``. What is under way of one that ``owes`` an
        answer to this side may wait for that."""
        if asked <= ASKED_BYTES_LEAST or owes:
            return asked
        return ASKED_BYTES_LEAST if self.is_crowded(connection) else ASKED_BYTES_MAX

    def on_frames(self, connection: Guarded, size: int) -> None:
        """Its begun frame, and those without an answer, take ``size`` bytes. May end the connection whose
        frames take most."""
        tallies = self.tallies.get(connection.share.standing)
        if tallies is not None:
            worst = tallies.begun.note(connection, size)
            if worst is not None:
                text = f"its frames take {tallies.begun.by[worst]} bytes"
                self._end(worst, "maxBegunFrameBytes", text)

    def on_unread(self, connection: Guarded, size: int) -> None:
        """What it left unread holds ``size`` bytes. May end it, or the connection of which most is held."""
        standing = connection.share.standing
        if standing is Standing.OWN:
            return  # what this side asks; its own callers wait for the answers
        if size > self.limits.unread_bytes_per_connection:
            self._end(connection, "maxUnreadBytesPerConnection", f"what it left unread holds {size} bytes")
            return
        tallies = self.tallies.get(standing)
        if tallies is not None:
            worst = tallies.unread.note(connection, size)
            if worst is not None:
                tallies.recount()  # others may have read since
                worst = tallies.unread.worst()
            while worst is not None:
                text = f"what it left unread holds {tallies.unread.by[worst]} bytes"
                self._end(worst, "maxUnreadBytes", text)
                worst = tallies.unread.worst()

    def need_room(self, connection: Guarded, size: int) -> None:
        """Raises Refused, when ``size`` bytes of another client's are too many for this one: it answers with
        its connection for what it leaves unread, and others must not be able to fill that."""
        if connection.held + size > self.limits.unread_bytes_per_connection // HANDED_PART:
            raise Refused(f"{connection.remote} does not read what it is sent", Response.SYSTEM_BUSY)

    def on_act(
        self, request: Command, remote: str, answer: Command | None, credentials: Signer | None
    ) -> None:
        """What an operator asks for was answered."""
        proven = credentials is not None or self.gate is not None
        self.audit.on_act(request, remote, 0 if answer is None else answer.code, proven=proven)

    def sweep(self) -> None:
        """Called once a second: what nothing tells of is looked at."""
        self._look_at_keys()
        self.audit.tell_left_out()

    async def recount(self, slice_: Slice) -> None:
        """Called once a second, too: by now some may have read what was sent to them."""
        for tallies in self._each():
            await tallies.recount_in(slice_)

    def status(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "clients": len(self._places[Standing.CLIENT]),
            "peers": len(self._places[Standing.PEER]) + len(self._places[Standing.CLAIMED]),
            "begunBytes": sum(tallies.begun.total + tallies.begun.behind for tallies in self._each()),
            "unreadBytes": sum(tallies.unread.total for tallies in self._each()),
            "refused": dict(sorted(self.refused.items())),
            "audit": self.audit.status(),
            "slowTurns": self.slow.status(),
            "slowRequests": self.slow.requests.status(),
            "answered": self.slow.answers.to_json(),
            "rpcs": self.slow.answers.by_answer(),
        }

    def check_invariants(self) -> None:
        assert sum(self._clients.values()) == len(self._places[Standing.CLIENT]), (
            "each client has one address"
        )
        assert len(self._places[Standing.CLIENT]) <= self.limits.connections_max, (
            "no client is over maxConnections"
        )
        assert len(self._places[Standing.CLAIMED]) <= CLAIMED_MAX, "only so many are believed without a key"
        assert len(self._probation) == len(self._places[Standing.PROBATION]), "each in probation is listed"
        for standing, there in self._places.items():
            assert all(one.share.standing is standing for one in there), "each has one place"
            assert not any(one.share.ended for one in there), "none that has ended takes a place"
        for tallies in self._each():
            tallies.check_invariants()
        self.slow.check_invariants()

    def _full(self, host: str) -> str | None:
        if SPARE.short:
            return "descriptors"
        if len(self._places[Standing.CLIENT]) >= self.limits.connections_max:
            return "maxConnections"
        if self._clients[host] >= self.limits.connections_per_address:
            return "maxConnectionsPerAddress"
        return None

    def _each(self) -> tuple[Tallies, Tallies]:
        return self.tallies[Standing.CLIENT], self.tallies[Standing.CLAIMED]

    def _shown(
        self, request: Command, credentials: Signer | None
    ) -> tuple[Standing | None, tuple[Signer, object] | None]:
        """What a request shows its connection to be, when that is more than a client's, and by which key."""
        if credentials is not None:
            key = peer_key(request, credentials)
            return (None, None) if key is None else (Standing.PEER, (credentials, key))
        claims = request.code in PEER_CODES or request.code in _ALSO_PEERS
        has_place = len(self._places[Standing.CLAIMED]) < CLAIMED_MAX
        return (Standing.CLAIMED if claims and has_place else None), None

    def _look_at_keys(self) -> None:
        """Who proved to be a peer with a key that was taken out is a client until another one is shown."""
        for connection in list(self._places[Standing.PEER]):
            share = connection.share
            if share.ended or share.proof is None or share.proof[0].has(share.proof[1]):
                continue
            self._drop(connection)
            share.proof, share.since_ms = None, self._now_ms()
            full = self._full(share.host)
            self._enter(connection, Standing.CLIENT if full is None else Standing.PROBATION)
            if full is not None:
                self._probation[connection] = None
            log.info("%s: the key that %s proved itself with was taken out", self._name, connection.remote)
            self.on_frames(connection, connection.frame_bytes)
            self.on_unread(connection, connection.held)

    def _drop(self, connection: Guarded) -> None:
        """It takes nothing of its standing any more."""
        share = connection.share
        tallies = self.tallies.get(share.standing)
        if tallies is not None:
            tallies.forget(connection)
        self._probation.pop(connection, None)
        if share.standing not in (Standing.OWN, Standing.GONE):
            self._leave(connection)
            share.standing = Standing.GONE

    def _enter(self, connection: Guarded, standing: Standing) -> None:
        share = connection.share
        share.standing = standing
        tallies = self.tallies.get(standing)
        share.reads = None if tallies is None else tallies.reads
        share.goes_first = standing in (Standing.PEER, Standing.CLAIMED)
        self._places[standing][connection] = None
        if standing is Standing.CLIENT:
            self._clients[share.host] += 1

    def _leave(self, connection: Guarded) -> None:
        share = connection.share
        del self._places[share.standing][connection]
        if share.standing is Standing.CLIENT:
            self._clients[share.host] -= 1
            if not self._clients[share.host]:
                del self._clients[share.host]

    def _end(self, connection: Guarded, reason: str, text: str) -> None:
        self.refused[reason] += 1
        connection.fail(f"{text} ({reason})")
