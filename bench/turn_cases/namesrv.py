"""A NameServer with many brokers and topics, and the dearest request of each of its codes."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from bench.turn_cases.filled import MIB, entries, free_port, json_bytes
from bench.turn_cases.measure import Ask, Case, Site
from model.acl.directory import ENTRIES_MAX, USERS_MAX
from model.acl.policies import User, policies_of
from model.codes import Request
from model.config import NamesrvConfig
from model.topic import DataVersion
from namesrv.codec import TOPICS_MAX
from namesrv.core import Queues, Registration
from namesrv.kv import KvTable
from namesrv.service import NameServer
from runtime.os_env import OsEnv

CASES: Final[list[Case]] = []
TOPICS: Final = 100_000
GROUPS: Final = 5000
"""Of brokers, each of which has the topic SHARED."""
SHARED: Final = "shared"
BIG: Final = "big"
"""A group of one broker with all topics."""
KEYS: Final = 100_000
BODY_MAX: Final = 15 * MIB
FOREVER_MS: Final = 10**12


class NamesrvSite(Site):
    """One NameServer, filled."""

    def __init__(self, path: Path, share: float) -> None:
        config = NamesrvConfig.from_mapping(
            {
                "listenPort": str(free_port()),
                "kvConfigPath": str(path / "kvConfig.json"),
                "authConfigPath": str(path),
            }
        )
        super().__init__(config.listen_port, share)
        self.server = NameServer(OsEnv(seed=1), config)

    @property
    def codes(self) -> set[int]:
        return set(self.server.codes)

    def fill(self) -> None:
        table, queues = self.server._table, Queues(8, 8, 6, 3)
        topics = {f"topic{n:06}": queues for n in range(self.size(TOPICS))}
        mappings = {
            f"topic{n:06}": {"currIdMap": {str(q): q for q in range(16)}} for n in range(self.size(2000))
        }
        for n in range(self.size(GROUPS)):
            broker = Registration("c", f"group{n:05}", f"10.0.{n >> 8}.{n & 255}:10911", 0)
            broker.topics, broker.heartbeat_timeout_ms = {SHARED: queues}, FOREVER_MS
            broker.version = DataVersion(0, 1, 1)
            table.register(broker, 0, 0)
        whole = Registration("c", BIG, "10.9.9.9:10911", 0, heartbeat_timeout_ms=FOREVER_MS, topics=topics)
        whole.version, whole.mappings = DataVersion(0, 1, 1), mappings
        table.register(whole, 0, 0)
        values = {f"key{n:06}": "value" for n in range(self.size(KEYS))}
        self.server._kv.table = KvTable({"ORDER_TOPIC_CONFIG": values})
        access = self.server._access._control
        access.gate.authenticates = True  # the port, made without, asks for no signature
        directory = access.directory
        policies = policies_of({"policies": [{"policyType": "Custom", "entries": entries(50)}]})
        for n in range(min(self.size(USERS_MAX), USERS_MAX - 8)):
            directory.users[f"user{n:05}"] = User(f"user{n:05}", "password")
            directory.acls[f"user{n:05}"] = policies


@contextlib.asynccontextmanager
async def namesrv_site(path: Path, share: float = 1.0) -> AsyncIterator[NamesrvSite]:
    site = NamesrvSite(path, share)
    await site.server.start()
    try:
        site.fill()
        yield site
    finally:
        await site.server.stop()


def case(what: str, *codes: Request) -> Callable[[Callable[[Any, int], Ask]], Callable[[Any, int], Ask]]:
    """Send what it gives for each of these codes."""

    def add(make: Callable[[Any, int], Ask]) -> Callable[[Any, int], Ask]:
        CASES.extend(Case(code, what, make) for code in codes)
        return make

    return add


def broker_ext(n: int, **more: str) -> dict[str, str]:
    place = {"brokerName": f"made{n}", "brokerAddr": f"10.8.0.{n}:10911", "clusterName": "c", "brokerId": "0"}
    return {**place, "heartbeatTimeoutMillis": str(FOREVER_MS), **more}


def topic_json(name: str) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "topicSysFlag": 0}


def plain_body(site: NamesrvSite, run: int) -> bytes:
    table = {f"topic{n:06}": topic_json(f"topic{n:06}") for n in range(site.size(BODY_MAX // 112))}
    version = {"counter": run + 1, "stateVersion": 0, "timestamp": 7}
    return json_bytes({"topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": table}})


@case("a broker with 140,000 topics, 16 MiB", Request.REGISTER_BROKER)
def register(site: NamesrvSite, run: int) -> Ask:
    return Ask(broker_ext(1), plain_body(site, run))


@case("a broker with 200,000 topics, compressed", Request.REGISTER_BROKER)
def register_packed(site: NamesrvSite, run: int) -> Ask:
    def block(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    count = site.size(TOPICS_MAX)
    parts = [
        block(json_bytes({"counter": run + 1, "stateVersion": 0, "timestamp": 7})),
        struct.pack(">i", count),
    ]
    parts += [block(b"packed%07d 8 8 6 SINGLE_TAG {}" % n) for n in range(count)]
    parts += [block(b"[]"), struct.pack(">i", 0)]
    return Ask(broker_ext(2, compressed="true"), zlib.compress(b"".join(parts), 1))


@case("a part of one topic beside 100,000 of the same group", Request.REGISTER_BROKER)
def register_small(site: NamesrvSite, run: int) -> Ask:
    version = {"counter": run + 1, "stateVersion": 0, "timestamp": 7}
    body = {
        "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": {"x": topic_json("x")}}
    }
    return Ask(broker_ext(3), json_bytes(body))


@case("static topic maps in fastjson's JSON, 16 MiB", Request.REGISTER_BROKER)
def register_maps(site: NamesrvSite, run: int) -> Ask:
    one = b'{"currIdMap":{' + b",".join(b"%d:%d" % (n, n) for n in range(1000)) + b"}}"
    maps = b",".join(b'"topic%06d":%s' % (n, one) for n in range(site.size(BODY_MAX // len(one))))
    version = b'"dataVersion":{"counter":%d,"stateVersion":0,"timestamp":7}' % (run + 1)
    body = b'{"topicConfigSerializeWrapper":{' + version + b',"topicQueueMappingInfoMap":{' + maps + b"}}}"
    return Ask(broker_ext(4), body)


@case("the broker of 100,000 topics", Request.UNREGISTER_BROKER)
def unregister(site: NamesrvSite, run: int) -> Ask:
    table, name = site.server._table, f"leaving{run}"
    broker = Registration("c", name, f"10.7.0.{run}:10911", 0, heartbeat_timeout_ms=FOREVER_MS)
    broker.topics = {f"topic{n:06}": Queues(8, 8, 6) for n in range(site.size(TOPICS))}
    table.register(broker, 0, 0)
    return Ask({"brokerName": name, "brokerAddr": broker.address, "clusterName": "c", "brokerId": "0"})


@case("one of 5,000", Request.BROKER_HEARTBEAT, Request.QUERY_DATA_VERSION)
def beat(site: NamesrvSite, run: int) -> Ask:
    # The end of a connection takes the broker away that spoke on it: not one of those that are needed.
    broker = Registration("c", f"beating{run}", f"10.6.0.{run}:10911", 0, heartbeat_timeout_ms=FOREVER_MS)
    site.server._table.register(broker, 0, 0)
    return Ask({**broker_ext(1), "brokerAddr": broker.address})


@case("16 MiB of numbers beside a version", Request.QUERY_DATA_VERSION)
def version_numbers(site: NamesrvSite, run: int) -> Ask:
    return Ask(broker_ext(1), b'{"counter":1,"x":[' + b"1," * site.size(BODY_MAX // 2) + b"1]}")


@case("a topic of 5,000 groups", Request.GET_ROUTEINFO_BY_TOPIC)
def route(site: NamesrvSite, run: int) -> Ask:
    site.server._table.answer_cache.clear()
    return Ask({"topic": SHARED, "acceptStandardJsonOnly": "true"})


@case("a topic of 5,000 groups, in fastjson's JSON", Request.GET_ROUTEINFO_BY_TOPIC)
def route_dialect(site: NamesrvSite, run: int) -> Ask:
    return Ask({"topic": SHARED, "__ZONE_MODE": "true", "__ZONE_NAME": f"z{run}"})


@case("5,000 groups", Request.GET_BROKER_CLUSTER_INFO)
def cluster_info(site: NamesrvSite, run: int) -> Ask:
    return Ask()


@case("one of 5,000", Request.GET_BROKER_MEMBER_GROUP)
def member_group(site: NamesrvSite, run: int) -> Ask:
    return Ask({"clusterName": "c", "brokerName": "group00000"})


@case("a group of 100,000 topics", Request.WIPE_WRITE_PERM_OF_BROKER, Request.ADD_WRITE_PERM_OF_BROKER)
def wipe(site: NamesrvSite, run: int) -> Ask:
    return Ask({"brokerName": BIG})


@case("a topic of 5,000 groups", Request.DELETE_TOPIC_IN_NAMESRV)
def delete_topic(site: NamesrvSite, run: int) -> Ask:
    queues = {f"group{n:05}": Queues(8, 8, 6) for n in range(site.size(GROUPS))}
    site.server._table.register_topic(f"doomed{run}", queues)
    return Ask({"topic": f"doomed{run}", "clusterName": "c"})


@case("16 MiB of entries of one group", Request.REGISTER_TOPIC_IN_NAMESRV)
def register_topic(site: NamesrvSite, run: int) -> Ask:
    one = {"brokerName": BIG, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
    count = site.size(BODY_MAX // len(json_bytes(one)))
    return Ask({"topic": f"registered{run}"}, json_bytes({"queueDatas": [one] * count}))


LISTS: Final = (
    Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    Request.GET_TOPICS_BY_CLUSTER,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    Request.GET_UNIT_TOPIC_LIST,
    Request.GET_HAS_UNIT_SUB_TOPIC_LIST,
    Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
)


@case("100,000 topics, 5,000 groups", *LISTS)
def lists(site: NamesrvSite, run: int) -> Ask:
    return Ask({"cluster": "c"})


@case("one of 100,000 values", Request.PUT_KV_CONFIG, Request.GET_KV_CONFIG, Request.DELETE_KV_CONFIG)
def kv(site: NamesrvSite, run: int) -> Ask:
    return Ask({"namespace": "ORDER_TOPIC_CONFIG", "key": f"key{run:06}", "value": "x" * 1000})


@case("100,000 values", Request.GET_KVLIST_BY_NAMESPACE)
def kv_list(site: NamesrvSite, run: int) -> Ask:
    return Ask({"namespace": "ORDER_TOPIC_CONFIG"})


@case("16 MiB of comment lines", Request.UPDATE_NAMESRV_CONFIG)
def update_config(site: NamesrvSite, run: int) -> Ask:
    return Ask({}, b"#\n" * site.size(BODY_MAX // 2) + b"orderMessageEnable=false\n")


@case("as it is", Request.GET_NAMESRV_CONFIG)
def get_config(site: NamesrvSite, run: int) -> Ask:
    return Ask()


# -- users and policies: a NameServer's own, and as the Controller keeps its


def users_cases(cases: list[Case]) -> None:
    """The requests about users are the same at both."""
    body = json_bytes({"password": "p", "x": "y" * 1000})
    policy = {"policies": [{"policyType": "Custom", "entries": entries(ENTRIES_MAX)}]}
    one = {"subject": "User:user00001"}
    for code, what, make in (
        (Request.AUTH_CREATE_USER, "a user", lambda site, run: Ask({"username": f"new{run}"}, body)),
        (Request.AUTH_UPDATE_USER, "one of 2,000", lambda site, run: Ask({"username": "user00001"}, body)),
        (Request.AUTH_DELETE_USER, "one of 2,000", lambda site, run: Ask({"username": f"user{run:05}"})),
        (Request.AUTH_GET_USER, "one of 2,000", lambda site, run: Ask({"username": "user00003"})),
        (Request.AUTH_LIST_USER, "2,000 users", lambda site, run: Ask()),
        (
            Request.AUTH_CREATE_ACL,
            "500 entries",
            lambda site, run: Ask({"subject": "User:user00003"}, json_bytes(policy)),
        ),
        (
            Request.AUTH_UPDATE_ACL,
            "500 entries",
            lambda site, run: Ask({"subject": "User:user00003"}, json_bytes(policy)),
        ),
        (
            Request.AUTH_DELETE_ACL,
            "all of one user",
            lambda site, run: Ask(
                {"subject": f"User:user{run + site.size(20) % 500:05}", "policyType": "Custom"}
            ),
        ),
        (Request.AUTH_GET_ACL, "one of 2,000", lambda site, run: Ask({"subject": "User:user00003"})),
        (Request.AUTH_LIST_ACL, "2,000 users with 50 entries each", lambda site, run: Ask()),
    ):
        cases.append(Case(code, what, make))
    assert one


users_cases(CASES)
