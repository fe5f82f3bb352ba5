"""The promise of controller.service: brokers get a living master at once, and only the leader decides."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controller import service
from controller.elections.asking import SOON_S
from controller.service import Controller
from model.codes import Request, Response
from model.errors import ConfigError
from remoting.bodies import loads
from remoting.codec import Command
from remoting.service import Connection, RemotingClient, RemotingServer
from runtime.os_env import OsEnv
from tests.fakes.controller.live import WAITS_FOR_ALL, Broker, G, World, run
from tests.fakes.controller.raft_sim import wait_for


def test_a_group_is_born(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two = await world.brokers_up(2)
        answer = await two.register()
        assert answer.ext == {
            "clusterName": "c",
            "brokerName": G,
            "masterBrokerId": "1",
            "masterAddress": one.address,
            "masterHaAddress": one.ha_address,
            "masterEpoch": "1",
            "syncStateSetEpoch": "2",
        }
        assert loads(answer.body) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
        info = await two.call(Request.CONTROLLER_GET_REPLICA_INFO)
        assert info.ext == {
            "masterBrokerId": "1",
            "masterAddress": one.address,
            "masterHaAddress": one.ha_address,
            "masterEpoch": "1",
        }
        for broker_id, there in (("2", two.address), ("9", "")):
            told = await two.call(Request.CONTROLLER_GET_REPLICA_INFO, brokerId=broker_id)
            assert told.ext["registeredAddress"] == there
        still = await two.elect()
        assert still.code == Response.CONTROLLER_MASTER_STILL_EXIST
        assert still.ext["masterHaAddress"] == one.ha_address
        assert loads(still.body)["brokerMemberGroup"]["brokerAddrs"] == {"1": one.address, "2": two.address}

    run(tmp_path, main)


def test_a_broker_with_the_identity_of_a_living_one_is_refused_and_takes_nothing_from_it(
    tmp_path: Path,
) -> None:
    """B28: somebody copied a store, brokerIdentity included, and started a broker on it."""

    async def main(world: World) -> None:
        _, two = await world.brokers_up(2)
        double = Broker(world, 2)
        double.address = "127.0.0.1:29999"
        world.brokers.append(double)
        refused = await double.register()
        assert refused.code == Response.CONTROLLER_BROKER_ID_INVALID
        assert two.address in (refused.remark or "")
        assert "127.0.0.1:29999" in (refused.remark or "")
        answer = await double.client.call(world.leader_address(), double.heartbeat())
        assert answer.code == Response.CONTROLLER_BROKER_ID_INVALID
        assert world.group()["brokers"]["2"]["address"] == two.address
        # Its session was never the broker's: the end of it is the end of nobody.
        await double.die()
        assert (await two.register()).code == 0
        assert world.named("broker_lost") == world.named("master_lost") == []
        # A broker that moved is welcome: its old process is gone.
        await two.die()
        moved = Broker(world, 2)
        moved.address = "127.0.0.1:29998"
        world.brokers.append(moved)
        for _ in range(100):
            if (await moved.register()).code == 0:
                break
            await asyncio.sleep(0.05)
        assert world.group()["brokers"]["2"]["address"] == moved.address

    run(tmp_path, main)


def test_a_master_that_hangs_up_is_replaced_at_once_and_everybody_is_told(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3, timeout_ms=60_000, says=WAITS_FOR_ALL)
        two.max_offset, three.max_offset = 100, 1 << 40
        await two.be_heard()
        await three.be_heard()
        await one.die()
        await wait_for(lambda: three.notices and three.notices[-1].ext["masterBrokerId"] == "3")
        await wait_for(lambda: two.notices and two.notices[-1].ext["masterBrokerId"] == "3")
        notice = two.notices[-1]
        assert notice.is_oneway
        assert notice.ext == {
            "masterBrokerId": "3",
            "masterAddress": three.address,
            "masterHaAddress": three.ha_address,
            "masterEpoch": "2",
            "syncStateSetEpoch": "3",
        }
        assert loads(notice.body) == {"syncStateSet": [3], "syncStateSetEpoch": 3}
        lost, (first, second) = world.named("master_lost"), world.named("master_elected")
        assert [(e["group"], e["broker_id"]) for e in lost] == [(G, 1)]
        assert (first["broker_id"], first["epoch"]) == (1, 1)
        assert (second["group"], second["broker_id"], second["epoch"]) == (G, 3, 2)
        assert lost[0]["at_ms"] <= second["at_ms"]

    run(tmp_path, main)


def test_candidates_are_asked_how_far_they_are_now_and_heartbeats_stand_in_for_the_silent(
    tmp_path: Path,
) -> None:
    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3, timeout_ms=60_000, says=WAITS_FOR_ALL)
        two.max_offset, three.max_offset = 2**31 - 1, 100
        three.end_now = 2**32 + 5  # more than 2 GiB ahead: as ints their difference would be negative
        await two.be_heard()
        await three.be_heard()
        two.freeze()
        three.freeze()
        begun = asyncio.get_running_loop().time()
        await one.die()
        await wait_for(lambda: world.group()["master"] == 3)
        assert asyncio.get_running_loop().time() - begun >= SOON_S, "two was given its time"

    run(tmp_path, main)


def test_a_candidate_that_answers_nonsense_counts_with_its_heartbeat(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3, timeout_ms=60_000)
        two.max_offset, two.end_now = 200, -1
        three.max_offset, three.end_now = 100, 2**64
        await two.be_heard()
        await three.be_heard()
        await one.die()
        await wait_for(lambda: world.group()["master"] == 2)

    run(tmp_path, main)


def test_a_broker_that_tells_no_ha_address_hears_of_an_election_on_its_own_port(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        (one,) = await world.brokers_up(1, timeout_ms=60_000)
        real = Broker(world, 2)
        real.ha_address = ""
        heard: list[Command] = []

        async def on_request(_connection: Connection, request: Command) -> Command | None:
            heard.append(request)
            return None

        server = RemotingServer(OsEnv(), "real", on_request)
        real.address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        world.brokers.append(real)
        await real.join()
        assert (await one.alter([1, 2], 1, 1)).code == 0
        await one.die()
        await wait_for(lambda: heard and heard[-1].code == Request.NOTIFY_BROKER_ROLE_CHANGED)
        await server.stop()
        # First it is asked how far its log is; that it does not say so holds nothing up.
        assert {command.code for command in heard[:-1]} == {Request.GET_BROKER_EPOCH_CACHE}
        assert heard[-1].ext["masterBrokerId"] == "2"
        assert real.notices == [], "on the other connection it would be an unknown request to it"

    run(tmp_path, main)


def test_a_master_that_falls_silent_is_replaced_after_its_timeout(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, _, _ = await world.brokers_up(3, timeout_ms=600)
        one.freeze()
        await wait_for(lambda: world.group()["master"] in (2, 3))
        assert world.group()["epoch"] == 2
        assert len(world.named("master_lost")) == 1

    run(tmp_path, main)


def test_the_close_of_an_old_connection_elects_nobody(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, _, _ = await world.brokers_up(3)
        old, one.client = one.client, RemotingClient(OsEnv(), "again", handler=one.on_request)
        await one.be_heard()
        await old.close()
        await asyncio.sleep(0.5)
        assert (world.group()["master"], world.group()["epoch"]) == (1, 1)

    run(tmp_path, main)


def test_only_members_of_the_set_follow_and_a_master_comes_back(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3)
        assert (await one.alter([1], 1, 2)).code == 0
        await one.die()
        await wait_for(lambda: world.group()["master"] is None)
        assert world.group()["epoch"] == 2
        assert (await two.elect()).code == Response.CONTROLLER_ELECT_MASTER_FAILED
        await asyncio.sleep(0.5)
        assert world.group()["epoch"] == 2
        again = Broker(world, 1)
        world.brokers = [again, two, three]
        assert "masterBrokerId" not in (await again.register()).ext
        await again.beat_once()
        again.task = asyncio.ensure_future(again.beat())
        await wait_for(lambda: world.group()["master"] == 1)
        assert world.group()["epoch"] == 3

    run(tmp_path, main)


def test_a_handover_to_a_designated_member(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        _, two, three = await world.brokers_up(3)
        answer = await two.elect(designate=True)
        assert (answer.code, answer.ext["masterBrokerId"]) == (0, "2")
        await wait_for(lambda: three.notices and three.notices[-1].ext["masterBrokerId"] == "2")

    run(tmp_path, main)


def test_a_living_master_is_asked_to_step_down_and_may_say_no(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3)
        one.steps_down = Response.CONTROLLER_ELECT_MASTER_FAILED
        refused = await two.elect(designate=True)
        assert refused.code == Response.CONTROLLER_ELECT_MASTER_FAILED
        assert "behind" in (refused.remark or "")
        assert world.group()["master"] == 1
        asked = one.asked_to_step_down[0].ext
        assert (asked["brokerId"], asked["masterEpoch"]) == ("2", "1")
        one.steps_down = Response.SUCCESS
        assert (await two.elect(designate=True)).ext["masterBrokerId"] == "2"
        # A real broker does not know the request: it is deposed as it is. Three is no member any more.
        two.steps_down = Response.REQUEST_CODE_NOT_SUPPORTED
        assert (await two.alter([1, 2], 2, 3)).code == Response.SUCCESS
        assert (await three.elect(designate=True)).code == Response.CONTROLLER_ELECT_MASTER_FAILED
        assert two.asked_to_step_down == []
        assert (await one.elect(designate=True)).ext["masterBrokerId"] == "1"
        assert len(two.asked_to_step_down) == 1

    run(tmp_path, main)


def test_a_group_has_only_so_many_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided about a group looks at all of them in one go."""
    monkeypatch.setattr(service, "GROUP_MAX", 2)

    async def main(world: World) -> None:
        one, _ = await world.brokers_up(2)
        of = Request.CONTROLLER_APPLY_BROKER_ID
        refused = await one.call(of, appliedBrokerId=3, registerCheckCode="third:1;1")
        assert (refused.code, refused.remark) == (
            Response.SYSTEM_BUSY,
            "group broker-a has 2 brokers: no more",
        )
        assert sorted(world.group()["brokers"]) == ["1", "2"]
        again = await one.call(of, appliedBrokerId=1, registerCheckCode="other:1;1")
        assert again.code == Response.CONTROLLER_BROKER_ID_INVALID, "one that is there is looked at as ever"

    run(tmp_path, main)


