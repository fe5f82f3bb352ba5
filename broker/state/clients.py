"""Which producers and consumers are connected, and who must hear when a group changes?

Heartbeats (34) build the table, closed connections and silence take clients out of it. Pure: time comes in as
``now_ms``; what must be sent comes out as the groups whose members changed.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from model.codes import Response
from model.errors import Refused
from model.message import java_hash
from model.sql92 import Filter, SqlError, compile_filter
from remoting.acl.gate import Sender
from remoting.service import Connection
from runtime.sizes import text_bytes

CLIENTS_MAX: Final = 100_000
PRODUCERS: Final = 0
CONSUMERS: Final = 1
TAG: Final = "TAG"
SQL92: Final = "SQL92"
ALL: Final = "*"
SEPARATOR: Final = "||"
TAG_BYTES: Final = 200
"""What a tag takes at most besides its characters: its text, its hash, their places in a list and a set."""
ENTRY_BYTES: Final = 400
"""Of a client in a group, or a topic in a subscription, besides its texts."""
KIND_MAX: Final = 64
"""Characters of the name of a kind of expression that is none of the two: a heartbeat may tell one, as in the
original, and nothing is pulled by it."""
SQL92_BYTES: Final = 110
"""What a character of an expression takes once it is compiled, as measured with the worst of them."""


@dataclass(slots=True, weakref_slot=True)
class Subscription:
    """What a group wants of a topic. ``codes`` empty = everything, or what ``chooses`` takes."""

    topic: str
    expression: str = ALL
    version: int = 0
    expression_type: str = TAG
    tags: list[str] = field(default_factory=list)
    codes: frozenset[int] = frozenset()
    class_filter: bool = False
    weight: int = field(default=0, compare=False)
    """Of a group's subscription: about the memory it takes there, counted when it was read."""
    _filter: Filter | None = field(default=None, compare=False, repr=False)

    @property
    def chooses(self) -> Filter | None:
        """What a SQL92 expression takes, parsed when it is asked for first; None for another, or for one that
        cannot be parsed."""
        if self._filter is None and self.expression_type == SQL92:
            with suppress(SqlError):
                self._filter = compile_filter(self.expression)
        return self._filter

    @property
    def bytes(self) -> int:
        """About the memory it takes."""
        each = SQL92_BYTES if self.expression_type == SQL92 else 1
        tags = max(len(self.tags), len(self.codes))
        texts = text_bytes(self.expression_type) + sum(map(text_bytes, self.tags))
        return each * text_bytes(self.expression) + TAG_BYTES * tags + texts

    @classmethod
    def of(
        cls, topic: str, expression: str | None, expression_type: str | None, version: int = 0
    ) -> Subscription:
        """Parse a tag expression such as ``A || B``, or SQL92. Raises ValueError when it is none."""
        text = expression or ALL
        kind = expression_type or TAG
        if kind == SQL92:
            return cls(topic, text, version, kind, _filter=compile_filter(text))
        if kind != TAG:
            raise ValueError(f"there is no expression type {kind!r}: TAG and SQL92 are known")
        if text == ALL:
            return cls(topic, text, version, kind)
        tags = [tag.strip() for tag in text.split(SEPARATOR) if tag.strip()]
        if not tags:
            raise ValueError(f"tag expression {text!r} names no tag")
        return cls(topic, text, version, kind, tags, frozenset(java_hash(tag) for tag in tags))

    @staticmethod
    def need_short(data: dict[str, Any], bytes_max: int) -> None:
        """Of what ``from_json`` would read: its tags and their codes are what an expression of ``bytes_max``
        can have. Raises Refused, or TypeError, ValueError or AttributeError."""
        expression, tags = data.get("subString") or ALL, data.get("tagsSet") or []
        if not isinstance(expression, str):
            raise ValueError("subString is no text")
        parts = len(SEPARATOR) * (len(tags) - 1) + sum(map(text_bytes, tags))
        codes = (len(SEPARATOR) + 1) * (len(data.get("codeSet") or []) - 1)
        if max(text_bytes(expression), parts, codes) > bytes_max:
            raise too_long(bytes_max)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Subscription:
        """As a heartbeat tells it. Raises KeyError, TypeError or ValueError."""
        expression, kind = str(data.get("subString") or ALL), _kind(data)
        tags = [str(tag) for tag in data.get("tagsSet") or []]
        codes = _codes(data)
        if tags and not codes and kind == TAG and expression != ALL:
            codes = frozenset(java_hash(tag) for tag in tags)  # it wants these, not everything
        found = cls(
            topic=str(data["topic"]),
            expression=expression,
            version=long_of("subVersion", data.get("subVersion") or 0),
            expression_type=kind,
            tags=tags,
            codes=codes,
            class_filter=bool(data.get("classFilterMode", False)),
        )
        found.weight = found.entry_bytes()
        return found

    def entry_bytes(self) -> int:
        """About the memory it takes in a group."""
        return ENTRY_BYTES + text_bytes(self.topic) + self.bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": self.tags,
            "topic": self.topic,
        }


