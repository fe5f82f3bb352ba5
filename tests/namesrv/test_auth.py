"""The promise of a NameServer with peerCredentialsFile: strangers move no route and no setting."""

from pathlib import Path

import pytest

from model.codes import Request, Response
from model.config import NamesrvConfig
from model.errors import ConfigError
from namesrv.service import NameServer
from remoting.auth import PEER_CODES
from remoting.bodies import dumps
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.namesrv.world import registration, world
from tests.remoting.keys import KEY, WRONG, key_file
from tests.remoting.support import run

ADDRESS = "10.0.0.1:10911"
READS = {
    *(Request.GET_KV_CONFIG, Request.GET_KVLIST_BY_NAMESPACE, Request.GET_ROUTEINFO_BY_TOPIC),
    *(Request.GET_BROKER_CLUSTER_INFO, Request.GET_BROKER_MEMBER_GROUP, Request.GET_NAMESRV_CONFIG),
    *(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Request.GET_TOPICS_BY_CLUSTER),
    *(Request.GET_SYSTEM_TOPIC_LIST_FROM_NS, Request.GET_UNIT_TOPIC_LIST),
    *(Request.GET_HAS_UNIT_SUB_TOPIC_LIST, Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
}
NAME = {"brokerName": "broker-a"}
BROKER = {**NAME, "brokerAddr": ADDRESS, "clusterName": "DefaultCluster", "brokerId": "0"}
QUEUES = dumps({"queueDatas": [{**NAME, "readQueueNums": 1, "writeQueueNums": 1}]})
CHANGES = [
    registration("10.0.0.9:10911", 1),
    Command(Request.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "w"}),
    Command(Request.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}),
    Command(Request.WIPE_WRITE_PERM_OF_BROKER, NAME),
    Command(Request.ADD_WRITE_PERM_OF_BROKER, NAME),
    Command(Request.REGISTER_TOPIC_IN_NAMESRV, {"topic": "N"}, QUEUES),
    Command(Request.DELETE_TOPIC_IN_NAMESRV, {"topic": "N"}),
    Command(Request.UPDATE_NAMESRV_CONFIG, {}, b"supportActingMaster=true"),
    Command(Request.UNREGISTER_BROKER, BROKER),
]
BEATS = [Command(Request.BROKER_HEARTBEAT, BROKER), Command(Request.QUERY_DATA_VERSION, BROKER)]


def seen(server: NameServer) -> object:
    table = server._table
    routes = {topic: table.route(topic) for topic in table.topics() if topic is not None}
    return dumps([routes, table.cluster_info(), server._kv.table.to_json()]), server._config.to_mapping()


def test_strangers_change_nothing_and_signed_requests_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def work() -> None:
        async with world(peer_credentials_file=key_file(tmp_path)) as w:
            handled = {Request(code) for code in w.server._answers}
            changing = {Request(command.code) for command in (*CHANGES, *BEATS)}
            assert handled - PEER_CODES == READS, "a new code: is it open to strangers?"
            assert handled - READS == changing
            peer = RemotingClient(w.env, "peer", credentials=KEY)
            assert (await peer.call(w.server.address, registration(ADDRESS))).code == 0
            assert (await peer.call(w.server.address, CHANGES[1])).code == 0
            beats: list[str] = []
            monkeypatch.setattr(w.server._table, "heartbeat", lambda address, *_: beats.append(address))
            before = seen(w.server)
            for credentials in (None, WRONG):
                stranger = RemotingClient(w.env, "stranger", credentials=credentials)
                for command in (*CHANGES, *BEATS):
                    answer = await stranger.call(w.server.address, command)
                    assert answer.code == Response.NO_PERMISSION, Request(command.code).name
                    assert seen(w.server) == before, Request(command.code).name
                assert beats == []
                assert (await w.route()) is not None, "clients ask as before"
                await stranger.close()
            await peer.call(w.server.address, Command(Request.DELETE_KV_CONFIG, CHANGES[1].ext))
            for command in CHANGES:
                before = seen(w.server)
                assert (await peer.call(w.server.address, command)).code == 0, Request(command.code).name
                assert seen(w.server) != before, Request(command.code).name
            for command in BEATS:
                assert (await peer.call(w.server.address, command)).code == 0
            assert beats == [ADDRESS, ADDRESS]
            await peer.close()

    run(work)


def test_beyond_loopback_it_wants_a_key_or_to_be_told_to_trust() -> None:
    with pytest.raises(ConfigError, match=r"not loopback.*peerCredentialsFile.*trustPeers"):
        NamesrvConfig.from_mapping({"bindAddress": "0.0.0.0"})
    NamesrvConfig.from_mapping({"bindAddress": "0.0.0.0", "trustPeers": "true"})
    config = NamesrvConfig.from_mapping({"bindAddress": "0.0.0.0", "peerCredentialsFile": "/none"})
    with pytest.raises(ConfigError, match="peerCredentialsFile=/none"):
        NameServer(OsEnv(), config)
