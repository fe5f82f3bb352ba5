"""The promise of a NameServer with ACL: routes for those who may have them, and rules of its own."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from model.codes import Request, Response
from model.errors import ConfigError
from remoting.auth import Credentials
from remoting.bodies import dumps
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.env import write_file
from tests.namesrv.world import registration, world

ROOT = Credentials("rootroot", "root-secret")
ALICE = Credentials("alice", "alice-secret")
ON = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
}


async def test_routes_need_a_right_and_rules_are_kept_in_its_file(tmp_path: Path) -> None:
    keys = {**ON, "auth_config_path": str(tmp_path)}
    async with world(**keys) as w:
        root, alice = (RemotingClient(w.env, "signed", credentials=key) for key in (ROOT, ALICE))
        plain = RemotingClient(w.env, "plain")

        async def ask(who: RemotingClient, code: int, body: bytes = b"", **ext: str) -> Command:
            return await who.call(w.server.address, Command(code, ext, body))

        assert (await root.call(w.server.address, registration("10.0.0.1:1"))).code == 0
        route = Request.GET_ROUTEINFO_BY_TOPIC
        assert (await ask(plain, route, topic="T")).remark == "username cannot be null."
        assert (await alice.call(w.server.address, registration("10.0.0.9:1"))).code == Response.NO_PERMISSION
        assert (
            await ask(root, Request.AUTH_CREATE_USER, dumps({"password": ALICE.secret_key}), username="alice")
        ).code == 0
        text = "User:alice has no permission to access Topic:T from 127.0.0.1, no matched policies."
        assert (await ask(alice, route, topic="T")).remark == text
        entry = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
        acl = dumps({"subject": "User:alice", "policies": [{"entries": [entry]}]})
        assert (await ask(root, Request.AUTH_CREATE_ACL, acl, subject="User:alice")).code == 0
        assert (await ask(alice, route, topic="T")).code in (0, Response.TOPIC_NOT_EXIST)
        for code in (Request.UPDATE_NAMESRV_CONFIG, Request.GET_NAMESRV_CONFIG):
            assert (
                await ask(alice, code, b"orderMessageEnable=true", key="x")
            ).code == Response.NO_PERMISSION
        config = (await ask(root, Request.GET_NAMESRV_CONFIG)).body.decode()
        assert "root-secret" not in config
        for client in (root, alice, plain):
            await client.close()
    file = tmp_path / "auth.json"
    assert set(json.loads(file.read_text())["users"]) == {"alice", "rootroot"}
    async with world(**keys) as w:
        alice = RemotingClient(w.env, "signed", credentials=ALICE)
        asked = Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert (await alice.call(w.server.address, asked)).code in (0, Response.TOPIC_NOT_EXIST)
        changed = json.loads(file.read_text())
        changed["users"]["alice"]["userStatus"] = "disable"
        file.write_text(json.dumps(changed, indent=1))
        async with asyncio.timeout(10):
            while (await alice.call(w.server.address, asked)).remark != "User:alice is disabled.":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        file.write_text("{")
        await asyncio.sleep(1.2)
        assert (await alice.call(w.server.address, asked)).remark == "User:alice is disabled."
        await alice.close()


async def test_the_first_user_is_made_once_and_never_again_with_its_old_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {**ON, "auth_config_path": str(tmp_path)}
    boss = Credentials("boss", "boss-secret")
    async with world(**keys) as w:
        assert "act: its configuration: made the super user rootroot (initAuthenticationUser)" in caplog.text
        body = dumps({"password": boss.secret_key, "userType": "Super"})
        for who, code, content, name in (
            (ROOT, Request.AUTH_CREATE_USER, body, "boss"),
            (boss, Request.AUTH_DELETE_USER, b"", "rootroot"),
        ):
            client = RemotingClient(w.env, "signed", credentials=who)
            asked = Command(code, {"username": name}, content)
            assert (await client.call(w.server.address, asked)).code == 0
            await client.close()
    caplog.clear()
    inner = json.dumps({"accessKey": "inner", "secretKey": "inner-secret-of-servers"})
    async with world(**keys, inner_client_credentials=inner):
        assert set(json.loads((tmp_path / "auth.json").read_text())["users"]) == {"boss", "inner"}
        assert "initAuthenticationUser names rootroot, who is not there: not made" in caplog.text
        assert "made the super user inner (innerClientAuthenticationCredentials)" in caplog.text


async def test_users_made_together_are_all_in_the_file_when_they_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    busy = 0

    def slow(*given: Any) -> None:
        nonlocal busy
        busy += 1
        at_once.append(busy)
        time.sleep(0.02)  # others would come in between
        write_file(*given)
        busy -= 1

    monkeypatch.setattr("remoting.acl.control.write_file", slow)
    file = tmp_path / "auth.json"
    names = [f"user-{n}" for n in range(6)]
    async with world(**ON, auth_config_path=str(tmp_path)) as w:
        root = RemotingClient(w.env, "signed", credentials=ROOT)

        async def make(name: str) -> None:
            body = dumps({"password": "p" * 20})
            asked = Command(Request.AUTH_CREATE_USER, {"username": name}, body)
            assert (await root.call(w.server.address, asked)).code == 0
            assert name in json.loads(file.read_text())["users"]

        await asyncio.gather(*map(make, names))
        await root.close()
    assert set(json.loads(file.read_text())["users"]) == {"rootroot", *names}
    assert set(at_once) == {1}, "one writes at a time"


async def test_a_right_to_one_cluster_registers_and_removes_no_broker_of_another(tmp_path: Path) -> None:
    async with world(**ON, auth_config_path=str(tmp_path)) as w:
        root, alice = (RemotingClient(w.env, "signed", credentials=key) for key in (ROOT, ALICE))

        async def ask(who: RemotingClient, command: Command) -> Command:
            return await who.call(w.server.address, command)

        body = dumps({"password": ALICE.secret_key})
        assert (await ask(root, Command(Request.AUTH_CREATE_USER, {"username": "alice"}, body))).code == 0
        entry = {"resource": "Cluster:other", "actions": ["Update"], "decision": "Allow"}
        acl = dumps({"subject": "User:alice", "policies": [{"entries": [entry]}]})
        assert (await ask(root, Command(Request.AUTH_CREATE_ACL, {"subject": "User:alice"}, acl))).code == 0
        assert (await ask(root, registration("10.0.0.1:1"))).code == 0
        before = (await ask(root, Command(Request.GET_BROKER_CLUSTER_INFO))).body

        as_broker_a = registration("10.0.0.9:1", clusterName="other")
        at_its_address = registration("10.0.0.1:1", clusterName="other", brokerName="broker-x")
        away = {**at_its_address.ext, "brokerId": "0"}
        text = "User:alice has no permission to access Cluster:DefaultCluster from 127.0.0.1"
        for command in (as_broker_a, at_its_address, Command(Request.UNREGISTER_BROKER, away)):
            answer = await ask(alice, command)
            assert answer.code == Response.NO_PERMISSION
            assert (answer.remark or "").startswith(text)
        assert (await ask(root, Command(Request.GET_BROKER_CLUSTER_INFO))).body == before
        own = registration("10.0.0.9:1", clusterName="other", brokerName="broker-x")
        assert (await ask(alice, own)).code == 0
        assert (await ask(alice, own)).code == 0, "its own again"
        for client in (root, alice):
            await client.close()


async def test_a_topic_of_all_clusters_is_changed_by_who_may_change_each_of_them(tmp_path: Path) -> None:
    """A deletion that names no cluster is one everywhere; what is announced by hand names groups, of any
    cluster, in its body."""
    async with world(**ON, auth_config_path=str(tmp_path)) as w:
        root, alice = (RemotingClient(w.env, "signed", credentials=key) for key in (ROOT, ALICE))

        async def ask(who: RemotingClient, code: int, body: bytes = b"", **ext: str) -> Command:
            return await who.call(w.server.address, Command(code, ext, body))

        async def allow(*clusters: str) -> None:
            rule = {"actions": ["Update"], "decision": "Allow"}
            entries = [{"resource": f"Cluster:{cluster}", **rule} for cluster in clusters]
            acl = dumps({"subject": "User:alice", "policies": [{"entries": entries}]})
            code = Request.AUTH_CREATE_ACL if clusters == ("DefaultCluster",) else Request.AUTH_UPDATE_ACL
            assert (await ask(root, code, acl, subject="User:alice")).code == 0

        body = dumps({"password": ALICE.secret_key})
        assert (await ask(root, Request.AUTH_CREATE_USER, body, username="alice")).code == 0
        await allow("DefaultCluster")
        here = registration("10.0.0.1:1")
        there = registration("10.0.0.2:1", clusterName="other", brokerName="broker-o")
        for command in (here, there):
            assert (await root.call(w.server.address, command)).code == 0

        delete, announce = Request.DELETE_TOPIC_IN_NAMESRV, Request.REGISTER_TOPIC_IN_NAMESRV
        queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
        named = [dumps({"queueDatas": [{"brokerName": n, **queues}]}) for n in ("broker-a", "broker-o")]
        for code, body, ext in (
            (delete, b"", {"topic": "T"}),
            (delete, b"", {"topic": "T", "clusterName": ""}),
            (announce, named[1], {"topic": "New"}),
        ):
            answer = await ask(alice, code, body, **ext)
            assert answer.code == Response.NO_PERMISSION, ext
            denied = "Cluster: " if ext.get("clusterName") == "" else "Cluster:other "
            assert f"no permission to access {denied}" in (answer.remark or "")
        route = json.loads((await ask(root, Request.GET_ROUTEINFO_BY_TOPIC, topic="T")).body)
        assert [one["brokerName"] for one in route["queueDatas"]] == ["broker-a", "broker-o"]
        assert (await ask(alice, announce, named[0], topic="New")).code == 0, "its own cluster's"
        assert (await ask(alice, delete, topic="New")).code == 0, "a topic of its own cluster alone"
        assert (await ask(alice, announce, b"{", topic="New")).code == Response.SYSTEM_ERROR
        await allow("DefaultCluster", "other")
        assert (await ask(alice, announce, named[1], topic="New")).code == 0
        assert (await ask(alice, delete, topic="T")).code == 0
        answer = await ask(root, Request.GET_ROUTEINFO_BY_TOPIC, topic="T")
        assert answer.code == Response.TOPIC_NOT_EXIST
        for client in (root, alice):
            await client.close()


async def test_acl_1_and_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: rootroot, secretKey: root-secret, admin: true}\n"
    )
    async with world(acl_enable=True, acl_home=str(tmp_path)) as w:
        client = RemotingClient(w.env, "signed", credentials=ROOT)
        plain = RemotingClient(w.env, "plain")
        asked = Command(Request.GET_BROKER_CLUSTER_INFO)
        assert (await client.call(w.server.address, asked)).code == 0
        assert "No accessKey is configured" in ((await plain.call(w.server.address, asked)).remark or "")
        await client.close()
        await plain.close()
    (tmp_path / "plain_acl.yml").write_text("accounts: [")
    with pytest.raises(ConfigError, match="not YAML"):
        async with world(acl_enable=True, acl_home=str(tmp_path)):
            pass
    with pytest.raises(ConfigError, match="authConfigPath"):
        async with world(**ON):
            pass
