"""The promises of client.admin: it reads what real servers answer, in either dialect."""

import pytest

from client.admin import AdminClient
from client.finding import Finder
from client.message import Message, NameServersSilent, NoMaster
from client.sending.producer import Producer
from model.codes import Request, Response
from model.errors import Refused
from remoting import bodies
from remoting.codec import Command
from remoting.service import Connection, RemotingServer
from runtime.env import Env
from tests.fakes.client import cluster, run, stop


def test_cluster_info_is_read_with_bare_integer_keys() -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=2)
        async with AdminClient(env, nameserver.address) as admin:
            info = await admin.cluster_info()
        assert info.clusters == {"C": ["broker-a", "broker-b"]}
        assert info.brokers == {b.name: {0: b.address} for b in brokers}
        await stop(nameserver, *brokers)

    run(work)


def test_a_topic_is_created_on_every_master() -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=2)
        async with AdminClient(env, ["127.0.0.1:1", nameserver.address]) as admin:
            await admin.create_topic("New", 3)
            for wrong, queues in (("bad topic", 1), ("New", 0)):
                with pytest.raises(ValueError, match="topic"):
                    await admin.create_topic(wrong, queues)
            nameserver.masters["broker-b"] = {}
            with pytest.raises(NoMaster):
                await admin.create_topic("New", 3)
            nameserver.masters.clear()
            with pytest.raises(NoMaster, match="know no broker"):
                await admin.create_topic("New", 3)
        for broker in brokers:
            made = [r for r in broker.requests if r.code == Request.UPDATE_AND_CREATE_TOPIC]
            assert {r.ext["writeQueueNums"] for r in made} == {"3"}
        await stop(nameserver, *brokers)

    run(work)


def test_a_topic_is_deleted_on_every_master_or_nowhere() -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=2)
        masters = dict(nameserver.masters)
        slave = False

        async def delete(command: Command) -> Command | None:
            assert command.ext["keelmqMasterOnly"] == "true"
            if slave:
                raise Refused("this broker is not the master", Response.SYSTEM_ERROR)
            return command.reply()

        for broker in brokers:
            broker.before = delete
        async with AdminClient(env, nameserver.address) as admin:
            for known in ({"broker-a": masters["broker-a"], "broker-b": {2: brokers[1].address}}, {}):
                nameserver.masters = known
                with pytest.raises(NoMaster):
                    await admin.delete_topic("T")
            assert not brokers[0].requests
            nameserver.masters = masters
            slave = True
            with pytest.raises(Refused, match="not the master"):
                await admin.delete_topic("T")
            assert Request.DELETE_TOPIC_IN_NAMESRV not in nameserver.asked
            slave = False
            await admin.delete_topic("T")
            assert nameserver.asked.count(Request.DELETE_TOPIC_IN_NAMESRV) == 1
            assert [len(broker.requests) for broker in brokers] == [2, 1]
        await stop(nameserver, *brokers)

    run(work)


def test_no_nameserver_at_all_is_said_so() -> None:
    async def work(env: Env) -> None:
        async with AdminClient(env, ["127.0.0.1:1"]) as admin:
            with pytest.raises(NameServersSilent, match=r"127\.0\.0\.1:1"):
                await admin.cluster_info()

    run(work)


def test_the_controllers_view_is_asked_of_the_leader() -> None:
    async def work(env: Env) -> None:
        table = {
            "broker-a": {
                "masterBrokerId": 2,
                "masterAddress": "h:2",
                "masterEpoch": 5,
                "syncStateSetEpoch": 9,
                "inSyncReplicas": [{"brokerId": 2, "brokerAddress": "h:2", "alive": True}],
                "notInSyncReplicas": [{"brokerId": 1, "brokerAddress": "h:1", "alive": False}],
            }
        }
        leader = ""

        async def handle(connection: Connection, command: Command) -> Command | None:
            if command.code == Request.CONTROLLER_GET_METADATA_INFO:
                return command.reply(ext={"controllerLeaderAddress": leader, "isLeader": "true"})
            if command.code == Request.CONTROLLER_GET_SYNC_STATE_DATA:
                assert bodies.loads(command.body) == ["broker-a"]
                return command.reply(body=bodies.dumps({"replicasInfoTable": table}))
            if command.code == Request.CONTROLLER_ELECT_MASTER:
                assert command.ext["designateElect"] == "true"
                if command.ext["brokerId"] != "2":
                    raise Refused("not in sync", Response.CONTROLLER_ELECT_MASTER_FAILED)
                return command.reply(ext={"masterBrokerId": "2", "masterEpoch": "6"})
            return None

        server = RemotingServer(env, "controller", handle)
        leader = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        async with AdminClient(env, ["127.0.0.1:1"]) as admin:
            controllers = ["127.0.0.1:1", leader]
            state = (await admin.sync_state(controllers, ["broker-a"]))["broker-a"]
            assert (state.master, state.epoch, state.in_sync, state.not_in_sync) == (
                2,
                5,
                {2: "h:2"},
                {1: "h:1"},
            )
            assert state.alive == {2: True, 1: False}
            assert await admin.elect(controllers, "C", "broker-a", 2) == (2, 6)
            with pytest.raises(Refused, match="not in sync"):
                await admin.elect(controllers, "C", "broker-a", 1)
            # Down, mistyped, or a port that is none of a Controller: the operator has to see which.
            with pytest.raises(Refused, match=r"no Controller is leader: cannot connect to 127\.0\.0\.1:1"):
                await admin.sync_state(["127.0.0.1:1"], ["broker-a"])
        await server.stop()

    run(work)


def test_a_message_is_found_by_an_id_of_its_programs_own_and_by_one_in_other_letters() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)

        async def query(command: Command) -> Command | None:
            if command.code != Request.QUERY_MESSAGE:
                return None
            found = [one.record for one in broker.log if one.properties["UNIQ_KEY"] == command.ext["key"]]
            if not found:
                raise Refused("none", Response.QUERY_NOT_FOUND)
            return command.reply(body=b"".join(found))

        broker.before = query
        async with Producer(env, "pg", nameserver.address) as producer:
            own = {"UNIQ_KEY": "order-4711"}
            await producer.send(Message(topic="T", body=b"own", properties=own))
            usual = (await producer.send(Message(topic="T", body=b"usual"))).msg_id
        async with AdminClient(env, nameserver.address) as admin:
            finder = Finder(admin)
            for msg_id, body in (("order-4711", b"own"), (usual, b"usual"), (usual.lower(), b"usual")):
                assert [one.body for one in (await finder.by_id("T", msg_id)).messages] == [body]
            assert not (await finder.by_id("T", "ORDER-4711")).messages
        await stop(nameserver, broker)

    run(work)
