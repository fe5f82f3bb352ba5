"""The promise of a broker with ACL: signed clients do what their rights say, on the fast way where it is one;
others are told the original's words, and the rules outlive a failover."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from model.codes import Request, Response
from model.errors import ConfigError
from model.message import message_id
from remoting import bodies
from remoting.acl import admin, plain_files
from remoting.acl.admin import PlainRequests
from remoting.acl.plain_files import version_of
from remoting.auth import Credentials
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import Connection, RemotingClient
from runtime import turns
from runtime.env import Disk
from runtime.os_env import OsEnv
from store.files.record import decode
from tests.broker.acl.signed import ALICE, NO, ON, ROOT, signing
from tests.broker.helpers import client_of, config_for, elected, eventually, heartbeat, pair, running, topic
from tests.remoting.keys import KEY, key_file


async def test_a_users_life(tmp_path: Path) -> None:
    async with (
        running(tmp_path, **ON) as broker,
        signing(broker, ROOT, ALICE, None) as (root, alice, stranger),
    ):
        assert (await root(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        denied = await alice.send("T")
        assert (denied.code, denied.remark) == (NO, "User:alice is not found.")
        assert (await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)).code == 0
        denied = await alice.send("T")
        text = "User:alice has no permission to access Topic:T from 127.0.0.1, no matched policies."
        assert (denied.code, denied.remark) == (NO, text)
        assert (await root.allow("alice", "Topic:T")).code == 0
        assert (await alice.send("T")).code == 0
        denied = await stranger.send("T")
        assert (denied.code, denied.remark) == (NO, "username cannot be null.")
        assert (await root.user(Request.AUTH_UPDATE_USER, "alice", userStatus="disable")).code == 0
        assert (await alice.send("T")).remark == "User:alice is disabled."
        assert (
            await root.user(Request.AUTH_UPDATE_USER, "alice", userStatus="enable", password="new")
        ).code == 0
        assert (await alice.send("T")).remark == "check signature failed."
        assert (await root(Request.AUTH_DELETE_USER, {"username": "alice"})).code == 0
        assert (await alice.send("T")).remark == "User:alice is not found."
        assert broker.server.guard.status()["audit"]["denied"] == {"SEND_MESSAGE_V2": 6}
        assert broker.server.guard.status()["audit"]["acts"]["AUTH_UPDATE_USER"] == 2


async def test_users_and_policies_outlive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as broker, signing(broker, ROOT) as (root,):
        await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        await root.allow("alice", "Topic:T*")
        await root(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
    async with running(tmp_path, **ON) as broker, signing(broker, ALICE, ROOT) as (alice, root):
        assert (await alice.send("T")).code == 0
        listed = json.loads((await root(Request.AUTH_LIST_USER)).body)
        assert [user["username"] for user in listed] == ["alice", "rootroot"]
        acls = json.loads((await root(Request.AUTH_LIST_ACL)).body)
        assert acls == [
            {
                "subject": "User:alice",
                "policies": [
                    {
                        "policyType": "Custom",
                        "entries": [{"resource": "Topic:T*", "actions": ["Pub"], "decision": "Allow"}],
                    }
                ],
            }
        ]


async def test_signed_sends_are_fast_and_denied_ones_do_not_pass_with_them(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as broker, signing(broker, ROOT, ALICE) as (root, alice):
        for name in ("T", "U"):
            await root(Request.UPDATE_AND_CREATE_TOPIC, topic(name))
        await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        await root.allow("alice", "Topic:T")
        before = broker.context.stats.put_fast_total
        for _ in range(20):
            assert (await alice.send("T")).code == 0
        assert broker.context.stats.put_fast_total == before + 20
        for _ in range(3):
            assert (await alice.send("U")).code == NO
        assert broker.context.stats.put_total == 20
        await root.user(Request.AUTH_UPDATE_USER, "alice", userStatus="disable")
        assert (await alice.send("T")).code == NO
        assert broker.context.stats.put_total == 20


async def test_a_code_of_the_white_list_opens_no_other_one_on_the_fast_way(tmp_path: Path) -> None:
    keys = {**ON, "authorizationWhitelist": "10"}
    async with running(tmp_path, **keys) as broker, signing(broker, ROOT, ALICE) as (root, alice):
        await root(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        ext = SendHeader("pg", "T", 0, 1, properties=f"UNIQ_KEY\x01{'A' * 32}\x02").to_ext(full_names=True)
        before = broker.context.stats.put_fast_total
        for _ in range(2):
            assert (await alice(Request.SEND_MESSAGE, ext, b"hello")).code == 0
        assert broker.context.stats.put_fast_total == before + 2
        assert (await alice.send("T")).code == NO


async def test_only_a_super_user_sees_passwords(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as broker, signing(broker, ROOT, ALICE) as (root, alice):
        await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        await root.allow("alice", "Cluster:*", actions="Get")
        assert ALICE.secret_key in (await root(Request.AUTH_GET_USER, {"username": "alice"})).body.decode()
        for code in (Request.AUTH_LIST_USER, Request.AUTH_GET_USER):
            answer = await alice(code, {"username": "rootroot"})
            assert answer.code == 0
            assert b"rootroot" in answer.body
            assert b"secret" not in answer.body
        config = (await alice(Request.GET_BROKER_CONFIG)).body.decode()
        assert "initAuthenticationUser=***" in config
        assert "root-secret" not in config


async def test_a_key_of_operators_shows_no_password(tmp_path: Path) -> None:
    keys = {**ON, "peerCredentialsFile": key_file(tmp_path)}
    async with running(tmp_path, **keys) as broker, signing(broker, KEY, ROOT) as (operator, root):
        await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        for code in (Request.AUTH_LIST_USER, Request.AUTH_GET_USER):
            answer = await operator(code, {"username": "alice"})
            assert answer.code == 0
            assert "alice" in answer.body.decode()
            assert ALICE.secret_key not in answer.body.decode()


async def test_no_log_line_has_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with running(tmp_path, **ON) as broker, signing(broker, ROOT, ALICE) as (root, alice):
            await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
            await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
            await root(Request.AUTH_CREATE_USER, {"username": "bob"}, b'{"password":"bob-secret"')
            await alice.send("T")
    assert "-secret" not in caplog.text


async def test_rules_are_at_the_slave_when_they_are_answered_and_after_a_failover(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    keys = {**ON, "peerCredentialsFile": key_file(tmp_path / "keys"), "slaveSyncMetadataPeriod": "3600000"}
    async with (
        pair(tmp_path, **keys) as (one, two),
        signing(one, ROOT) as (root,),
        signing(two, ROOT, ALICE) as (
            at_slave,
            alice,
        ),
    ):
        await eventually(lambda: two.topics.version == one.topics.version, "the first copy")
        assert (await root(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert (await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)).code == 0
        assert two.context.trust.directory.users["alice"].password == ALICE.secret_key
        # mqadmin asks every broker of a cluster, in any order
        assert (await at_slave.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)).code == 0
        again = await at_slave.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        assert again.remark == "The user is existed"
        assert (await at_slave.user(Request.AUTH_CREATE_USER, "bob", password="bob-secret")).code == 0
        assert (await root.user(Request.AUTH_CREATE_USER, "bob", password="bob-secret")).code == 0
        again = await root.user(Request.AUTH_CREATE_USER, "bob", password="bob-secret")
        assert again.remark == "The user is existed"
        assert "bob" in one.context.trust.directory.users
        assert (await at_slave.allow("alice", "Topic:T")).code == 0
        assert one.context.trust.directory.acls.keys() == two.context.trust.directory.acls.keys() == {"alice"}
        denied = await alice.user(Request.AUTH_CREATE_USER, "eve", password="x")
        assert denied.code == NO
        # Deleted, made again, deleted by way of the slave: what was done a moment ago does not stand for it.
        mallory = {"username": "mallory"}
        for way in (root, at_slave):
            assert (await root.user(Request.AUTH_CREATE_USER, "mallory", password="p")).code == 0
            assert (await way(Request.AUTH_DELETE_USER, mallory)).code == 0
            assert "mallory" not in one.context.trust.directory.users
        for password, way in (("p1", root), ("p2", root), ("p1", at_slave)):
            assert (await way.user(Request.AUTH_UPDATE_USER, "bob", password=password)).code == 0
            assert one.context.trust.directory.users["bob"].password == password
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        assert (await alice.send("T")).code == 0
        assert (await alice.send("TBW102")).code == NO


async def test_with_a_key_of_peers_a_stranger_makes_no_user(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    async with (
        running(tmp_path / "s", peerCredentialsFile=key_file(tmp_path)) as broker,
        client_of(broker) as client,
    ):
        for code in (Request.AUTH_CREATE_USER, Request.AUTH_LIST_USER):
            answer = await client.call(code, {"username": "eve"}, b'{"password":"x","userType":"Super"}')
            assert answer.code == NO
        assert not broker.context.trust.directory.users


def test_a_group_whose_brokers_could_not_talk_does_not_start(tmp_path: Path) -> None:
    for acl in ({"aclEnable": "true"}, {"authenticationEnabled": "true"}):
        for of_a_group in (
            {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:1"},
            {"brokerRole": "SLAVE", "brokerId": "1"},
        ):
            with pytest.raises(ConfigError, match="turn each other away"):
                config_for(tmp_path, **acl, **of_a_group)
            inner = json.dumps({"accessKey": "inner", "secretKey": "inner-secret"})
            config_for(tmp_path, **acl, **of_a_group, innerClientAuthenticationCredentials=inner)


PLAIN = """
accounts:
- {accessKey: alice-1, secretKey: alice-secret, topicPerms: ["T=PUB"]}
- {accessKey: rootroot, secretKey: root-secret, admin: true}
"""


async def test_acl_1(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(PLAIN)
    on = {"aclEnable": "true", "aclHome": str(tmp_path / "conf")}
    key = Credentials("alice-1", "alice-secret")
    async with (
        running(tmp_path / "store", **on) as broker,
        signing(broker, ROOT, key, None) as (root, alice, stranger),
    ):
        assert (await root(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        before = broker.context.stats.put_fast_total
        assert (await alice.send("T")).code == 0
        assert broker.context.stats.put_fast_total == before + 1
        refused = await stranger.send("T")
        text = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
        assert (refused.code, refused.remark) == (Response.SYSTEM_ERROR, text)
        assert "No default permission for topic:U" in ((await alice.send("U")).remark or "")
        account = {"accessKey": "bob-key", "secretKey": "bob-secret", "topicPerms": "T=PUB,U=DENY"}
        assert (await alice(Request.UPDATE_AND_CREATE_ACL_CONFIG, account)).code == Response.SYSTEM_ERROR
        assert (await root(Request.UPDATE_AND_CREATE_ACL_CONFIG, account)).code == 0
        short = await root(Request.UPDATE_AND_CREATE_ACL_CONFIG, {**account, "accessKey": "b"})
        assert short.code == 209
        async with signing(broker, Credentials("bob-key", "bob-secret")) as (bob,):
            assert (await bob.send("T")).code == 0
            version = await root(Request.GET_BROKER_CLUSTER_ACL_INFO)
            assert json.loads(version.ext["version"])["counter"] == 1
            assert (await root(Request.DELETE_ACL_CONFIG, {"accessKey": "bob-key"})).code == 0
            assert "No acl config for bob-key" in ((await bob.send("T")).remark or "")
        assert (await root(Request.DELETE_ACL_CONFIG, {"accessKey": "bob-key"})).code == 210
        white = {"globalWhiteAddrs": "127.0.0.1"}
        assert (await root(Request.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, white)).code == 0
        assert (await stranger.send("T")).code == 0
        # A white list lets send; only an admin acts.
        shown = json.loads((await root(Request.GET_BROKER_CLUSTER_ACL_CONFIG)).body)
        assert [account["accessKey"] for account in shown["plainAccessConfigs"]] == ["alice-1", "rootroot"]


@pytest.mark.parametrize("code", [Request.GET_CONSUMER_RUNNING_INFO, Request.CONSUME_MESSAGE_DIRECTLY])
async def test_a_consumer_that_is_asked_gets_no_proof_of_who_asks(tmp_path: Path, code: int) -> None:
    """With somebody's signature it could ask for anything else in that one's name."""
    seen: list[Command] = []

    async def answer(connection: Connection, request: Command) -> Command:
        seen.append(request)
        return request.reply(body=b"{}")

    async with running(tmp_path, **ON) as broker, signing(broker, ROOT) as (root,):
        consumer = RemotingClient(broker.env, "consumer", handler=answer)
        beat = ROOT.signed(Command(Request.HEART_BEAT, {}, heartbeat("c", "G")))
        try:
            assert (await consumer.call(root.address, beat, 10)).code == 0
            await root.send("T")
            await broker.store.caught_up()
            msg_id = message_id(broker.context.store_host, broker.store.log.min_offset)
            asked = {"consumerGroup": "G", "clientId": "c", "topic": "T", "msgId": msg_id}
            told = {"SecurityToken": "token", "kqTime": "1", "kqNonce": "n"}
            assert (await root(code, {**asked, **told})).code == 0
        finally:
            await consumer.close()
    [passed] = [request for request in seen if request.code == code]
    if code == Request.CONSUME_MESSAGE_DIRECTLY:
        asked |= {"brokerName": "broker-t", "topicSysFlag": "0", "groupSysFlag": "0"}
        assert decode(passed.body).body == b"hello"
    assert passed.ext == asked


async def test_requests_about_accounts_work_on_their_files_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 accounts take a second to read and write; each request counts, one after the other."""
    threads: set[int] = set()
    read = plain_files._read

    def noted(disk: Disk, path: str) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return read(disk, path)

    def made(version: Any) -> Any:
        threads.add(threading.get_ident())
        return version_of(version)

    (tmp_path / "plain_acl.yml").write_text("accounts:\n- accessKey: rootroot\n  secretKey: root-secret\n")
    files = plain_files.PlainFiles(OsEnv(seed=1), str(tmp_path))
    files.load()
    answers = PlainRequests(files, {}).handlers()
    monkeypatch.setattr(plain_files, "_read", noted)
    monkeypatch.setattr(admin, "version_of", made)  # what a 52 tells
    ext = {"secretKey": "some-secret", "admin": "false"}
    asked = [Command(50, {**ext, "accessKey": f"account{n}"}) for n in range(8)]
    await asyncio.gather(*(answers[50](request) for request in asked))
    for code in (51, 52, 53, 54):
        await answers[code](Command(code, {"accessKey": "account0", "globalWhiteAddrs": "10.0.0.1"}))
    assert len(files.acl.accounts) == 8, "root and seven of eight"
    assert threads
    assert threading.get_ident() not in threads


async def test_a_list_of_many_accounts_is_written_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = "".join(f"- accessKey: account{n}\n  secretKey: some-secret\n" for n in range(50))
    (tmp_path / "plain_acl.yml").write_text(f"accounts:\n{accounts}")
    files = plain_files.PlainFiles(OsEnv(seed=1), str(tmp_path))
    monkeypatch.setattr(turns, "SLICE_MS", 0.0)
    turned = 0

    async def turning() -> None:
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(turning())
    answer = await PlainRequests(files, {}).handlers()[54](Command(54))
    other.cancel()
    assert turned > 50, "the loop went round between the accounts"
    told = bodies.loads(answer.body)
    assert [account["accessKey"] for account in told["plainAccessConfigs"]] == [
        f"account{n}" for n in range(50)
    ]
