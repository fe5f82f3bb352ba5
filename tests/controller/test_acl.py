"""The promise of a Controller with ACL: a user with a right operates it, brokers with their key take part."""

import json
from pathlib import Path

from model.codes import Request, Response
from remoting.auth import Credentials
from remoting.bodies import dumps
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.fakes.controller.live import G, World, run
from tests.fakes.controller.signed import READS, group_of_two, mutations
from tests.remoting.keys import KEY, KEY_JSON

ROOT = Credentials("rootroot", "root-secret")
ALICE = Credentials("alice", "alice-secret")


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


def test_a_right_to_one_cluster_elects_in_no_other(tmp_path: Path) -> None:
    """The cluster that an election names is nothing that it goes by: the broker's own counts."""

    async def main(world: World) -> None:
        await group_of_two(world)
        address = world.leader_address()
        root, alice = (RemotingClient(OsEnv(), "c", credentials=key) for key in (ROOT, ALICE))
        body = dumps({"password": ALICE.secret_key})
        asked = Command(Request.AUTH_CREATE_USER, {"username": "alice"}, body)
        assert (await root.call(address, asked)).code == 0

        async def allow(cluster: str) -> None:
            entry = {"resource": f"Cluster:{cluster}", "actions": ["Update"], "decision": "Allow"}
            acl = dumps({"subject": "User:alice", "policies": [{"entries": [entry]}]})
            asked = Command(Request.AUTH_CREATE_ACL, {"subject": "User:alice"}, acl)
            assert (await root.call(address, asked)).code == 0

        await allow("other")
        ext = {"brokerName": G, "clusterName": "other", "brokerId": "2", "designateElect": "true"}
        for code in (Request.CONTROLLER_ELECT_MASTER, Request.CLEAN_BROKER_DATA):
            answer = await alice.call(address, Command(code, ext))
            assert answer.code == Response.NO_PERMISSION
            assert "no permission to access Cluster:c from" in (answer.remark or "")
        await allow("c")
        # The master does not answer whether it hands over: two of the three seconds that a call has go by.
        assert (await alice.call(address, Command(Request.CONTROLLER_ELECT_MASTER, ext), 30)).code == 0
        await alice.close()
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