@dataclass(slots=True)
class Client:
    """One client on one connection."""

    client_id: str
    connection: Connection
    language: str
    version: int
    seen_ms: float
    sender: Sender | None = None  # under ACL: who beat

    @property
    def bytes(self) -> int:
        """About the memory that it takes in each group."""
        return ENTRY_BYTES + text_bytes(self.client_id) + text_bytes(self.language)


@dataclass(slots=True, weakref_slot=True)
class ConsumerGroup:
    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    members: dict[Connection, Client] = field(default_factory=dict)
    fingerprint: int = 0  # of the heartbeat that named the group last
    subscribed_bytes: int = 0  # the weight of its subscriptions

    def ids(self) -> list[str]:
        return sorted({member.client_id for member in self.members.values()})

    @property
    def bytes(self) -> int:
        """About the memory that it takes without its members."""
        return sum(map(text_bytes, self.how({}))) + self.subscribed_bytes

    def how(self, data: dict[str, Any]) -> tuple[str, str, str]:
        """How it consumes once ``data`` of a heartbeat is taken: type, model, where it begins."""
        return (
            str(data.get("consumeType") or self.consume_type),
            str(data.get("messageModel") or self.message_model),
            str(data.get("consumeFromWhere") or self.from_where),
        )

    def bytes_after(self, data: dict[str, Any], fresh: dict[str, Subscription]) -> int:
        """``bytes`` once these are taken."""
        weight = sum(_newer(self.subscriptions.get(topic), one).weight for topic, one in fresh.items())
        return sum(map(text_bytes, self.how(data))) + weight


@dataclass(slots=True)
class Told:
    """What a heartbeat says of one group. ``wanted``: a consumer's subscriptions by topic. ``growth``: bytes
    that it would have added when it was read."""

    kind: int
    name: str
    entry: dict[str, Any]
    wanted: dict[str, Subscription] = field(default_factory=dict)
    growth: int = 0


