"""What does a processor of a broker work with? The parts of one broker, wired by ``broker/service``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from broker.state.clients import Clients
from broker.state.current_role import CurrentRole
from broker.state.effort import Effort
from broker.state.locks import QueueLocks
from broker.state.pace import Pace
from broker.state.pending_acks import PendingAcks
from broker.state.stats import Stats
from broker.tables.copies import Copies
from broker.tables.filters import FilterTable
from broker.tables.groups import Groups
from broker.tables.offsets import OffsetTable
from broker.tables.topics import Topics
from ha.service import HaService
from model.acl.directory import Directory
from model.codes import Response
from model.config import BrokerConfig
from model.errors import Refused
from model.message import encode_host
from model.pop import is_revive_topic
from model.topic import INTERNAL_TOPICS
from remoting.acl.gate import Gate, NeededRight, Pass, Sender, is_peer
from remoting.codec import Command
from remoting.keys import Signer
from remoting.service import Connection
from runtime.env import Env
from runtime.turns import Turns
from store.message_store import MessageStore


def not_available(reason: str) -> str:
    """The remark RocketMQ gives with code 14, with our reason where it has the fill levels."""
    return (
        "service not available now. It may be caused by one of the following reasons: "
        f"the broker's disk is full [{reason}], messages are put to the slave, "
        "message store has been shut down, etc."
    )


@dataclass
class Trust:
    """The key of the peers, the users and policies of ACL 2.0, and what they say of what a handler found.

    The gate knows what a request names. What else a client gets to see, a record by its place or key, or a
    message while it waits, is asked about here.
    """

    credentials: Signer | None = None
    directory: Directory = field(default_factory=Directory)
    gate: Gate | None = None

    def need_seen(self, connection: Connection, request: Command, topic: str) -> None:
        """Raises Refused for a topic with messages that no consumer may see yet. As of the original anybody
        may read them; where peers prove themselves, they, operators and super users alone."""
        if self.credentials is None or not (topic in INTERNAL_TOPICS or is_revive_topic(topic)):
            return
        if self.gate is not None and self.gate.of_operator(request):
            return
        try:
            self.credentials.check_signed(request)
        except Refused as refused:
            if self.gate is not None:
                self.gate.audit.on_denied(request, connection.remote, refused.remark)
            raise

    def need_record(self, connection: Connection, request: Command, topic: str, asked: NeededRight) -> None:
        """Raises Refused unless the client may see a record of ``topic`` that was found for it."""
        self.need_seen(connection, request, topic)
        self.need_topic(connection, request, topic, asked)

    def need_topic(self, connection: Connection, request: Command, topic: str, asked: NeededRight) -> None:
        """Raises Refused unless the client has this right to a topic that its request need not name."""
        of_peer = self.credentials is not None and is_peer(request, self.credentials)
        if self.gate is not None and self.gate.on and not of_peer:
            self.gate.check_topic(request, connection.remote, topic, asked)

    def sender(self, connection: Connection, request: Command) -> Sender | None:
        """Under ACL, who sent a request: for what is sent to it later without being asked for."""
        if self.gate is None or not self.gate.on:
            return None
        by_peer = self.credentials is not None and is_peer(request, self.credentials)
        return self.gate.sender(request, connection.remote, by_peer=by_peer)

    def may_publish(self, sender: Sender | None, topic: str) -> bool:
        """Whether what belongs to the producers of ``topic`` may be sent to this one."""
        return sender is None or self.gate is None or self.gate.may_publish(sender, topic)

    def passed(self, connection: Connection, request: Command) -> Pass | None:
        """What ``need_still`` is to ask about a request that waits."""
        return None if self.gate is None else self.gate.passed(request, connection.remote)

    def need_still(self, held: Pass | None) -> None:
        """Raises Refused when the sender has lost its right meanwhile."""
        if self.gate is not None and held is not None:
            self.gate.still(held)


@dataclass
class BrokerContext:
    env: Env
    config: BrokerConfig
    store: MessageStore
    ha: HaService
    role_state: CurrentRole
    topics: Topics
    groups: Groups
    offsets: OffsetTable
    pending_acks: PendingAcks
    clients: Clients = field(default_factory=Clients)
    stats: Stats = field(default_factory=Stats)
    trust: Trust = field(default_factory=Trust)

    def __post_init__(self) -> None:
        self.copies = Copies(self.env, self.config, self.role_state, self.ha)
        self.locks = QueueLocks(self.config.locks_max)
        self.turns = Turns(self.env.monotonic_ms)

    @cached_property
    def filters(self) -> FilterTable:
        """The expressions that consumer groups have subscribed to."""
        return FilterTable()

    @cached_property
    def effort(self) -> Effort:
        """What the expressions of consumers may cost."""
        return Effort(self.env.monotonic_ms)

    @cached_property
    def pace(self) -> Pace:
        """When long records are written that a short request, or nobody, asked for."""
        return Pace(
            self.env.monotonic_ms,
            lambda: self.store.log.end - self.store.confirmed,
            lambda: self.config.slave_timeout_ms,
        )

    @cached_property
    def store_host(self) -> bytes:
        """This broker's address, as records hold it."""
        return encode_host(self.config.address)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue that is there to be read."""
        return max(self.store.min_queue_offset(topic, queue_id), self.topics.first_offset(topic, queue_id))

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The offset behind the last message of a queue. Of a master that has not confirmed yet what its log
        had when it was elected, as its log says: the former one may have, and told its consumers."""
        end = self.store.max_queue_offset(topic, queue_id)
        if self.role_state.is_master and self.store.dispatched < self.role_state.led_from:
            return max(end, self.store.next_offset(topic, queue_id))
        return end

    def got(self, topic: str, group: str, messages: int, size_bytes: int, now_ms: float) -> None:
        """A consumer group was given so many messages of a topic, and so many bytes of records."""
        self.stats.got(messages)
        self.stats.counters.got(f"{topic}@{group}", messages, size_bytes, now_ms)

    def gave(
        self,
        place: tuple[str, str, int],
        next_offset: int,
        messages: int,
        size_bytes: int,
        stored_ms: int,
        now_ms: float,
    ) -> None:
        """``got`` of a pull. ``place``: group, topic and queue, which is read on at ``next_offset``;
        ``stored_ms``: when the first of them was stored."""
        group, topic, queue_id = place
        self.stats.pulled.note(group, topic, queue_id, next_offset)
        self.got(topic, group, messages, size_bytes, now_ms)
        self.stats.age_when_read.observe((self.env.now_ms() - stored_ms) / 1000)

    def gave_all(
        self,
        group: str,
        topic: str,
        reached: list[tuple[int, int]],
        messages: int,
        size_bytes: int,
        stored_ms: list[int],
        now_ms: float,
    ) -> None:
        """``gave`` of several pulls of a topic: each one's queue with its next offset, messages and bytes of
        all, and when the first of each was stored."""
        stats, wall_ms = self.stats, self.env.now_ms()
        stats.pulled.note_all(group, topic, reached)
        stats.age_when_read.observe_since(stored_ms, wall_ms)
        stats.got(messages, len(stored_ms))
        stats.counters.got(f"{topic}@{group}", messages, size_bytes, now_ms)

    async def admit(self, connection: Connection, request: Command) -> None:
        """Return when a write can be taken. Raises Refused.

        During a handover it waits for the outcome: refused at once, a client of RocketMQ is through with its
        tries within a few ms.
        """
        if await self.role_state.handed_over(connection, request) and connection.closed:
            raise Refused("its sender left", Response.SERVICE_NOT_AVAILABLE)  # and may have sent it anew
        refused = self.refuse_write()
        if refused is not None:
            raise refused

    def refuse_write(self) -> Refused | None:
        """Why no write can be taken now, or None."""
        refused = self.role_state.refuse()
        if refused is not None:
            return refused
        reason = self.store.why_not_writable
        if reason is not None:
            return Refused(not_available(reason), Response.SERVICE_NOT_AVAILABLE)
        return self.ha.refuse()
