"""The promise of a Controller with ACL: a user with a right operates it, brokers with their key take part."""

import json
from pathlib import Path

from model.codes import Request, Response
from remoting.auth import Credentials
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.fakes.controller.live import G, World, run
from tests.fakes.controller.signed import READS, group_of_two, mutations
from tests.remoting.keys import KEY, KEY_JSON

ROOT = Credentials("rootroot", "root-secret")


def test_a_super_user_operates_and_a_stranger_reads_nothing(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        _, two = await group_of_two(world)
        address = world.leader_address()
        stranger, root = RemotingClient(OsEnv(), "s"), RemotingClient(OsEnv(), "r", credentials=ROOT)
        for code in (*READS, *mutations(two)):
            answer = await stranger.call(address, Command(code, {"brokerName": G}))
            assert answer.code == Response.NO_PERMISSION, Request(code).name
            assert answer.remark == "username cannot be null."
        config = await root.call(address, Command(Request.GET_CONTROLLER_CONFIG))
        assert config.code == 0
        assert KEY.secret_key not in config.body.decode()
        change = Command(Request.UPDATE_CONTROLLER_CONFIG, {}, b"electMasterMaxRetryCount=7")
        assert (await root.call(address, change)).code == 0
        leader = world.leader()
        assert leader is not None
        assert leader.status()["ports"]["audit"]["acts"] == {"UPDATE_CONTROLLER_CONFIG": 1}
        await stranger.close()
        await root.close()

    run(
        tmp_path,
        main,
        authenticationEnabled="true",
        authorizationEnabled="true",
        authConfigPath=str(tmp_path),
        innerClientAuthenticationCredentials=KEY_JSON,
        initAuthenticationUser=json.dumps({"username": "rootroot", "password": "root-secret"}),
    )