def test_the_codes_of_refusals(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3)
        call, codes = one.call, Response

        async def code(of: int, body: Any = None, **ext: Any) -> int:
            return (await call(of, body, **ext)).code

        assert (await one.alter([1, 2, 3], 1, 2)).code == codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        assert (await two.alter([2], 1, 2)).code == codes.CONTROLLER_INVALID_MASTER
        assert (await one.alter([1], 7, 2)).code == codes.CONTROLLER_FENCED_MASTER_EPOCH
        assert (await one.alter([1], 1, 1)).code == codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        assert (await one.alter([1, 9], 1, 2)).code == codes.CONTROLLER_INVALID_REPLICAS
        await three.die()
        await wait_for(lambda: not world.group()["brokers"]["3"]["alive"])
        altered = await one.alter([2, 1], 1, 2)
        assert (altered.code, altered.ext) == (0, {"newSyncStateSetEpoch": "3"}), "the dead one leaves"
        assert (await one.alter([1, 2, 3], 1, 3)).code == codes.CONTROLLER_BROKER_NOT_ALIVE
        for body in ({"syncStateSet": "1", "syncStateSetEpoch": 3}, {"syncStateSet": [1]}, [1], None):
            answer = await code(
                Request.CONTROLLER_ALTER_SYNC_STATE_SET, body, masterBrokerId=1, masterEpoch=1
            )
            assert answer == codes.CONTROLLER_INVALID_REQUEST
        of = Request.CONTROLLER_GET_REPLICA_INFO
        assert await code(of, brokerName="x") == codes.CONTROLLER_BROKER_METADATA_NOT_EXIST
        of = Request.CONTROLLER_REGISTER_BROKER
        answer = await code(of, brokerName="x", brokerId=1, brokerAddress="a:1")
        assert answer == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        of = Request.CONTROLLER_ELECT_MASTER
        assert await code(of, brokerName="x", brokerId=1) == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        of = Request.CONTROLLER_APPLY_BROKER_ID
        answer = await code(of, appliedBrokerId=1, registerCheckCode="other:1;1")
        assert answer == codes.CONTROLLER_BROKER_ID_INVALID
        of = Request.CLEAN_BROKER_DATA
        assert await code(of) == codes.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        answer = await code(of, brokerControllerIdsToClean="1;2")
        assert answer == codes.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        assert await code(of, brokerControllerIdsToClean="x") == codes.CONTROLLER_INVALID_REQUEST
        assert await code(of, brokerControllerIdsToClean="3") == 0
        assert sorted(world.group()["brokers"]) == ["1", "2"]
        assert await code(Request.SEND_MESSAGE) == codes.REQUEST_CODE_NOT_SUPPORTED
        assert await code(Request.CONTROLLER_GET_REPLICA_INFO, brokerName="") == codes.SYSTEM_ERROR

    run(tmp_path, main)


