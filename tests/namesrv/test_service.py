"""The promises of namesrv.service: real registrations are understood, clients get routes, nothing is lost."""

import asyncio
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.codes import Request, Response
from model.errors import DiskError, PeerError, Refused
from model.topic import DataVersion
from namesrv.codec import parse_registration
from namesrv.core import TOPICS_A_STEP, Queues, Registration, RouteTable
from namesrv.kv import KvTable
from namesrv.service import SHORT_MAX
from remoting.bodies import dumps, loads
from remoting.codec import Command
from remoting.long_objects import WINDOW_BYTES
from remoting.service import Connection, RemotingClient, RemotingServer
from remoting.slices import TEXTS_A_RUN
from runtime.turns import Slice
from tests import GOLDEN
from tests.fakes.at_once import ENDLESS, at_once
from tests.namesrv.world import registration, topic, world
from tests.remoting.support import golden, run
from tests.waiting import until

FRAMES = GOLDEN / "remoting"


def test_the_registration_of_a_real_broker_is_taken_and_gives_the_routes_it_names() -> None:
    async def work() -> None:
        async with world() as w:
            asked = golden("register_broker")
            answer = await w.client.call(w.server.address, asked)
            assert (answer.code, answer.body) == (0, golden("register_broker", "response").body)
            expected = loads(golden("get_route", "response").body)
            route = await w.route("TBW102")
            assert route["brokerDatas"] == expected["brokerDatas"]
            assert route.keys() == expected.keys()
            assert route["queueDatas"][0].keys() == expected["queueDatas"][0].keys()
            heartbeat = golden("broker_heartbeat")
            await w.client.oneway(w.server.address, heartbeat)
            await w.client.oneway(w.server.address, golden("heartbeat_by_data_version_oneway"))
            answer = await w.client.call(w.server.address, golden("unregister_broker"))
            assert answer.code == golden("unregister_broker", "response").code
            assert await w.route("TBW102") is None

    run(work)