class Clients:
    """The table of producers and consumers; every change returns the groups whose members changed.

    ``bytes``: about the memory of all that clients said. ``promised``: what heartbeats that are being entered
    will add to it."""

    def __init__(self) -> None:
        self.bytes = 0
        self.promised = 0
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Connection, Client]] = {}
        # Where a producer's id beats, the newest connection last, and for which groups.
        self._ids: dict[str, dict[Connection, set[str]]] = {}
        # The groups that each connection is in, as a producer and as a consumer; whose it beat last is last.
        self._in: dict[Connection, tuple[dict[str, None], dict[str, None]]] = {}

    def producer(self, group: str, client: Client, *, bytes_max: float = math.inf) -> None:
        """Raises Refused when all would take more than ``bytes_max`` then, and more than before."""
        self._need_room(self.growth(Told(PRODUCERS, group, {}), client), bytes_max)
        former = self.producers.get(group, {}).get(client.connection)
        members = self.producers.setdefault(group, {})
        if former is not None and former.client_id != client.client_id:
            self._forget_id(group, former)
        self._count(group, former, client)
        members[client.connection] = client
        self._ids.setdefault(client.client_id, {}).setdefault(client.connection, set()).add(group)
        self._beat(PRODUCERS, group, client.connection)

    def _beat(self, kind: int, group: str, connection: Connection) -> None:
        beaten = self._in.setdefault(connection, ({}, {}))[kind]
        beaten.pop(group, None)
        beaten[group] = None

    def heard(self, kind: int, name: str, client: Client) -> None:
        """What a member says now was refused: it beats all the same, and what it said before stays."""
        group = self.consumers.get(name)
        members = self.producers.get(name) if kind == PRODUCERS else group.members if group else None
        known = members.get(client.connection) if members is not None else None
        if members is not None and known is not None:
            members[client.connection] = replace(known, seen_ms=client.seen_ms)
            self._beat(kind, name, client.connection)

    def told_by_another(self, name: str, fingerprint: int) -> bool:
        """Note a heartbeat that names a group; whether another one, of other content, named it since."""
        group = self.consumers[name]
        last, group.fingerprint = group.fingerprint, fingerprint
        return last != fingerprint

    def consumer(
        self,
        data: dict[str, Any],
        client: Client,
        fresh: dict[str, Subscription] | None = None,
        *,
        without_subscriptions: bool = False,
        bytes_max: float = math.inf,
    ) -> bool:
        """One consumerDataSet entry of a heartbeat; True when members or subscriptions changed. ``fresh``:
        its subscriptions by topic, when they were read already.

        Raises KeyError, TypeError or ValueError on data that is not such an entry; Refused as ``producer``.
        """
        name = str(data["groupName"])
        if fresh is None:
            fresh = {s.topic: s for s in map(Subscription.from_json, data.get("subscriptionDataSet") or [])}
        told = Told(CONSUMERS, name, data, fresh)
        self._need_room(self.growth(told, client, without_subscriptions=without_subscriptions), bytes_max)
        group = self.consumers.get(name) or ConsumerGroup(name)
        before = group.bytes if name in self.consumers else 0
        self.consumers[name] = group
        changed = self._joined(group, client)
        group.consume_type, group.message_model, group.from_where = group.how(data)
        if not without_subscriptions:
            changed |= _subscribed(group, fresh)
        self.bytes += group.bytes - before
        return changed

    def growth(self, told: Told, client: Client, *, without_subscriptions: bool = False) -> int:
        """The bytes that entering it would add."""
        name, link = told.name, client.connection
        if told.kind == PRODUCERS:
            return _entry_bytes(name, client) - _entry_bytes(name, self.producers.get(name, {}).get(link))
        group = self.consumers.get(name)
        before, group = (0, ConsumerGroup(name)) if group is None else (group.bytes, group)
        after = group.bytes_after(told.entry, group.subscriptions if without_subscriptions else told.wanted)
        return after - before + _entry_bytes(name, client) - _entry_bytes(name, group.members.get(link))

    def promise(self, growth: int, bytes_max: float) -> None:
        """Keep room for a heartbeat that adds so much, for all of it or, raising Refused, for none."""
        self._need_room(growth, bytes_max)
        self.promised += max(growth, 0)

    def keep(self, before: int, after: int) -> None:
        """Of a promise of ``before`` bytes ``after`` are left."""
        self.promised += max(after, 0) - max(before, 0)

    def _need_room(self, growth: int, bytes_max: float) -> None:
        """Raises Refused. Who is known and says nothing new is heard however much there is."""
        if growth > 0 and self.bytes + self.promised + growth > bytes_max:
            raise Refused("this broker's clients take too much memory (maxClientBytes)", Response.SYSTEM_BUSY)

    def renew(self, name: str, subscription: Subscription, *, bytes_max: float = math.inf) -> None:
        """What a member of a group says it wants of a topic that the group reads, if that is newer. Raises
        Refused as ``producer``."""
        group = self.consumers.get(name)
        known = group.subscriptions.get(subscription.topic) if group is not None else None
        if group is None or known is None or subscription.version <= known.version:
            return
        self._need_room(subscription.weight - known.weight, bytes_max)
        group.subscriptions[subscription.topic] = subscription
        group.subscribed_bytes += subscription.weight - known.weight
        self.bytes += subscription.weight - known.weight

    def _joined(self, group: ConsumerGroup, client: Client) -> bool:
        """Enter a member; whether it is a new one."""
        known = group.members.get(client.connection)
        changed = known is None or known.client_id != client.client_id
        self._count(group.name, known, client)
        group.members[client.connection] = client
        self._beat(CONSUMERS, group.name, client.connection)
        return changed

    def _count(self, group: str, former: Client | None, client: Client | None) -> None:
        """One entry of a group became another one."""
        self.bytes += _entry_bytes(group, client) - _entry_bytes(group, former)

    def unregister(
        self, connection: Connection, producer_group: str | None, consumer_group: str | None
    ) -> list[str]:
        if producer_group:
            self._remove_producer(producer_group, connection)
        if consumer_group and self._remove_consumer(consumer_group, connection):
            return [consumer_group]
        return []

    def closed(self, connection: Connection, most: int | None = None) -> list[str]:
        """Take the connection out of every group, or ``most`` of them; returns the consumer groups of these.
        ``knows`` says whether it is in others."""
        producers, consumers = self._in.get(connection, ({}, {}))
        of_producers = list(islice(producers, most))
        left = None if most is None else most - len(of_producers)
        of_consumers = list(islice(consumers, left))
        for name in of_producers:
            self._remove_producer(name, connection)
        return [name for name in of_consumers if self._remove_consumer(name, connection)]

    def knows(self, connection: Connection) -> bool:
        """Whether it is in a group."""
        return connection in self._in

    def connections(self) -> list[Connection]:
        """Those that have an entry."""
        return list(self._in)

    def is_silent(self, connection: Connection, since_ms: float) -> bool:
        """Whether its last heartbeat, of whatever group, is older than ``since_ms``."""
        producers, consumers = self._in.get(connection, ({}, {}))
        newest = [self.producers[name][connection] for name in islice(reversed(producers), 1)]
        newest += [self.consumers[name].members[connection] for name in islice(reversed(consumers), 1)]
        return bool(newest) and all(client.seen_ms < since_ms for client in newest)

    def leave_silent(self, connection: Connection, since_ms: float, most: int) -> list[tuple[int, str]]:
        """Take the connection out of those groups, ``most`` of them, that it has not beat for since
        ``since_ms``: kind and name of each."""
        producers, consumers = self._in.get(connection, ({}, {}))
        left: list[tuple[int, str]] = []
        while producers and len(left) < most:
            name = next(iter(producers))
            if self.producers[name][connection].seen_ms >= since_ms:
                break
            self._remove_producer(name, connection)
            left.append((PRODUCERS, name))
        while consumers and len(left) < most:
            name = next(iter(consumers))
            if self.consumers[name].members[connection].seen_ms >= since_ms:
                break
            self._remove_consumer(name, connection)
            left.append((CONSUMERS, name))
        return left

    def subscription(self, group: str, topic: str) -> Subscription | None:
        found = self.consumers.get(group)
        return found.subscriptions.get(topic) if found is not None else None

    def find_consumer(self, group: str, client_id: str) -> Client | None:
        found = self.consumers.get(group)
        if found is None:
            return None
        return next((c for c in found.members.values() if c.client_id == client_id), None)

    def producer_connection(self, client_id: str) -> Connection | None:
        """Where the producer of this id beats; of several connections the newest, as in the original.

        Under ACL an id belongs to the account that held it first: another one does not take it over."""
        living = [c for c in self._ids.get(client_id, {}) if not c.closed]
        held_by = [self._account(client_id, connection) for connection in living]
        own = [c for c, account in zip(living, held_by, strict=True) if account == held_by[0]]
        return own[-1] if own else None

    def _account(self, client_id: str, connection: Connection) -> str | None:
        group = next(iter(self._ids[client_id][connection]))
        sender = self.producers[group][connection].sender
        return None if sender is None else sender.account

    def _remove_producer(self, group: str, connection: Connection) -> None:
        self._left(connection, PRODUCERS, group)
        members = self.producers.get(group)
        client = members.pop(connection, None) if members is not None else None
        if client is not None:
            self._forget_id(group, client)
            self._count(group, client, None)
            if not members:
                del self.producers[group]

    def _forget_id(self, group: str, client: Client) -> None:
        connections = self._ids[client.client_id]
        groups = connections[client.connection]
        groups.discard(group)
        if not groups:
            del connections[client.connection]
        if not connections:
            del self._ids[client.client_id]

    def _remove_consumer(self, name: str, connection: Connection) -> bool:
        self._left(connection, CONSUMERS, name)
        group = self.consumers.get(name)
        client = group.members.pop(connection, None) if group is not None else None
        if group is None or client is None:
            return False
        self._count(name, client, None)
        if not group.members:
            self.bytes -= group.bytes
            del self.consumers[name]
        return True

    def _left(self, connection: Connection, kind: int, name: str) -> None:
        groups = self._in.get(connection)
        if groups is not None:
            groups[kind].pop(name, None)
            if not groups[0] and not groups[1]:
                del self._in[connection]

    def _all_bytes(self) -> int:
        entries = [(g, m) for g, members in self.producers.items() for m in members.values()]
        entries += [(g, m) for g, group in self.consumers.items() for m in group.members.values()]
        groups = sum(
            group.bytes - group.subscribed_bytes + sum(s.entry_bytes() for s in group.subscriptions.values())
            for group in self.consumers.values()
        )
        return groups + sum(text_bytes(name) + member.bytes for name, member in entries)

    def check_invariants(self) -> None:
        found: dict[Connection, tuple[set[str], set[str]]] = {}
        for name, members in self.producers.items():
            for connection in members:
                found.setdefault(connection, (set(), set()))[0].add(name)
        for name, group in self.consumers.items():
            for connection in group.members:
                found.setdefault(connection, (set(), set()))[1].add(name)
        assert self.bytes == self._all_bytes(), "all of it is counted"
        assert self.promised >= 0, "no promise is kept twice"
        known = {connection: (set(groups[0]), set(groups[1])) for connection, groups in self._in.items()}
        by_id = {(i, c, g) for i, links in self._ids.items() for c, names in links.items() for g in names}
        beating = {(m.client_id, c, g) for g, members in self.producers.items() for c, m in members.items()}
        assert by_id == beating, "each producer is found by its id, and no other"
        assert all(self._ids.values()), "an id without a connection is not kept"
        assert found == known, "each connection is known to be in the groups it is in"


