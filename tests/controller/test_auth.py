"""The promise of a Controller with peerCredentialsFile: what anybody else asks for changes nothing."""

from pathlib import Path

import pytest

from admin.handover import CannotHandOver, need_right
from controller.service import Controller
from model.codes import Request, Response
from model.config import ControllerConfig
from model.errors import ConfigError
from remoting.auth import PEER_CODES
from remoting.codec import Command
from runtime.os_env import OsEnv
from tests.fakes.controller.live import Broker, G, World, run
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.signed import READS, Signer, group_of_two, mutations
from tests.remoting.keys import KEY, WRONG, key_file


def test_what_strangers_ask_for_changes_nothing(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        _, two = await group_of_two(world)
        wanted = mutations(two)
        controller = world.leader()
        assert controller is not None
        acl = set(controller._access.answers)
        assert controller.codes - acl <= set(wanted) | READS, "a new code: is it open?"
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


def test_who_may_not_ask_for_an_election_hears_it_beforehand(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, _ = await group_of_two(world)
        controller, at = world.leader(), [world.leader_address()]
        assert controller is not None
        before = controller.status()["groups"], controller.status()["commitIndex"]
        for credentials in (None, WRONG):
            with pytest.raises(CannotHandOver, match="no group could be handed over: "):
                await need_right(OsEnv(), at, at, credentials)
        await need_right(OsEnv(), at, at, KEY)
        assert (controller.status()["groups"], controller.status()["commitIndex"]) == before
        assert not one.asked_to_step_down

    run(tmp_path, main, peerCredentialsFile=key_file(tmp_path))


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