def test_heartbeats_without_an_id_are_refused_and_others_are_answered(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        broker = Broker(world, 1)
        world.brokers = [broker]
        address = world.leader_address()
        nameless = await broker.client.call(address, broker.heartbeat(brokerId=None))
        assert nameless.code == Response.CONTROLLER_INVALID_REQUEST
        assert (await broker.client.call(address, broker.heartbeat(epoch="x"))).code == Response.SYSTEM_ERROR
        assert (await broker.client.call(address, broker.heartbeat())).code == 0

    run(tmp_path, main)


def test_sync_state_data_lists_who_is_in_sync_and_alive(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, _, three = await world.brokers_up(3)
        await one.alter([1, 2], 1, 2)
        await three.die()
        await wait_for(lambda: not world.group()["brokers"]["3"]["alive"])
        answer = await one.call(Request.CONTROLLER_GET_SYNC_STATE_DATA, [G, "x"])
        table = loads(answer.body)["replicasInfoTable"]
        assert list(table) == [G]
        assert [row["brokerId"] for row in table[G]["inSyncReplicas"]] == [1, 2]
        assert [(row["brokerId"], row["alive"]) for row in table[G]["notInSyncReplicas"]] == [(3, False)]
        assert table[G]["masterAddress"] == one.address
        assert (await one.call(Request.CONTROLLER_GET_SYNC_STATE_DATA, {"a": 1})).code == 2005

    run(tmp_path, main)


def test_harmless_keys_can_be_changed_and_others_cannot(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        broker = Broker(world, 1)
        world.brokers = [broker]

        async def update(text: bytes) -> Command:
            request = Command(Request.UPDATE_CONTROLLER_CONFIG, body=text)
            return await broker.client.call(world.leader_address(), request)

        assert (await update(b"enableElectUncleanMaster=true\n")).code == 0
        assert (await update(b"controllerDLegerPeers=n9-a:1\n")).code == Response.NO_PERMISSION
        assert (await update(b"controllerDLegerSelfId=n0\ncontrollerThreadPoolNums=9\n")).code == 0, (
            "nothing new"
        )
        for name in (b"configBlackList", b"configStorePath", b"rocketmqHome"):
            refused = await update(b"enableElectUncleanMaster=false\n" + name + b"=\n")
            assert (refused.code, refused.remark) == (16, "Can not update config in black list.")
        assert (await update(b"enableElectUncleanMaster=perhaps\n")).code == Response.INVALID_PARAMETER
        assert (await update(b"enableElectUncleanMastr=true\n")).code == Response.INVALID_PARAMETER
        assert (await update(b"\xff\n")).code == Response.INVALID_PARAMETER
        answer = await broker.client.call(world.leader_address(), Command(Request.GET_CONTROLLER_CONFIG))
        assert b"enableElectUncleanMaster=true\n" in answer.body
        assert b"controllerDLegerSelfId=n0\n" in answer.body

    run(tmp_path, main)


def knows_leader(controller: Controller) -> bool:
    return controller.status()["leader"] is not None


def test_every_controller_names_the_leader_and_others_refuse(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        broker = Broker(world, 1)
        world.brokers = [broker]
        leader = world.leader_address()
        for name, address in world.addresses.items():
            controller = world.running[name]
            await wait_for(partial(knows_leader, controller))
            answer = await broker.client.call(address, Command(Request.CONTROLLER_GET_METADATA_INFO))
            assert answer.code == 0
            assert world.addresses[answer.ext["controllerLeaderId"]] == leader
            assert answer.ext["controllerLeaderAddress"] == leader
            assert answer.ext["isLeader"] == str(address == leader).lower()
            assert answer.ext["group"] == "keelmq-controllers"
            assert answer.ext["peers"] == "".join(f"{n}:{a};" for n, a in world.addresses.items())
            refused = await broker.client.call(
                address, Command(Request.CONTROLLER_GET_NEXT_BROKER_ID, {"clusterName": "c", "brokerName": G})
            )
            assert refused.code == (0 if address == leader else Response.CONTROLLER_NOT_LEADER)

    run(tmp_path, main, count=3)


def test_the_loss_of_the_controllers_leader_alone_elects_no_other_master(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.brokers_up(3)
        leader = world.leader()
        assert leader is not None
        name = leader.status()["id"]
        await world.kill(name)
        await wait_for(lambda: world.leader() is not None)
        await asyncio.sleep(1.0)
        assert (world.group()["master"], world.group()["epoch"]) == (1, 1)
        await world.start(name)
        await asyncio.sleep(0.5)
        assert (world.group()["master"], world.group()["syncStateSet"]) == (1, [1, 2, 3])

    run(tmp_path, main, count=3)


def test_the_loss_of_leader_and_master_together_is_repaired(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3)
        leader = world.leader()
        assert leader is not None
        await asyncio.gather(world.kill(leader.status()["id"]), one.die())
        await wait_for(lambda: world.leader() is not None and world.group()["master"] in (2, 3))
        assert world.group()["epoch"] == 2
        await wait_for(lambda: two.notices and three.notices)

    run(tmp_path, main, count=3)


def test_a_controller_says_what_is_wrong_with_its_configuration(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    short = tmp_path / "short"
    short.write_bytes(b"secret\n")
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        world.make("n0", raftSecretFile=str(short))
    with pytest.raises(ConfigError, match="raftSecretFile=/none"):
        world.make("n0", raftSecretFile="/none")
    with pytest.raises(ConfigError, match="raftSecretFile is needed"):
        world.make("n0", controllerDLegerPeers="n0-192.0.2.1:9878", raftPeers="")


def test_health_names_a_missing_majority(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        leader = world.leader()
        assert leader is not None
        assert leader.health() is None
        shown = leader.status()["raft"]
        assert set(shown["peers"]) == set(world.running) - {leader.status()["id"]}
        assert shown["lagEntries"] == 0
        assert shown["journalBytes"] > 0
        for name in [name for name, c in world.running.items() if c is not leader]:
            await world.kill(name)
        await wait_for(lambda: leader.health() is not None)
        assert "no leader among the Controllers" in (leader.health() or "")

    run(tmp_path, main, count=3)


def test_leadership_is_moved_on_request(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        broker = Broker(world, 1)
        world.brokers = [broker]
        names = sorted(world.addresses)
        for transfer_target in [*names, *names]:
            leader = world.leader_address()
            if world.addresses[transfer_target] == leader:
                continue
            await wait_for(lambda: all(c.health() is None for c in world.running.values()))
            ask = Command(Request.KEELMQ_TRANSFER_LEADERSHIP, {"toControllerId": transfer_target})
            answer = await broker.client.call(leader, ask)
            assert (answer.code, answer.ext["controllerLeaderId"]) == (0, transfer_target)
            assert world.running[transfer_target].status()["isLeader"]
            assert (await broker.client.call(leader, ask)).code == Response.CONTROLLER_NOT_LEADER
        nobody = Command(Request.KEELMQ_TRANSFER_LEADERSHIP, {"toControllerId": "n9"})
        answer = await broker.client.call(world.leader_address(), nobody)
        assert answer.code != 0
        assert "n9 is not another member" in (answer.remark or "")
        epochs = [c.raft.term for c in world.running.values()]
        assert max(epochs) > 3

    run(tmp_path, main, count=3)


def test_a_leader_alone_keeps_its_leadership(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        broker = Broker(world, 1)
        world.brokers = [broker]
        ask = Command(Request.KEELMQ_TRANSFER_LEADERSHIP, {})
        leader = world.leader()
        assert leader is not None
        term = leader.raft.term
        answer = await broker.client.call(world.leader_address(), ask)
        assert answer.code != Response.SUCCESS
        assert "did not take over" in (answer.remark or "")
        assert (world.leader(), leader.raft.term) == (leader, term)

    run(tmp_path, main)