def test_a_route_that_is_told_again_is_the_route_of_the_moment() -> None:
    async def work() -> None:
        async with world() as w:

            async def told() -> tuple[Any, ...] | None:
                first, again = [await w.route() for _ in range(2)]
                assert first == again
                if first is None:
                    return None
                perms = [queues["perm"] for queues in first["queueDatas"]]
                return first["brokerDatas"][0]["brokerAddrs"], perms, first.get("orderTopicConf")

            async def configure(text: str) -> None:
                assert (await w.ask(Request.UPDATE_NAMESRV_CONFIG, body=text.encode())).code == 0

            master, slave = "10.0.0.1:10911", "10.0.0.2:10911"
            await w.register(master)
            assert await told() == ({"0": master}, [6], None)
            await w.register(slave, 1)
            assert await told() == ({"0": master, "1": slave}, [6], None)
            await w.ask(Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
            assert await told() == ({"0": master, "1": slave}, [4], None)
            await w.ask(Request.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
            assert await told() == ({"0": master, "1": slave}, [6], None)
            kept = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
            await w.ask(Request.PUT_KV_CONFIG, kept)
            await configure("orderMessageEnable=true")
            assert await told() == ({"0": master, "1": slave}, [6], "broker-a:4")
            await configure("orderMessageEnable=false")
            assert await told() == ({"0": master, "1": slave}, [6], None)
            goodbye = {"brokerName": "broker-a", "brokerAddr": slave, "brokerId": "1"}
            await w.ask(Request.UNREGISTER_BROKER, {**goodbye, "clusterName": "DefaultCluster"})
            assert await told() == ({"0": master}, [6], None)
            await w.ask(Request.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
            assert await told() is None

    run(work)


def test_a_topic_nobody_has_is_answered_as_the_original_answers() -> None:
    async def work() -> None:
        async with world() as w:
            answer = await w.client.call(w.server.address, golden("get_route_unknown_topic"))
            assert answer.code == golden("get_route_unknown_topic", "response").code
            assert "%RETRY%g_push_cluster_c_v1" in (answer.remark or "")

    run(work)


def test_old_clients_get_bare_integer_keys_and_new_ones_standard_json() -> None:
    async def work() -> None:
        async with world() as w:
            await w.register("10.0.0.1:10911")
            ext = {"topic": "T"}
            route = Request.GET_ROUTEINFO_BY_TOPIC
            assert b'{0:"10.0.0.1:10911"}' in (await w.ask(route, ext, version=400)).body
            asked = {**ext, "acceptStandardJsonOnly": "true"}
            for answer in (await w.ask(route, ext, version=401), await w.ask(route, asked, version=400)):
                assert b'{"0":"10.0.0.1:10911"}' in answer.body
            assert b'"brokerAddrs":{0:' in (await w.ask(Request.GET_BROKER_CLUSTER_INFO)).body
            group = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
            answer = await w.ask(Request.GET_BROKER_MEMBER_GROUP, group)
            assert answer.body == (
                b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a",'
                b'"cluster":"DefaultCluster"}}'
            )

    run(work)


@pytest.mark.parametrize(
    ("mode", "zone", "groups"),
    [
        ("true", "West", {"w", "orphan"}),
        ("TRUE", " ", {"w", "e", "orphan"}),
        ("false", "west", {"w", "e", "orphan"}),
        (None, "west", {"w", "e", "orphan"}),
        ("true", "north", {"orphan"}),
    ],
)
def test_a_client_that_keeps_to_its_zone_is_told_of_that_and_of_groups_without_a_master(
    mode: str | None, zone: str, groups: set[str]
) -> None:
    async def work() -> None:
        async with world() as w:
            await w.register("10.0.0.1:1", brokerName="w", __ZONE_NAME="west")
            await w.register("10.0.0.2:1", brokerName="e", __ZONE_NAME="east")
            await w.register("10.0.0.3:1", 0, brokerName="orphan", __ZONE_NAME="east")
            await w.register("10.0.0.3:1", 1, brokerName="orphan", __ZONE_NAME="east")
            ext = {"topic": "T", "__ZONE_NAME": zone} | ({"__ZONE_MODE": mode} if mode else {})
            route = loads((await w.ask(Request.GET_ROUTEINFO_BY_TOPIC, ext)).body)
            assert {b["brokerName"] for b in route["brokerDatas"]} == groups
            assert {q["brokerName"] for q in route["queueDatas"]} == groups

    run(work)


def test_zones_that_clients_make_up_take_no_memory() -> None:
    async def work() -> None:
        async with world() as w:
            await w.register("10.0.0.1:1")
            for number in range(20):
                zone = {"__ZONE_MODE": "true", "__ZONE_NAME": f"{number}" * 10_000}
                assert (await w.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", **zone})).code == 0
            assert not w.server._table.answer_cache
            await w.route()
            assert len(w.server._table.answer_cache) == 1

    run(work)


def test_a_changed_master_is_an_event_and_a_slave_learns_its_addresses() -> None:
    async def work() -> None:
        async with world() as w:
            await w.register("10.0.0.1:10911", state=1)
            await w.register("10.0.0.1:10911", state=1)
            slave = await w.register("10.0.0.2:10911", 1, state=1)
            master = {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:1"}
            assert slave.ext == {"keelmqPart": "true", **master}
            await w.register("10.0.0.2:10911", 0, state=2)
            ignored = await w.register("10.0.0.1:10911", 0, state=1)
            assert (ignored.code, ignored.ext) == (0, {"keelmqPart": "true"})
            events = [event for event in w.env.events.to_json() if event["event"] == "route_changed"]
            assert [(event["group"], event["master"]) for event in events] == [
                ("broker-a", "10.0.0.1:10911"),
                ("broker-a", "10.0.0.2:10911"),
            ]
            assert w.server.status()["brokers"] == {"broker-a": {"0": "10.0.0.2:10911"}}

    run(work)


def test_a_broker_whose_connection_closes_is_gone_at_once_but_not_for_an_older_connection() -> None:
    async def work() -> None:
        async with world() as w:
            first, second = RemotingClient(w.env, "first"), RemotingClient(w.env, "second")
            await first.call(w.server.address, registration("10.0.0.1:10911"))
            await second.call(w.server.address, registration("10.0.0.1:10911"))
            connections = w.server._server.connections
            await w.route()
            await first.close()
            await until(lambda: len(connections) == 2)
            assert await w.route() is not None
            await second.close()
            await until(lambda: len(connections) == 1)
            assert await w.route() is None

    run(work)


def test_a_silent_broker_is_disconnected_and_forgotten() -> None:
    async def work() -> None:
        async with world(scan_not_active_ms=20) as w:
            broker = RemotingClient(w.env, "broker")
            await broker.call(w.server.address, registration("10.0.0.1:10911", heartbeatTimeoutMillis="2000"))
            beat = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "DefaultCluster"}
            for _ in range(25):  # longer than the bound in all; a machine may stall for a second
                await broker.oneway(w.server.address, Command(Request.BROKER_HEARTBEAT, beat))
                await asyncio.sleep(0.1)
            assert await w.route() is not None
            await until(lambda: not broker._open)
            assert await w.route() is None
            await broker.close()

    run(work)


def test_a_broker_asks_whether_its_table_is_known() -> None:
    async def work() -> None:
        async with world() as w:
            ext = registration("10.0.0.1:10911").ext
            version = {"counter": 1, "stateVersion": 0, "timestamp": 7}
            answer = await w.ask(Request.QUERY_DATA_VERSION, ext, dumps(version))
            assert (answer.ext, answer.body) == ({"changed": "true"}, b"")
            await w.register("10.0.0.1:10911")
            answer = await w.ask(Request.QUERY_DATA_VERSION, ext, dumps(version))
            assert (answer.ext, loads(answer.body)) == ({"changed": "false"}, version)
            answer = await w.ask(Request.QUERY_DATA_VERSION, ext, dumps({**version, "counter": 2}))
            assert answer.ext == {"changed": "true"}

    run(work)


def test_operators_change_write_permission_and_topics() -> None:
    async def work() -> None:
        async with world() as w:
            await w.register("10.0.0.1:10911")
            name = {"brokerName": "broker-a"}
            assert (await w.ask(Request.WIPE_WRITE_PERM_OF_BROKER, name)).ext == {"wipeTopicCount": "2"}
            assert (await w.route())["queueDatas"][0]["perm"] == 4
            assert (await w.ask(Request.ADD_WRITE_PERM_OF_BROKER, name)).ext == {"addTopicCount": "2"}
            queues = {"queueDatas": [{"brokerName": "broker-a", "readQueueNums": 1, "writeQueueNums": 1}]}
            await w.ask(Request.REGISTER_TOPIC_IN_NAMESRV, {"topic": "N"}, dumps(queues))
            topics = loads((await w.ask(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body)
            assert topics == {"topicList": ["N", "S", "T"]}
            await w.ask(Request.DELETE_TOPIC_IN_NAMESRV, {"topic": "N"})
            cluster = {"cluster": "DefaultCluster"}
            topics = loads((await w.ask(Request.GET_TOPICS_BY_CLUSTER, cluster)).body)
            assert topics == {"topicList": ["S", "T"]}
            topics = loads((await w.ask(Request.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body)
            assert topics == {"brokerAddr": "10.0.0.1:10911", "topicList": ["DefaultCluster", "broker-a"]}
            for code in (311, 312, 313):
                assert loads((await w.ask(code)).body) == {"topicList": []}

    run(work)


def test_values_are_kept_across_a_restart_and_order_topics_reach_brokers_and_clients(tmp_path: Path) -> None:
    path = f"{tmp_path}/conf/kvConfig.json"
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}

    async def first() -> None:
        async with world(kv_config_path=path) as w:
            assert (await w.ask(Request.GET_KV_CONFIG, order)).code == Response.QUERY_NOT_FOUND
            await w.ask(Request.PUT_KV_CONFIG, {**order, "value": "broker-a:4"})
            await w.ask(Request.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
            await w.ask(Request.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"})

    async def second() -> None:
        async with world(kv_config_path=path, order_message_enable=True) as w:
            assert (await w.ask(Request.GET_KV_CONFIG, order)).ext == {"value": "broker-a:4"}
            listed = await w.ask(Request.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
            assert loads(listed.body) == {"table": {"T": "broker-a:4"}}
            missing = await w.ask(Request.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
            assert missing.code == Response.QUERY_NOT_FOUND
            assert loads((await w.register("10.0.0.1:10911")).body) == {"table": {"T": "broker-a:4"}}
            assert (await w.route())["orderTopicConf"] == "broker-a:4"

    run(first)
    assert Path(path).read_text() == (
        '{\n\t"configTable":{\n\t\t"ORDER_TOPIC_CONFIG":{\n\t\t\t"T":"broker-a:4"\n\t\t}\n\t}\n}'
    )
    run(second)


def test_a_value_that_cannot_be_saved_is_refused_and_not_half_there(tmp_path: Path) -> None:
    async def work() -> None:
        blocked = tmp_path / "file"
        blocked.write_text("not a directory")
        async with world(kv_config_path=f"{blocked}/kvConfig.json") as w:
            answer = await w.ask(Request.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
            assert answer.code == Response.SYSTEM_ERROR
            assert (await w.ask(Request.GET_KV_CONFIG, {"namespace": "n", "key": "k"})).code == 22
            assert "cannot save" in (w.server.health() or "")

    run(work)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"configTable":[]}', '{"configTable":{"n":1}}'])
def test_a_broken_kv_file_stops_the_start_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(text)

    async def work() -> None:
        with pytest.raises(DiskError, match=r"kvConfig\.json"):
            async with world(kv_config_path=str(path)):
                pass

    run(work)


def test_configuration_is_shown_and_only_harmless_keys_change() -> None:
    async def work() -> None:
        async with world() as w:
            text = (await w.ask(Request.GET_NAMESRV_CONFIG)).body.decode()
            assert "supportActingMaster=false\n" in text
            update = Request.UPDATE_NAMESRV_CONFIG
            assert (await w.ask(update, body=b"orderMessageEnable=true\nlistenPort=0")).code == 0
            assert "orderMessageEnable=true\n" in (await w.ask(Request.GET_NAMESRV_CONFIG)).body.decode()
            refused = await w.ask(update, body=b"orderMessageEnable=false\nlistenPort=1")
            assert (refused.code, "listenPort" in (refused.remark or "")) == (Response.NO_PERMISSION, True)
            for name in ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"):
                refused = await w.ask(update, body=f"orderMessageEnable=false\n{name}=".encode())
                assert (refused.code, refused.remark) == (16, "Can not update config in black list.")
            for wrong in (b"noSuchKey=1", b"orderMessageEnable=perhaps", b"novalue", b"\xff=1"):
                assert (await w.ask(update, body=wrong)).code == Response.INVALID_PARAMETER
            assert "orderMessageEnable=true\n" in (await w.ask(Request.GET_NAMESRV_CONFIG)).body.decode()

    run(work)


def test_members_are_told_of_a_new_smallest_id() -> None:
    heard: list[dict[str, str]] = []

    async def member(_: Connection, request: Command) -> None:
        assert request.code == Request.NOTIFY_MIN_BROKER_ID_CHANGE
        heard.append(request.ext)

    async def work() -> None:
        async with world(notify_min_broker_id_changed=True) as w:
            slave = RemotingServer(w.env, "slave", member)
            address = f"127.0.0.1:{await slave.start('127.0.0.1', 0)}"
            await w.register(address, 2, enableActingMaster="true")
            await w.register("127.0.0.1:1", 0, enableActingMaster="true")
            await until(lambda: len(heard) == 1)
            gone = {**registration("127.0.0.1:1").ext}
            await w.ask(Request.UNREGISTER_BROKER, gone)
            await until(lambda: len(heard) == 2)
            await slave.stop()
            usual = {"brokerName": "broker-a"}
            assert heard == [
                {**usual, "minBrokerId": "0", "minBrokerAddr": "127.0.0.1:1", "haBrokerAddr": "10.0.0.1:1"},
                {**usual, "minBrokerId": "2", "minBrokerAddr": address, "offlineBrokerAddr": "127.0.0.1:1"},
            ]

    run(work)


class Controller:
    reason: str | None = None

    def status(self) -> dict[str, Any]:
        return {"leader": "n0"}

    def health(self) -> str | None:
        return self.reason


def test_status_and_health_include_the_companions() -> None:
    async def work() -> None:
        async with world() as w:
            controller = Controller()
            w.server.companions["controller"] = controller
            await w.register("10.0.0.1:10911")
            status = w.server.status()
            assert status["controller"] == {"leader": "n0"}
            assert status["topics"] == 2
            assert json.dumps(status)
            assert w.server.health() is None
            controller.reason = "no leader"
            assert w.server.health() == "controller: no leader"
            await w.server.stop()
            assert w.server.health() == "not listening"

    run(work)


def test_bad_requests_are_answered_and_the_connection_goes_on() -> None:
    async def work() -> None:
        async with world() as w:
            assert (await w.ask(9999)).code == Response.REQUEST_CODE_NOT_SUPPORTED
            assert (await w.ask(Request.REGISTER_BROKER)).code == Response.SYSTEM_ERROR
            wrong_crc = await w.register("10.0.0.1:10911", bodyCrc32="1")
            assert "bodyCrc32" in (wrong_crc.remark or "")
            no_json = registration("10.0.0.1:10911", bodyCrc32="0")
            no_json.body = b"{nothing"
            assert (await w.client.call(w.server.address, no_json)).code == Response.SYSTEM_ERROR
            assert await w.route() is None
            assert len(w.server._server.connections) == 1

    run(work)


def block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed(topics: list[bytes], *, mappings: list[bytes] | None = None) -> bytes:
    parts = [block(b'{"counter":3,"stateVersion":2,"timestamp":1}'), struct.pack(">i", len(topics))]
    parts += [block(line) for line in topics]
    parts.append(block(b'["f:1"]'))
    if mappings is not None:
        parts.append(struct.pack(">i", len(mappings)))
        parts += [block(mapping) for mapping in mappings]
    return zlib.compress(b"".join(parts), 9)


def compressed_command(body: bytes, version: int = 479) -> Command:
    ext = {**registration("10.0.0.1:10911").ext, "compressed": "true", "bodyCrc32": "0"}
    return Command(Request.REGISTER_BROKER, ext, body, version=version)


def parsed(command: Command) -> Registration:
    return at_once(parse_registration(command, ENDLESS))


def test_compressed_registrations_of_both_ages_and_old_bare_ones_are_read() -> None:
    lines = [b"T 4 8 6 SINGLE_TAG {}", b"S 1 1 4 SINGLE_TAG"]
    topics = {"T": Queues(4, 8, 6), "S": Queues(1, 1, 4)}
    old = parsed(compressed_command(compressed(lines), version=399))
    new = parsed(compressed_command(compressed(lines, mappings=[b'{"topic":"T","bname":"g"}'])))
    for found in (old, new):
        assert (found.topics, found.filter_servers) == (topics, ["f:1"])
        assert found.version == DataVersion(2, 1, 3)
    assert (old.mappings, new.mappings) == ({}, {"T": {"topic": "T", "bname": "g"}})
    body = dumps({"dataVersion": {"counter": 1}, "topicConfigTable": {"T": topic("T")}})
    bare = Command(Request.REGISTER_BROKER, {**registration("a:1").ext, "bodyCrc32": "0"}, body, version=36)
    assert parsed(bare).topics == {"T": Queues(4, 4, 6)}


def test_a_compressed_registration_that_would_fill_the_memory_is_refused() -> None:
    bomb = compressed([b"T 4 8 6 SINGLE_TAG " + bytes(250_000)] * 300)
    with pytest.raises(PeerError, match="longer than"):
        parsed(compressed_command(bomb))


@given(st.data(), st.binary(max_size=80))
def test_damaged_registrations_raise_nothing_but_declared_errors(data: st.DataObject, noise: bytes) -> None:
    good = compressed([b"T 4 8 6 SINGLE_TAG {}"], mappings=[b'{"topic":"T"}'])
    plain = zlib.decompress(good)
    cut = data.draw(st.integers(0, len(plain)))
    bodies = [noise, good[:cut], zlib.compress(plain[:cut] + noise), zlib.compress(noise)]
    for body in bodies:
        for command in (
            compressed_command(body),
            Command(Request.REGISTER_BROKER, {**registration("a:1").ext, "bodyCrc32": "0"}, body),
        ):
            try:
                found = parsed(command)
            except (PeerError, Refused):
                continue
            assert found.address


def test_a_long_registration_is_taken_in_slices_and_its_goodbye_behind_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with world() as w:
            looks = 0

            def is_over(self: Slice) -> bool:
                nonlocal looks
                looks += 1
                return True

            monkeypatch.setattr(Slice, "is_over", is_over)
            many = {f"T{n}": topic(f"T{n}") for n in range(3000)}
            long = registration("10.0.0.1:10911", bodyCrc32="0")
            long.body = dumps({"topicConfigSerializeWrapper": {"topicConfigTable": many}})
            assert (await w.client.call(w.server.address, long)).code == 0
            assert looks >= len(long.body) // WINDOW_BYTES + len(many) // TOPICS_A_STEP
            assert w.server._table.topic_count() == len(many)
            assert (await w.route("T2999"))["queueDatas"][0]["readQueueNums"] == 4
            ext = {name: long.ext[name] for name in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
            asked = w.client.call(w.server.address, long)
            goodbye = w.client.call(w.server.address, Command(Request.UNREGISTER_BROKER, ext))
            assert [answer.code for answer in await asyncio.gather(asked, goodbye)] == [0, 0]
            assert await w.route("T1") is None, "what was said last holds"
            await until(lambda: w.server._table.topic_count() == 0)

    run(work)


def test_lists_of_topics_are_looked_through_and_sorted_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with world() as w:
            many = {f"T{n}": {**topic(f"T{n}"), "topicSysFlag": 3} for n in range(3000)}
            long = registration("10.0.0.1:10911", bodyCrc32="0")
            long.body = dumps({"topicConfigSerializeWrapper": {"topicConfigTable": many}})
            assert (await w.client.call(w.server.address, long)).code == 0
            looked: list[int] = []
            is_unit = RouteTable._is_unit

            def counted(self: RouteTable, *given: Any) -> bool:
                looked[-1] += 1
                return is_unit(self, *given)

            def is_over(self: Slice) -> bool:
                looked.append(0)
                return True

            monkeypatch.setattr(RouteTable, "_is_unit", counted)
            monkeypatch.setattr(Slice, "is_over", is_over)
            looked.append(0)
            answer = await w.ask(Request.GET_HAS_UNIT_SUB_TOPIC_LIST, {})
            assert loads(answer.body) == {"topicList": sorted(many)}
            assert sum(looked) == len(many)
            assert max(looked) <= TEXTS_A_RUN <= 1000, "1,000 and their order take 4 ms"

    run(work)


def test_a_long_route_is_written_in_slices_as_it_was_and_kept_if_it_still_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with world() as w:
            for n in range(SHORT_MAX + 1):
                await w.register(f"10.0.0.{n}:1", brokerName=f"g{n:03}")
            table = w.server._table
            assert len((await w.route())["brokerDatas"]) == SHORT_MAX + 1
            assert len(table.answer_cache) == 1
            table._clear_answers()
            paused = Slice.pause

            async def changed(self: Slice) -> None:
                table._clear_answers()
                await paused(self)

            monkeypatch.setattr(Slice, "pause", changed)
            monkeypatch.setattr(Slice, "is_over", lambda self: True)
            assert len((await w.route())["queueDatas"]) == SHORT_MAX + 1
            assert not table.answer_cache, "another one may be true by now"

    run(work)


def test_values_are_written_many_at_a_time_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"

    async def work() -> None:
        async with world(kv_config_path=str(path)) as w:
            ordered = {f"k{n}": f'"{n}' for n in range(2500)}
            w.server._kv.table = KvTable({"ORDER_TOPIC_CONFIG": ordered, "o": {"a": "b"}})
            put = {"namespace": "o", "key": "c", "value": "d"}
            assert (await w.ask(Request.PUT_KV_CONFIG, put)).code == 0
            answer = await w.ask(Request.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
            assert loads(answer.body) == {"table": w.server._kv.table.namespace("ORDER_TOPIC_CONFIG")}
            assert loads((await w.register("10.0.0.1:1")).body) == loads(answer.body)
            assert loads(path.read_bytes()) == w.server._kv.table.to_json()
            assert json.loads(path.read_bytes())["configTable"]["o"] == {"a": "b", "c": "d"}

    run(work)
