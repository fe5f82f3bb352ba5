"""How does a client learn what to consume that leaves the sharing to the broker?

QUERY_ASSIGNMENT (400) and SET_MESSAGE_REQUEST_MODE (401). Queues of other groups of brokers are known from a
NameServer, whose answer counts for 30 s. Whoever asks meanwhile waits for the same answer; more topics than
``ASKED_MAX`` are not asked about at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.consumers.allocation import STRATEGIES, Queue, for_pop
from broker.tables.modes import MODES_MAX, POP, PULL, RequestMode, parse_mode
from model.codes import Request, Response
from model.errors import MqError, PeerError, Refused
from model.message import RETRY_PREFIX
from model.settings import addresses
from model.topic import PERM_READ
from remoting import bodies
from remoting.codec import Command
from remoting.request_bodies import request_object
from remoting.service import Connection, RemotingClient
from runtime.tasks import Tasks
from store.files.consume_queue import is_queue_name

log = logging.getLogger(__name__)

ROUTE_MS: Final = 30_000
NO_ROUTE_MS: Final = 1000
"""So long it counts that there is none, or that no NameServer answers. A client asks every 20 s."""
ROUTES_MAX: Final = 10_000
NO_ROUTES_MAX: Final = 1000
"""Anybody may name topics that are not there: these drive out no others."""
ASKED_MAX: Final = 64
CALL_S: Final = 3.0
BODY_BYTES_MAX: Final = 64 * 1024


@dataclass(slots=True)
class _Route:
    """What was said of a topic; no ``queues``: by no NameServer."""

    queues: list[Queue] | None
    until_ms: float


class AssignmentProcessor:
    """Answers 400 and 401."""

    def __init__(self, context: BrokerContext, client: RemotingClient) -> None:
        self._context = context
        self._client = client
        self._routes: dict[str, _Route] = {}  # queues in order
        self._none: dict[str, _Route] = {}  # of topics without a queue
        self._tasks = Tasks("asked routes")
        self._asked: dict[str, asyncio.Task[_Route]] = {}

    async def query(self, connection: Connection, request: Command) -> Command:
        """What a client is to consume of a topic; without ``messageQueueAssignments`` it goes on as it does.
        Raises Refused."""
        data = _body(request)
        topic, group, me = (_text(data, name) for name in ("topic", "consumerGroup", "clientId"))
        mode = self._mode(topic, group)
        queues = await self._queues(topic)
        body: dict[str, Any] = {}
        if queues:
            found = self._assigned(data, queues, group, me, mode)
            if found is not None:
                body["messageQueueAssignments"] = [
                    {
                        "messageQueue": {"brokerName": broker, "queueId": queue_id, "topic": topic},
                        "mode": mode.mode,
                    }
                    for broker, queue_id in found
                ]
        return request.reply(body=bodies.dumps(body))

    async def set_mode(self, connection: Connection, request: Command) -> Command:
        """Raises Refused."""
        data = _body(request)
        topic, group = _text(data, "topic"), _text(data, "consumerGroup")
        context = self._context
        if topic.startswith(RETRY_PREFIX):
            raise Refused("retry topic is not allowed to set mode", Response.NO_PERMISSION)
        if context.topics.get(topic) is None:
            raise Refused(f"topic[{topic}] not exist", Response.TOPIC_NOT_EXIST)
        if context.groups.find(group) is None:
            raise Refused("subscription group does not exist", Response.SUBSCRIPTION_GROUP_NOT_EXIST)
        modes = context.groups.modes
        if modes.get(topic, group) is None and len(modes) >= MODES_MAX:
            raise Refused(f"there are {MODES_MAX} modes already", Response.SYSTEM_ERROR)
        refused = context.copies.refuse()
        if refused is not None:
            raise refused
        try:
            mode = parse_mode(data)
        except (ValueError, TypeError) as error:
            raise Refused(f"the body is no request mode: {error}", Response.SYSTEM_ERROR) from None
        modes.put(topic, group, mode)
        await context.copies.wait_for_copies("modes")
        return request.reply()

    def _mode(self, topic: str, group: str) -> RequestMode:
        found = self._context.groups.modes.get(topic, group)
        if found is not None:
            return found
        config = self._context.config
        if topic.startswith(RETRY_PREFIX) or config.request_mode.upper() != POP:
            return RequestMode(PULL)
        return RequestMode(POP, config.pop_share_queues)

    def _assigned(
        self, data: dict[str, Any], queues: list[Queue], group: str, me: str, mode: RequestMode
    ) -> list[Queue] | None:
        """None: the client is to change nothing."""
        if data.get("messageModel", "CLUSTERING") == "BROADCASTING":
            return queues
        if not self._context.config.server_load_balancer:
            return queues
        consumers = self._context.clients.consumers.get(group)
        strategy = STRATEGIES.get(str(data.get("strategyName") or "AVG"))
        if consumers is None or strategy is None:
            return None
        clients = consumers.ids()
        if mode.mode == POP:
            return for_pop(strategy, queues, clients, me, mode.share)
        return strategy(queues, clients, me)

    async def _queues(self, topic: str) -> list[Queue] | None:
        """None: nobody says which there are, and a client is to change nothing. Told of those that are here
        alone, it would leave those of other brokers."""
        if not is_queue_name(topic, 0):
            return []  # no topic's
        known = self._routes.get(topic) or self._none.get(topic)
        if known is None or known.until_ms <= self._context.env.monotonic_ms():
            known = await self._asked_for(topic) or known
        if known is None or known.queues is None:
            return None if addresses(self._context.config.namesrv_addr) else self._own(topic)
        return known.queues

    async def _asked_for(self, topic: str) -> _Route | None:
        """None when too many are asked for."""
        asked = self._asked.get(topic)
        if asked is None:
            if len(self._asked) >= ASKED_MAX:
                return None
            asked = self._asked[topic] = self._tasks.spawn(self._ask(topic), name="ask")
        return await asyncio.shield(asked)

    async def _ask(self, topic: str) -> _Route:
        try:
            found = await self._route(topic)
        finally:
            del self._asked[topic]
        former = self._routes.pop(topic, None)
        self._none.pop(topic, None)
        if found is None and former is not None:
            found, lasts_ms = former.queues, NO_ROUTE_MS  # what is known
        else:
            lasts_ms = ROUTE_MS if found else NO_ROUTE_MS
        routes, most = (self._routes, ROUTES_MAX) if found else (self._none, NO_ROUTES_MAX)
        if len(routes) >= most:
            del routes[next(iter(routes))]  # the one that was asked for the longest time ago
        route = routes[topic] = _Route(found, self._context.env.monotonic_ms() + lasts_ms)
        return route

    async def _route(self, topic: str) -> list[Queue] | None:
        for address in addresses(self._context.config.namesrv_addr):
            command = Command(int(Request.GET_ROUTEINFO_BY_TOPIC), {"topic": topic})
            try:
                answer = await self._client.call(address, command, CALL_S)
                if answer.code == Response.TOPIC_NOT_EXIST:
                    return []
                if answer.code == Response.SUCCESS:
                    return _queues_of(bodies.believed_object(answer.body))
            except (MqError, OSError) as error:
                log.info("the NameServer %s says no route of %s: %s", address, topic, error)
        return None

    def _own(self, topic: str) -> list[Queue]:
        found = self._context.topics.get(topic)
        name = self._context.config.broker_name
        return [(name, at) for at in range(found.read_queues)] if found and found.perm & PERM_READ else []


def _queues_of(route: dict[str, Any]) -> list[Queue]:
    """Raises PeerError."""
    try:
        return sorted(
            (str(data["brokerName"]), at)
            for data in route.get("queueDatas") or []
            if int(data["perm"]) & PERM_READ
            for at in range(min(int(data["readQueueNums"]), 65535))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(f"not a route: {error!r}") from None


def _body(request: Command) -> dict[str, Any]:
    if len(request.body) > BODY_BYTES_MAX:
        raise Refused(f"the body has more than {BODY_BYTES_MAX} bytes", Response.SYSTEM_ERROR)
    try:
        return request_object(request)
    except PeerError as error:
        raise Refused(f"the body is none: {error}", Response.SYSTEM_ERROR) from None


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"the request has no {name}", Response.SYSTEM_ERROR)
    return value
