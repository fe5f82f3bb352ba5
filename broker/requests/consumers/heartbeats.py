"""How do clients say who they are, and how do members of a group learn of each other?

HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46), the
connection lists (203, 204, 328); NOTIFY_CONSUMER_IDS_CHANGED (40) goes out when a group's members change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.answers import gathered, strict
from broker.requests.consumers.filter_data import FilterNews
from broker.state.clients import (
    CLIENTS_MAX,
    CONSUMERS,
    PRODUCERS,
    TAG,
    Client,
    Clients,
    Subscription,
    Told,
    long_of,
)
from model.codes import Request, Response
from model.errors import PeerError, Refused
from model.message import retry_topic
from remoting.codec import Command
from remoting.headers import need
from remoting.named import consumers_in
from remoting.request_bodies import long_request_object, request_object
from remoting.service import Connection
from remoting.transport.connection import UNSENT_BYTES_HIGH
from runtime.tasks import Tasks
from runtime.turns import Leaving, PeerLeft, Slice, Turns

log = logging.getLogger(__name__)

LONG_BYTES: Final = 64 << 10
"""A longer heartbeat waits for its turn before it is taken apart."""
LEFT_AT_ONCE: Final = 100
"""Groups that a connection is taken out of in one step when it ends."""
CLIENT_ID_MAX: Final = 512
"""Characters. Of official clients it is an address, a process or the name of an instance, and a time."""


@dataclass(slots=True)
class _Beat:
    """What a heartbeat says of all its groups. ``changed``: those whose members are to be told."""

    client: Client
    fingerprint: int
    without: bool
    changed: list[str]


class _Places:
    """Of groups that are not there yet. Holds: with those that heartbeats under way are to make there are no
    more than ``CLIENTS_MAX`` of a kind."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._promised = {CONSUMERS: Counter[str](), PRODUCERS: Counter[str]()}

    def need(self, told: list[Told]) -> None:
        """Raises Refused."""
        for kind, promised in self._promised.items():
            groups = self._groups(kind)
            fresh = sum(one.kind == kind and not (one.name in groups or one.name in promised) for one in told)
            if fresh and len(groups) + len(promised) + fresh > CLIENTS_MAX:
                raise Refused("this broker has too many client groups", Response.SYSTEM_BUSY)

    def promise(self, told: list[Told]) -> set[tuple[int, str]]:
        """Keep what is needed; it is to be given back."""
        fresh = {(one.kind, one.name) for one in told if one.name not in self._groups(one.kind)}
        for kind, name in fresh:
            self._promised[kind][name] += 1
        return fresh

    def give_back(self, fresh: set[tuple[int, str]], *given: tuple[int, str]) -> None:
        """Of what was promised, what is given back if it was not before."""
        for kind, name in fresh.intersection(given):
            fresh.remove((kind, name))
            self._promised[kind][name] -= 1
            if not self._promised[kind][name]:
                del self._promised[kind][name]

    def _groups(self, kind: int) -> Mapping[str, object]:
        return self._clients.consumers if kind == CONSUMERS else self._clients.producers