def _entry_bytes(group: str, client: Client | None) -> int:
    """Of a client's entry in a group."""
    return 0 if client is None else text_bytes(group) + client.bytes


def _kind(data: dict[str, Any]) -> str:
    """Raises ValueError."""
    kind = str(data.get("expressionType") or TAG)
    if len(kind) > KIND_MAX:
        raise ValueError(f"a kind of expressions has at most {KIND_MAX} characters")
    return kind


def _codes(data: dict[str, Any]) -> frozenset[int]:
    """Raises TypeError or ValueError."""
    codes = frozenset(int(code) for code in data.get("codeSet") or [])
    if codes and not (min(codes) >= -(2**63) and max(codes) < 2**63):
        raise ValueError("codeSet has a number of more than 64 bits")
    return codes


def too_long(bytes_max: int) -> Refused:
    """What is answered to a longer subscription, told by whatever request."""
    return Refused(
        f"a subscription has at most {bytes_max} bytes (maxSubscriptionBytes)",
        Response.SUBSCRIPTION_PARSE_FAILED,
    )


def long_of(name: str, value: object) -> int:
    """As a Java long. Raises ValueError: a greater version would never be followed by a newer one."""
    number = int(value) if isinstance(value, (int, str)) else None
    if number is None or not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} {str(value)[:40]} is no whole number of 64 bits")
    return number


def _newer(known: Subscription | None, told: Subscription) -> Subscription:
    """Which of two subscriptions to a topic a group keeps."""
    return told if known is None or told.version > known.version else known


def _subscribed(group: ConsumerGroup, fresh: dict[str, Subscription]) -> bool:
    """The group wants ``fresh`` and no other topics; whether that is new."""
    held = group.subscriptions
    wanted: dict[str, Subscription] = {}
    changed, weight = False, 0
    for topic, told in fresh.items():
        known = held.get(topic)
        wanted[topic] = kept = _newer(known, told)
        changed |= known is None or kept.expression != known.expression
        weight += kept.weight
    changed |= any(topic not in wanted for topic in held)
    group.subscriptions, group.subscribed_bytes = wanted, weight
    return changed
