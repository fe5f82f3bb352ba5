"""The promise of a Controller with peerCredentialsFile: what anybody else asks for changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from controller.service import Controller
from model.codes import Request, Response
from model.config import ControllerConfig
from model.errors import ConfigError
from remoting.auth import PEER_CODES, Credentials
from remoting.bodies import dumps
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.fakes.controller.live import Broker, G, World, run
from tests.fakes.controller.raft_sim import wait_for
from tests.remoting.keys import KEY, WRONG, key_file

READS = {
    Request.CONTROLLER_GET_METADATA_INFO,
    Request.CONTROLLER_GET_REPLICA_INFO,
    Request.CONTROLLER_GET_SYNC_STATE_DATA,
    Request.GET_CONTROLLER_CONFIG,
}


class Signer(Broker):
    """A broker that signs, and believes only what is signed."""

    def __init__(self, world: World, broker_id: int, credentials: Credentials | None = KEY) -> None:
        super().__init__(world, broker_id)
        self.client = RemotingClient(
            OsEnv(), f"broker.{broker_id}", handler=self.on_request, credentials=credentials
        )


async def group_of_two(world: World) -> tuple[Signer, Signer]:
    one, two = Signer(world, 1), Signer(world, 2)
    world.brokers += [one, two]
    for broker in (one, two):
        await broker.join()
    assert (await one.elect()).code == 0
    assert (await one.alter([1, 2], 1, 1)).code == 0
    return one, two


def mutations(two: Broker) -> dict[int, tuple[dict[str, Any], bytes]]:
    """Every request that changes something, each as it would have an effect on the group of two."""
    members = dumps({"syncStateSet": [1], "syncStateSetEpoch": 2})
    third = {"brokerId": 3, "brokerAddress": "127.0.0.1:20003"}
    return {
        Request.CONTROLLER_ALTER_SYNC_STATE_SET: ({"masterBrokerId": 1, "masterEpoch": 1}, members),
        Request.CONTROLLER_ELECT_MASTER: ({"brokerId": 2, "designateElect": "true"}, b""),
        Request.CONTROLLER_REGISTER_BROKER: ({**third, "brokerId": 2}, b""),
        Request.CONTROLLER_GET_NEXT_BROKER_ID: ({}, b""),
        Request.CONTROLLER_APPLY_BROKER_ID: ({"appliedBrokerId": 3, "registerCheckCode": "x"}, b""),
        Request.BROKER_HEARTBEAT: ({"brokerId": 4, "brokerAddr": "127.0.0.1:20004"}, b""),
        Request.UPDATE_CONTROLLER_CONFIG: ({}, b"enableElectUncleanMaster=true"),
        Request.CLEAN_BROKER_DATA: (
            {"brokerControllerIdsToClean": str(two.id), "isCleanLivingBroker": "true"},
            b"",
        ),
        Request.KEELMQ_TRANSFER_LEADERSHIP: ({}, b""),
        Request.KEELMQ_REPLACE_CONTROLLER: ({"controllerId": "n1", "address": "127.0.0.1:9"}, b""),
    }


def test_what_strangers_ask_for_changes_nothing(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        _, two = await group_of_two(world)
        wanted = mutations(two)
        controller = world.leader()
        assert controller is not None
        assert set(controller._asks) | set(wanted) | READS == set(wanted) | READS, "a new code: is it open?"
        assert set(wanted) <= PEER_CODES
        assert not READS & PEER_CODES

        def seen() -> object:
            status = controller.status()
            return status["groups"], status["commitIndex"], status["leader"], controller._config.to_mapping()

        before = seen()
        for credentials in (None, WRONG):
            stranger = Signer(world, 9, credentials)
            world.brokers.append(stranger)
            for code, (ext, body) in wanted.items():
                fields = {"brokerName": G, "clusterName": "c", **{k: str(v) for k, v in ext.items()}}
                answer = await stranger.client.call(world.leader_address(), Command(code, fields, body))
                assert answer.code == Response.NO_PERMISSION, Request(code).name
                assert "peerCredentialsFile" in (answer.remark or "")
                assert seen() == before, Request(code).name
            assert not controller._live.knows(G, 4)
            await stranger.die()

    run(tmp_path, main, peerCredentialsFile=key_file(tmp_path))


def test_what_anybody_may_read_stays_open(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await group_of_two(world)
        stranger = Broker(world, 9)
        world.brokers.append(stranger)
        for code in READS:
            answer = await stranger.call(code, [G])
            assert answer.code == 0, Request(code).name
            assert KEY.secret_key.encode() not in answer.body

    run(tmp_path, main, peerCredentialsFile=key_file(tmp_path))


def test_signed_requests_elect_hand_over_and_tell_everybody(tmp_path: Path) -> None:
    """The Controllers' own requests are signed as well: these brokers believe no others."""

    async def main(world: World) -> None:
        one, two = await group_of_two(world)
        one.steps_down = 0
        handed = await two.elect(designate=True)
        assert (handed.code, handed.ext["masterBrokerId"]) == (0, "2")
        assert one.asked_to_step_down, "a master believes a signed request to step down"
        await wait_for(lambda: one.notices and one.notices[-1].ext["masterBrokerId"] == "2")
        answer = await two.call(Request.UPDATE_CONTROLLER_CONFIG)
        assert answer.code == 0

    run(tmp_path, main, count=3, peerCredentialsFile=key_file(tmp_path))


@pytest.mark.parametrize("values", [{}, {"trustPeers": "false"}])
def test_beyond_loopback_it_wants_a_key_or_to_be_told_to_trust(values: dict[str, str]) -> None:
    own = {
        "bindAddress": "0.0.0.0",
        "controllerDLegerPeers": "n0-127.0.0.1:9878",
        "controllerDLegerSelfId": "n0",
        **values,
    }
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 is not loopback.*peerCredentialsFile.*trustPeers"):
        ControllerConfig.from_mapping(own)
    ControllerConfig.from_mapping({**own, "trustPeers": "true"})
    config = ControllerConfig.from_mapping({**own, "peerCredentialsFile": "/none/there.json"})
    with pytest.raises(ConfigError, match="peerCredentialsFile=/none"):
        Controller(OsEnv(), config)
