"""The NameServer: takes brokers in, lets them go, and tells clients where topics are."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, Protocol

from model.codes import Request, Response
from model.config import NamesrvConfig
from model.errors import PeerError, Refused
from namesrv.codec import PART, ZONE, parse_queues, parse_registration, parse_version
from namesrv.core import ORDER_NAMESPACE, MasterChange, MinIdChange, Notice, RouteTable
from namesrv.kv_file import KvFile, answer_of
from remoting.acl.control import StandaloneAccess, own_credentials
from remoting.bodies import Items, dumps, dumps_dialect, pieces
from remoting.codec import Command
from remoting.headers import BrokerHeader, flag, need, opt_bool, told_clock
from remoting.operators.live_keys import LiveKeys, Rules
from remoting.service import Connection, Guard, Limits, RemotingClient, RemotingServer, unsupported
from remoting.slices import in_order, joined
from runtime.env import Env
from runtime.tasks import Tasks, every
from runtime.turns import PeerLeft, Slice, Turns

log = logging.getLogger(__name__)

STANDARD_JSON_VERSION: Final = 401  # clients from 4.9.4 on read standard JSON
ZONE_MODE: Final = "__ZONE_MODE"  # a client started with rocketmq.zone.mode wants its own zone's brokers only
RULES: Final = Rules(
    "namesrv",
    frozenset(
        {
            "brokerChannelExpiredTime",
            "supportActingMaster",
            "notifyMinBrokerIdChanged",
            "orderMessageEnable",
            "returnOrderTopicConfigToBroker",
            "deleteTopicWithBrokerRegistration",
        }
    ),
    frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}),
)
"""What UPDATE_NAMESRV_CONFIG may change; paths and ports never."""
SHORT_MAX: Final = 64
"""Groups of one topic whose route is written in one go."""
REGISTERING: Final = "registering"
"""The attribute of a connection whose registrations, and goodbyes, wait for each other."""
ANSWERS_MAX: Final = 1024
"""So many routes are kept as they were told last, as long as nothing changes."""


class Companion(Protocol):
    """What runs beside a NameServer in its process, an embedded Controller for instance."""

    def status(self) -> dict[str, Any]: ...
    def health(self) -> str | None: ...


class NameServer:
    """Serves the NameServer's requests on one port.

    ``companions`` (name -> server) are shown in ``status`` under their names and counted in ``health``; their
    owner starts and stops them.
    """

    def __init__(self, env: Env, config: NamesrvConfig) -> None:
        self.companions: dict[str, Companion] = {}
        self._env = env
        self._config = dataclasses.replace(config)  # UPDATE_NAMESRV_CONFIG changes our own copy
        self.live_keys = LiveKeys(env, self._config, RULES)
        self._table = RouteTable(self._config)
        self._kv = KvFile(env, config.kv_config_path)
        self._turns = Turns(env.monotonic_ms)
        self._table.sweep = self._sweep
        self._sessions: dict[int, Connection] = {}
        self._session_last = 0
        self._port: int | None = None
        self._tasks = Tasks("namesrv")
        credentials, signing = own_credentials(env, config)
        self._client = RemotingClient(env, "namesrv", credentials=signing)
        guard = Guard("namesrv", Limits.of(config), env.monotonic_ms)
        self._access = StandaloneAccess(env, config, guard, credentials)
        self._access.hold_to(self._clusters_of)
        self._server = RemotingServer(
            env,
            "namesrv",
            self._handle,
            on_open=self._opened,
            on_close=self._closed,
            credentials=credentials,
            guard=guard,
        )

    async def start(self) -> None:
        """Load the KV table and the ACL, and listen. Raises DiskError for a broken KV file, ConfigError for
        an ACL that cannot be read, OSError for a taken port."""
        self._kv.load()
        await self._access.start()
        port = await self._server.start(self._config.bind_address, self._config.listen_port)
        self._tasks.spawn(
            every(self._config.scan_not_active_ms / 1000, self._scan, what="looking for silent brokers"),
            name="scan",
        )
        self._port = port
        log.info("namesrv listens on %s", self.address)

    async def stop(self) -> None:
        """Stop serving. May be called again."""
        self._port = None
        await self._tasks.cancel()
        await self._access.stop()
        await self._server.stop()
        await self._client.close()

    @property
    def address(self) -> str:
        """``host:port`` it listens on; the configured port before it does."""
        host = self._config.bind_address
        return f"{host}:{self._port if self._port is not None else self._config.listen_port}"

    @property
    def codes(self) -> frozenset[int]:
        """The request codes it answers."""
        return frozenset({*map(int, self._answers), *self._access.answers})

    def status(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "brokers": self._table.brokers(),
            "topics": self._table.topic_count(),
            "connections": len(self._server.connections),
            "ports": self._server.guard.status(),
            **{name: companion.status() for name, companion in self.companions.items()},
            "events": self._env.events.to_json(),
            "eventTotals": dict(self._env.events.totals),
        }

    def health(self) -> str | None:
        if self._port is None:
            return "not listening"
        if self._kv.error is not None:
            return self._kv.error
        for name, companion in self.companions.items():
            reason = companion.health()
            if reason is not None:
                return f"{name}: {reason}"
        return None

    # connections and time

    def _now_ms(self) -> int:
        # Silence is measured on the clock that never jumps: a corrected wall clock expires no broker.
        return int(self._env.monotonic_ms())

    def _opened(self, connection: Connection) -> None:
        self._session_last += 1
        connection.attributes["session"] = self._session_last
        self._sessions[self._session_last] = connection

    def _closed(self, connection: Connection) -> None:
        session: int = connection.attributes["session"]
        del self._sessions[session]
        if self._port is not None:
            self._announce(self._table.session_ended(session))

    def _scan(self) -> None:
        sessions, notices = self._table.expire(self._now_ms())
        self._announce(notices)
        for session in sessions:
            connection = self._sessions.get(session)
            if connection is not None:
                log.warning("namesrv: no sign of life from the broker at %s, closing", connection.remote)
                connection.close()

    def _announce(self, notices: list[Notice] | tuple[Notice, ...]) -> None:
        for notice in notices:
            if isinstance(notice, MasterChange):
                log.info("namesrv: %s is master of %s", notice.address, notice.group)
                self._env.events.add("route_changed", group=notice.group, master=notice.address)
            elif self._config.notify_min_broker_id_changed:
                for address in notice.to:
                    self._tasks.spawn(self._tell_min_id(notice, address), name=f"tell.{address}")

    async def _tell_min_id(self, notice: MinIdChange, address: str) -> None:
        ext = {
            "minBrokerId": str(notice.min_id),
            "brokerName": notice.group,
            "minBrokerAddr": notice.min_address,
        }
        if notice.offline_address is not None:
            ext["offlineBrokerAddr"] = notice.offline_address
        if notice.ha_address is not None:
            ext["haBrokerAddr"] = notice.ha_address
        try:
            await self._client.oneway(address, Command(Request.NOTIFY_MIN_BROKER_ID_CHANGE, ext))
        except ConnectionError as error:
            # It asks for its group every second (GET_BROKER_MEMBER_GROUP): the notice only saves that second.
            log.warning("namesrv: cannot tell %s of the new smallest id: %s", address, error)

    # requests

    async def _handle(self, connection: Connection, request: Command) -> Command | None:
        if request.code in self._access.answers:
            return await self._access.answers[request.code](request)
        answer = self._answers.get(request.code)
        if answer is None:
            raise unsupported(request)
        result = answer(connection, request)
        return result if isinstance(result, Command) else await result

    @cached_property
    def _answers(self) -> dict[int, Callable[[Connection, Command], Command | Awaitable[Command]]]:
        return {
            Request.PUT_KV_CONFIG: self._put_kv,
            Request.GET_KV_CONFIG: self._get_kv,
            Request.DELETE_KV_CONFIG: self._delete_kv,
            Request.GET_KVLIST_BY_NAMESPACE: self._get_kv_list,
            Request.REGISTER_BROKER: self._register,
            Request.UNREGISTER_BROKER: self._unregister,
            Request.BROKER_HEARTBEAT: self._heartbeat,
            Request.QUERY_DATA_VERSION: self._query_version,
            Request.GET_ROUTEINFO_BY_TOPIC: self._route,
            Request.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            Request.GET_BROKER_MEMBER_GROUP: self._member_group,
            Request.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
            Request.ADD_WRITE_PERM_OF_BROKER: self._add,
            Request.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            Request.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics_of(lambda _: self._table.topics()),
            Request.GET_TOPICS_BY_CLUSTER: self._topics_of(
                lambda r: self._table.topics_of_cluster(need(r.ext, "cluster"))
            ),
            Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            Request.GET_UNIT_TOPIC_LIST: self._topics_of(
                lambda _: self._table.unit_topics(unit=True, subscribed=None)
            ),
            Request.GET_HAS_UNIT_SUB_TOPIC_LIST: self._topics_of(
                lambda _: self._table.unit_topics(unit=None, subscribed=True)
            ),
            Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._topics_of(
                lambda _: self._table.unit_topics(unit=False, subscribed=True)
            ),
            Request.UPDATE_NAMESRV_CONFIG: self.live_keys.update,
            Request.GET_NAMESRV_CONFIG: self._get_config,
        }

    async def _register(self, connection: Connection, request: Command) -> Command:
        async with _in_order(connection):
            slice_ = Slice(self._env.monotonic_ms)
            broker = await parse_registration(request, slice_)
            if connection.closed:
                raise PeerLeft  # its end is dealt with: nobody would take this broker out again
            found, steps = self._table.begin(broker, connection.attributes["session"], self._now_ms())
            self._announce(found.notices)
            for _ in steps:
                await slice_.breathe()
        ext = {PART: "true"}
        if found.master_address is not None:
            ext |= {"masterAddr": found.master_address, "haServerAddr": found.ha_address or ""}
        return request.reply(ext=ext, body=await self._ordered_topics(slice_))

    async def _ordered_topics(self, slice_: Slice) -> bytes:
        """What a registration is answered with; kept until the KV table is another one."""
        if not self._config.return_order_topic_config:
            return b""
        kv = self._kv.table
        if kv.ordered is None:
            values = kv.namespace(ORDER_NAMESPACE)
            kv.ordered = b"" if values is None else await joined(answer_of(values), slice_)
        return kv.ordered

    def _sweep(self, steps: Iterable[None]) -> None:
        """What a group that is gone leaves is taken away in slices."""

        async def work() -> None:
            slice_ = Slice(self._env.monotonic_ms)
            for _ in steps:
                await slice_.breathe()

        self._tasks.spawn(work(), name="sweep")

    async def _unregister(self, connection: Connection, request: Command) -> Command:
        header = BrokerHeader.parse(request.ext)
        async with _in_order(connection):  # behind a registration that is still being read
            log.info("namesrv: %s of %s leaves", header.address, header.name)
            self._announce(self._table.unregister(header.address, connection.attributes["session"]))
        return request.reply()

    def _heartbeat(self, connection: Connection, request: Command) -> Command:
        header = BrokerHeader.parse(request.ext, with_id=False)
        self._table.heartbeat(header.address, connection.attributes["session"], self._now_ms())
        return request.reply()

    def _query_version(self, connection: Connection, request: Command) -> Command:
        """Says whether a broker's topic table differs from the one known, and counts as a heartbeat."""
        header = BrokerHeader.parse(request.ext)
        offered = parse_version(request) if request.body else None
        known = self._table.data_version(header.address)
        self._table.heartbeat(header.address, connection.attributes["session"], self._now_ms())
        return request.reply(
            ext={"changed": flag(known is None or known != offered)},
            body=b"" if known is None else dumps(known.to_json()),
        )

    def _route(self, connection: Connection, request: Command) -> Command | Awaitable[Command]:
        topic = need(request.ext, "topic")
        zone = request.ext.get(ZONE, "").strip() if opt_bool(request.ext, ZONE_MODE) else ""
        strict = request.version >= STANDARD_JSON_VERSION or _standard_only(request)
        asked, cache = (topic, strict, self._config.support_acting_master), self._table.answer_cache
        ordered = self._config.order_message_enable
        # A zone is any text a client chooses, of any length: such answers are not kept.
        kept = not ordered and not zone
        if kept and (body := cache.get(asked)) is not None:
            return request.reply(body=body)
        route = self._table.route(topic, zone or None)
        if route is None:
            raise Refused(f"no route for topic {topic}: no broker has it", Response.TOPIC_NOT_EXIST)
        if ordered:
            route["orderTopicConf"] = self._kv.table.get(ORDER_NAMESPACE, topic)
        if len(route["queueDatas"]) > SHORT_MAX:
            return self._long_route(connection, request, route, asked if kept else None, strict=strict)
        body = dumps(route) if strict else dumps_dialect(route)
        if kept and len(cache) < ANSWERS_MAX:
            cache[asked] = body
        return request.reply(body=body)

    async def _long_route(
        self,
        connection: Connection,
        request: Command,
        route: dict[str, Any],
        asked: Hashable | None,
        *,
        strict: bool,
    ) -> Command:
        """A route of many groups, written in slices as it was when it was asked for. It is kept under
        ``asked`` if nothing changed meanwhile."""
        changes = self._table.changes
        async with self._turns.take(connection) as turn:
            body = self._table.answer_cache.get(asked) if asked is not None else None
            if body is None:
                body = await joined(pieces(route, strict=strict, ordered=False), turn)
                if (
                    asked is not None
                    and changes == self._table.changes
                    and len(self._table.answer_cache) < ANSWERS_MAX
                ):
                    self._table.answer_cache[asked] = body
        return request.reply(body=body)

    async def _cluster_info(self, connection: Connection, request: Command) -> Command:
        clock = told_clock(request.ext, self._env.now_ms())
        async with self._turns.take(connection) as turn:
            info = self._table.cluster_info()
            body = await joined(pieces(info, strict=_standard_only(request), ordered=False), turn)
        return request.reply(ext=clock, body=body)

    def _member_group(self, connection: Connection, request: Command) -> Command:
        group = self._table.member_group(need(request.ext, "clusterName"), need(request.ext, "brokerName"))
        return request.reply(body=_dialect_unless_asked(request, {"brokerMemberGroup": group}))

    def _topics_of(
        self, found: Callable[[Command], Iterator[str | None]]
    ) -> Callable[[Connection, Command], Awaitable[Command]]:
        """Answers with a list of topics, which is looked for and written in slices."""

        async def answer(connection: Connection, request: Command) -> Command:
            async with self._turns.take(connection) as turn:
                topics = Items(await in_order(found(request), turn))
                return request.reply(body=await joined(pieces({"topicList": topics}), turn))

        return answer

    def _system_topics(self, connection: Connection, request: Command) -> Command:
        topics, address = self._table.system_topics()
        return request.reply(body=dumps({"brokerAddr": address, "topicList": topics}))

    async def _wipe(self, connection: Connection, request: Command) -> Command:
        count = await self._counted(self._table.wipe_write_perm(need(request.ext, "brokerName")))
        return request.reply(ext={"wipeTopicCount": str(count)})

    async def _add(self, connection: Connection, request: Command) -> Command:
        count = await self._counted(self._table.add_write_perm(need(request.ext, "brokerName")))
        return request.reply(ext={"addTopicCount": str(count)})

    async def _counted(self, steps: Iterable[int]) -> int:
        """In slices; what was begun ends, whether or not its sender waits for it."""
        count, slice_ = 0, Slice(self._env.monotonic_ms)
        for some in steps:
            count += some
            await slice_.breathe()
        return count

    def _clusters_of(self, request: Command) -> set[str]:
        """See ``Gate.clusters_of``: those whose brokers or topics the request changes, named or not."""
        ext, table = request.ext, self._table
        found = set(table.clusters_of(ext.get("brokerName", ""), ext.get("brokerAddr", "")))
        if request.code == Request.DELETE_TOPIC_IN_NAMESRV and not ext.get("clusterName"):
            found.update(table.clusters_with(ext.get("topic", "")))
        elif request.code == Request.REGISTER_TOPIC_IN_NAMESRV:
            with suppress(PeerError):  # its handler refuses such a body
                for group in parse_queues(request):
                    found.update(table.clusters_of(group, ""))
        return found

    def _delete_topic(self, connection: Connection, request: Command) -> Command:
        self._table.delete_topic(need(request.ext, "topic"), request.ext.get("clusterName") or None)
        return request.reply()

    def _register_topic(self, connection: Connection, request: Command) -> Command:
        self._table.register_topic(need(request.ext, "topic"), parse_queues(request))
        return request.reply()

    # configuration

    def _get_config(self, connection: Connection, request: Command) -> Command:
        text = "rocketmqHome=\n" + self._config.shown()  # tools look for the key
        return request.reply(body=text.encode())

    # KV table

    def _get_kv(self, connection: Connection, request: Command) -> Command:
        namespace, key = need(request.ext, "namespace"), need(request.ext, "key")
        value = self._kv.table.get(namespace, key)
        if value is None:
            raise Refused(f"no value under {key} in namespace {namespace}", Response.QUERY_NOT_FOUND)
        return request.reply(ext={"value": value})

    async def _get_kv_list(self, connection: Connection, request: Command) -> Command:
        namespace = need(request.ext, "namespace")
        values = self._kv.table.namespace(namespace)
        if values is None:
            raise Refused(f"no values in namespace {namespace}", Response.QUERY_NOT_FOUND)
        async with self._turns.take(connection) as turn:
            return request.reply(body=await joined(answer_of(values), turn))

    async def _put_kv(self, connection: Connection, request: Command) -> Command:
        return await self._change_kv(request, need(request.ext, "value"))

    async def _delete_kv(self, connection: Connection, request: Command) -> Command:
        return await self._change_kv(request, None)

    async def _change_kv(self, request: Command, value: str | None) -> Command:
        namespace, key = need(request.ext, "namespace"), need(request.ext, "key")
        await self._kv.change(namespace, key, value)
        return request.reply()


def _standard_only(request: Command) -> bool:
    return opt_bool(request.ext, "acceptStandardJsonOnly")


def _dialect_unless_asked(request: Command, value: Any) -> bytes:
    return dumps(value) if _standard_only(request) else dumps_dialect(value)


def _in_order(connection: Connection) -> asyncio.Lock:
    """Fair: who came first goes on first."""
    found = connection.attributes.setdefault(REGISTERING, asyncio.Lock())
    assert isinstance(found, asyncio.Lock)
    return found