class ClientProcessor:
    """Answers 34, 35, 38, 46, 203, 204 and 328."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self.turns = Turns(context.env.monotonic_ms)
        """Of heartbeats: fifty long ones side by side would be fifty bodies taken apart, and a slice of each
        in every turn of the loop. They wait for no other request."""
        self._tasks = Tasks("members")
        self._filters = FilterNews(context)
        self._places = _Places(context.clients)
        self._changed: dict[str, None] = {}  # groups whose members are to be told
        self._telling: asyncio.Task[None] | None = None
        self._behind: dict[Connection, dict[str, bool]] = {}
        """Those that left much unread, and groups they were told of since: are they to be told once more?"""
        self.leaving = Leaving("clients", context.env.monotonic_ms, self._leave)

    async def heartbeat(self, connection: Connection, request: Command) -> Command:
        config = self._context.config
        if len(request.body) > config.heartbeat_bytes_max:
            raise Refused(
                f"a heartbeat has at most {config.heartbeat_bytes_max} bytes (maxHeartbeatBytes)",
                Response.SYSTEM_ERROR,
            )
        turns, is_long = self.turns, len(request.body) > LONG_BYTES
        changed: list[str] = []
        try:
            async with turns.take(connection) if is_long else turns.late(connection) as turn:
                fresh = await self._heard(connection, request, turn, changed)
        finally:
            self.notify(changed)
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if fresh else "false"}
        return request.reply(ext=ext)

    async def _heard(
        self, connection: Connection, request: Command, slice_: Slice, changed: list[str]
    ) -> bool:
        """See ``_took``."""
        config = self._context.config
        data = await long_request_object(request, slice_)
        try:
            consumers = consumers_in(data)
            producers: list[dict[str, Any]] = data.get("producerDataSet") or []
            if len(consumers) + len(producers) > config.heartbeat_groups_max:
                raise Refused(
                    f"a heartbeat names at most {config.heartbeat_groups_max} groups (maxGroupsInHeartbeat)",
                    Response.SYSTEM_ERROR,
                )
            beat = self._beat(connection, request, data, changed)
            return await self._took(beat, consumers, producers, slice_)
        except (PeerError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise Refused(f"the body is not a heartbeat: {error!r}", Response.SYSTEM_ERROR) from None

    def _beat(
        self, connection: Connection, request: Command, data: dict[str, Any], changed: list[str]
    ) -> _Beat:
        """Raises KeyError or ValueError."""
        context = self._context
        client = Client(
            _client_id(data),
            connection,
            request.language,
            request.version,
            context.env.monotonic_ms(),
            context.trust.sender(connection, request),
        )
        fingerprint = long_of("heartbeatFingerprint", data.get("heartbeatFingerprint") or 0)
        without = bool(data.get("withoutSub", False)) and fingerprint != 0
        return _Beat(client, fingerprint, without, changed)

    async def _took(
        self,
        beat: _Beat,
        consumers: list[dict[str, Any]],
        producers: list[dict[str, Any]],
        slice_: Slice,
    ) -> bool:
        """Whether the broker lacks this client's subscriptions. Raises the first Refused when all the others
        are taken, or a bound's for all of them; KeyError, TypeError, ValueError or AttributeError on data
        that is no heartbeat. Who is refused beats all the same."""
        entries = [(CONSUMERS, consumer) for consumer in consumers]
        entries += [(PRODUCERS, producer) for producer in producers]
        refused: list[Refused] = []
        told = await self._told(beat, entries, slice_, refused)
        # Version 2 leaves the subscriptions out until the broker says that it lacks them.
        attributes = beat.client.connection.attributes
        fresh = beat.fingerprint == 0 or attributes.get("fingerprint") != beat.fingerprint
        fresh |= await self._entered(beat, told, slice_, refused)
        if refused:
            raise refused[0]
        attributes["fingerprint"] = beat.fingerprint
        return fresh

    async def _told(
        self, beat: _Beat, entries: list[tuple[int, dict[str, Any]]], slice_: Slice, refused: list[Refused]
    ) -> list[Told]:
        """What it says of groups that there are, each once: those that shrink first, as they make room."""
        context, clients, client = self._context, self._context.clients, beat.client
        found: dict[tuple[int, str], Told] = {}
        for kind, entry in entries:
            await slice_.breathe()
            told = Told(kind, str(entry["groupName"]), entry)
            if kind == CONSUMERS:
                if context.groups.find(told.name) is None:
                    clients.heard(kind, told.name, client)  # it was deleted, and its member may be in others
                    continue
                try:
                    most = context.config.subscription_bytes_max
                    told.wanted = await _subscriptions(entry, slice_, most)
                except PeerLeft:
                    raise
                except Refused as error:
                    refused.append(error)
                    clients.heard(kind, told.name, client)
                    continue
            told.growth = clients.growth(told, client, without_subscriptions=beat.without)
            found[kind, told.name] = told
        return sorted(found.values(), key=lambda told: told.growth)

    async def _entered(self, beat: _Beat, told: list[Told], slice_: Slice, refused: list[Refused]) -> bool:
        """Whether another member may have replaced its subscriptions."""
        clients, client = self._context.clients, beat.client
        left = sum(one.growth for one in told)
        try:
            self._places.need(told)
            clients.promise(left, self._context.config.client_bytes_max)
        except Refused:
            for one in told:
                clients.heard(one.kind, one.name, client)
            raise
        fresh = False
        places = self._places.promise(told)
        try:
            for one in told:
                await slice_.breathe()
                if client.connection.closed:
                    raise PeerLeft
                clients.keep(left, left - one.growth)
                left -= one.growth
                self._places.give_back(places, (one.kind, one.name))
                try:
                    fresh |= self._enter(beat, one)
                except Refused as error:  # others have changed the group since it was read
                    refused.append(error)
                    clients.heard(one.kind, one.name, client)
        finally:
            clients.keep(left, 0)
            self._places.give_back(places, *places)
        return fresh

    def _enter(self, beat: _Beat, told: Told) -> bool:
        """Whether another member may have replaced its subscriptions."""
        context, name = self._context, told.name
        clients, room = context.clients, context.config.client_bytes_max
        if told.kind == PRODUCERS:
            clients.producer(name, beat.client, bytes_max=room)
            return False
        group = context.groups.find(name)
        if group is None:
            clients.heard(CONSUMERS, name, beat.client)
            return False
        if context.role_state.is_master:
            context.topics.ensure(retry_topic(name), max(1, group.retry_queues))
        without = beat.without
        if clients.consumer(
            told.entry, beat.client, told.wanted, without_subscriptions=without, bytes_max=room
        ):
            beat.changed.append(name)
        self._filters.heard(name, told.wanted, without_subscriptions=without)
        return clients.told_by_another(name, beat.fingerprint)

    async def unregister(self, connection: Connection, request: Command) -> Command:
        need(request.ext, "clientID")
        changed = self._context.clients.unregister(
            connection, request.ext.get("producerGroup"), request.ext.get("consumerGroup")
        )
        connection.attributes.pop("fingerprint", None)
        self._left(changed)
        return request.reply()

    async def members(self, connection: Connection, request: Command) -> Command:
        name = need(request.ext, "consumerGroup")
        group = self._context.clients.consumers.get(name)
        if group is None or not group.members:
            raise Refused(f"no consumer for this group, {name}", Response.SYSTEM_ERROR)
        async with self._context.turns.take(connection) as turn:
            return request.reply(body=await strict(turn, {"consumerIdList": group.ids()}))

    async def check_config(self, connection: Connection, request: Command) -> Command:
        data = request_object(request)
        subscription = data.get("subscriptionData") or {}
        if not isinstance(subscription, dict):
            raise Refused("subscriptionData is not an object", Response.SYSTEM_ERROR)
        kind = subscription.get("expressionType") or TAG
        if kind == TAG:
            return request.reply()
        if not self._context.config.enable_property_filter:
            raise Refused(
                f"The broker does not support consumer to filter message by {kind}", Response.SYSTEM_ERROR
            )
        text = str(subscription.get("subString") or "")
        effort = self._context.effort
        try:
            async with effort.turn(connection):
                effort.read(text, str(kind))
                Subscription.of(str(subscription.get("topic") or ""), text, str(kind))
        except ValueError as error:
            raise Refused(str(error), Response.SUBSCRIPTION_PARSE_FAILED) from None
        return request.reply()

    async def consumer_connections(self, connection: Connection, request: Command) -> Command:
        name = need(request.ext, "consumerGroup")
        group = self._context.clients.consumers.get(name)
        if group is None:
            raise Refused(f"the consumer group[{name}] not online", Response.CONSUMER_NOT_ONLINE)
        async with self._context.turns.take(connection) as turn:
            body: dict[str, Any] = {
                "connectionSet": await gathered(turn, group.members.values(), _connection),
                "consumeFromWhere": group.from_where,
                "consumeType": group.consume_type,
                "messageModel": group.message_model,
                "subscriptionTable": dict(await gathered(turn, group.subscriptions.items(), _wanted)),
            }
            return request.reply(body=await strict(turn, body))

    async def producer_connections(self, connection: Connection, request: Command) -> Command:
        name = need(request.ext, "producerGroup")
        members = self._context.clients.producers.get(name)
        if members is None:
            raise Refused(f"the producer group[{name}] not exist", Response.SYSTEM_ERROR)
        async with self._context.turns.take(connection) as turn:
            found = await gathered(turn, members.values(), _connection)
            return request.reply(body=await strict(turn, {"connectionSet": found}))

    async def producers(self, connection: Connection, request: Command) -> Command:
        env = self._context.env
        since_1970_ms = env.now_ms() - env.monotonic_ms()  # clients are seen by the clock that never jumps
        shown = partial(_producer, since_1970_ms=since_1970_ms)
        async with self._context.turns.take(connection) as turn:
            table: dict[str, Any] = {}
            for name, members in list(self._context.clients.producers.items()):
                table[name] = await gathered(turn, members.values(), shown)
            return request.reply(body=await strict(turn, {"data": table}, depth=3))

    def closed(self, connection: Connection) -> None:
        """A connection ended: its client leaves its groups, and where these are many a few at a time."""
        self.turns.forget(connection)
        self._behind.pop(connection, None)
        self.leaving.begin(connection)

    def _leave(self, connection: Connection) -> bool:
        """Some of its groups; whether it is in others."""
        clients = self._context.clients
        self._left(clients.closed(connection, LEFT_AT_ONCE))
        return clients.knows(connection)

    async def expire(self) -> None:
        """Close connections of clients that stopped beating; their table entries go with them. Who beats for
        other groups only leaves those it beats for no more."""
        clients, slice_ = self._context.clients, Slice(self._context.env.monotonic_ms)
        since_ms = self._context.env.monotonic_ms() - self._context.config.client_expiry_ms
        for connection in clients.connections():
            if clients.is_silent(connection, since_ms):
                log.warning("client at %s is silent, closing its connection", connection.remote)
                self.closed(connection)
                connection.close()
            else:
                await self._leave_silent(connection, since_ms, slice_)
            await slice_.breathe()
        for connection in list(self._behind):
            if connection.closed or connection.untaken <= UNSENT_BYTES_HIGH:
                self._tell_owed(connection)
            await slice_.breathe()
        self._filters.clean()

    async def _leave_silent(self, connection: Connection, since_ms: float, slice_: Slice) -> None:
        while gone := self._context.clients.leave_silent(connection, since_ms, LEFT_AT_ONCE):
            names = [name for _, name in gone]
            log.info(
                "client at %s beats no more for %d groups, %s first", connection.remote, len(gone), names[0]
            )
            self._left([name for kind, name in gone if kind == CONSUMERS])
            await slice_.breathe()

    def _left(self, groups: list[str]) -> None:
        """A member left each of these groups."""
        for name in groups:
            if name not in self._context.clients.consumers:
                self._filters.left(name)
        self.notify(groups)

    def notify(self, groups: Iterable[str]) -> None:
        """Tell the members of each group that its members changed, so that they share the queues anew. One
        that changes again before it was told is told once: thousands of members may leave together."""
        self._changed.update(dict.fromkeys(groups))
        if self._changed and (self._telling is None or self._telling.done()):
            self._telling = self._tasks.spawn(self._tell(), name="members changed")

    async def _tell(self) -> None:
        slice_ = Slice(self._context.env.monotonic_ms)
        while self._changed:
            name = next(iter(self._changed))
            del self._changed[name]
            for member in self._to_tell(name):
                await slice_.breathe()
                if not member.connection.closed:
                    self._tell_one(member.connection, name)

    def _tell_one(self, connection: Connection, name: str) -> None:
        """One that left much unread will find a notice of the group there, and gets no second one before it
        has read: it asks who the members are then."""
        if connection.untaken > UNSENT_BYTES_HIGH:
            behind = self._behind.setdefault(connection, {})
            is_owed = behind[name] = name in behind
            if is_owed:
                return
        else:
            self._tell_owed(connection, but=name)
        connection.oneway(_notice(name))

    def _tell_owed(self, connection: Connection, *, but: str = "") -> None:
        """It has read, or left."""
        for name, is_owed in self._behind.pop(connection, {}).items():
            if is_owed and name != but and not connection.closed:
                connection.oneway(_notice(name))

    def _to_tell(self, name: str) -> list[Client]:
        """Broadcasting consumers share no queues, and are not told, as in the original."""
        group = self._context.clients.consumers.get(name)
        config = self._context.groups.table.get(name)
        if group is None or (config is not None and not config.notify_consumer_ids_changed):
            return []
        return [] if group.message_model == "BROADCASTING" else list(group.members.values())


def _notice(group: str) -> Command:
    return Command(int(Request.NOTIFY_CONSUMER_IDS_CHANGED), {"consumerGroup": group})


def _client_id(data: dict[str, Any]) -> str:
    """Raises KeyError, or ValueError."""
    found = str(data["clientID"])
    if len(found) > CLIENT_ID_MAX:
        raise ValueError(f"a clientID has at most {CLIENT_ID_MAX} characters")
    return found


async def _subscriptions(consumer: dict[str, Any], slice_: Slice, bytes_max: int) -> dict[str, Subscription]:
    """By topic. Raises Refused, KeyError, TypeError, ValueError or AttributeError."""
    wanted: dict[str, Subscription] = {}
    for raw in consumer.get("subscriptionDataSet") or []:
        Subscription.need_short(raw, bytes_max)
        subscription = Subscription.from_json(raw)
        wanted[subscription.topic] = subscription
        await slice_.breathe()
    return wanted


def _wanted(member: tuple[str, Subscription]) -> tuple[str, dict[str, Any]]:
    return member[0], member[1].to_json()


def _producer(client: Client, since_1970_ms: float) -> dict[str, Any]:
    return {
        "clientId": client.client_id,
        "language": client.language,
        "lastUpdateTimestamp": int(client.seen_ms + since_1970_ms),
        "remoteIP": f"/{client.connection.remote}",
        "version": client.version,
    }


def _connection(client: Client) -> dict[str, Any]:
    return {
        "clientAddr": client.connection.remote,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }
