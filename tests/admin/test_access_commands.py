"""The promise of ``keelmq user`` and ``keelmq policy``: what they say is so at every server they name, and no
password is an argument or shown."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from admin import exits
from admin.commands.access.servers import _advised
from broker.service import Broker
from cli.main import command
from model.config import NamesrvConfig
from namesrv.service import NameServer
from remoting.auth import Credentials
from runtime.os_env import OsEnv
from tests.broker.helpers import config_for, eventually

ROOT = Credentials("rootroot", "root-secret")
ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "inner-secret"}),
}


@asynccontextmanager
async def servers(path: Path) -> AsyncIterator[tuple[NameServer, Broker]]:
    env = OsEnv()
    names = NamesrvConfig.from_mapping({**ON, "listenPort": "0", "authConfigPath": str(path / "names")})
    namesrv = NameServer(env, names)
    await namesrv.start()
    broker = Broker(env, config_for(path / "store", namesrvAddr=namesrv.address, brokerId="0", **ON))
    await broker.start()
    try:
        await eventually(lambda: namesrv.status()["brokers"], "the broker is registered")
        yield namesrv, broker
    finally:
        await broker.stop()
        await namesrv.stop()


def test_servers_that_are_named_need_no_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exits.run(command(), ["user", "list", "--at", "127.0.0.1:1"]) == exits.UNFINISHED
    assert capsys.readouterr().err.startswith("keelmq: 127.0.0.1:1: ")


class Shell:
    """Runs commands as ``rootroot``, in a thread: they have a loop of their own."""

    def __init__(self, namesrv: NameServer, capsys: pytest.CaptureFixture[str]) -> None:
        key = ("--access-key", ROOT.access_key, "--secret-key", ROOT.secret_key)
        self._site = ("--namesrv", namesrv.address, *key)
        self._capsys = capsys

    async def __call__(self, *words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(exits.run, command(), (*words, *self._site))
        out, err = self._capsys.readouterr()
        return code, out + err

    async def json(self, *words: str) -> Any:
        code, said = await self(*words, "--json")
        assert code == 0, said
        return json.loads(said)


async def test_users_and_policies_are_made_changed_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "shop.password"
    secret.write_text("shop-secret\nnot of it\n")
    async with servers(tmp_path) as (namesrv, broker):
        run = Shell(namesrv, capsys)
        every = ("--nameservers",)
        secret.chmod(0o644)
        code, said = await run("user", "create", "shop", "--password-file", str(secret), *every)
        assert (code, said.count("shop is made")) == (0, 2)
        assert f"keelmq: {secret} can be read by others than its owner: chmod 600 {secret}" in said
        assert broker.acl.directory.users["shop"].password == "shop-secret"
        code, said = await run("user", "create", "shop", "--password-file", str(secret))
        assert (code, "The user is existed" in said) == (3, True)
        listed = await run.json("user", "list", *every)
        assert [(u["username"], u["userType"], u["userStatus"], u["at"]) for u in listed] == [
            ("inner", "Super", "enable", "all"),
            ("rootroot", "Super", "enable", "all"),
            ("shop", "Normal", "enable", "all"),
        ]
        assert "secret" not in json.dumps(listed)

        pub = ("--resource", "topic:orders", "--action", "pub", "--source", "10.0.0.0/8")
        code, said = await run("policy", "create", "shop", *pub, "--resource", "Group:*")
        assert (code, "shop may Pub Topic:orders, Group:*" in said) == (0, True)
        code, said = await run("policy", "create", "shop", *pub)
        assert (code, "keelmq policy update" in said) == (3, True)
        code, said = await run("policy", "update", "shop", "--resource", "Topic:none", "--action", "Sub")
        assert (code, "keelmq policy create" in said) == (3, True)
        code, said = await run("policy", "update", "shop", *pub[:2], "--action", "Sub", "--deny")
        assert code == 0, said
        assert [
            (e["resource"], e["actions"], e["sourceIps"], e["decision"])
            for e in await run.json("policy", "list", "--user", "shop")
        ] == [("Group:*", ["Pub"], ["10.0.0.0/8"], "Allow"), ("Topic:orders", ["Sub"], [], "Deny")]
        code, said = await run("policy", "list")
        assert (code, "Topic:orders" in said) == (0, True)
        code, said = await run("policy", "create", "rootroot", *pub, "--deny")
        assert (code, "rootroot is a super user, whom no policy holds" in said) == (3, True)
        assert (await run("policy", "delete", "shop", "--resource", "Group:*", "--yes"))[0] == 0
        assert len(await run.json("policy", "list", "--user", "shop")) == 1
        assert (await run("policy", "delete", "shop", "--yes"))[0] == 0
        assert await run.json("policy", "list", "--user", "shop") == []

        assert (await run("user", "update", "shop", "--disable", "--super"))[0] == 0
        listed = await run.json("user", "list", "--filter", "shop", *every)
        assert sorted((u["userType"], u["userStatus"], u["at"]) for u in listed) == [
            ("Normal", "enable", namesrv.address),
            ("Super", "disable", broker.context.config.address),
        ]
        assert (await run("user", "delete", "shop", "--yes", "--at", broker.context.config.address))[0] == 0
        assert set(broker.acl.directory.users) == {"inner", "rootroot"}
        code, said = await run("user", "delete", "shop", "--yes", *every)
        assert (code, said.count("there is no user shop"), said.count("is deleted")) == (3, 1, 1), said
        code, said = await run("user", "delete", "root", "--yes", "--even-last")
        assert (code, "there is no user root" in said) == (3, True), "a part of a name is none"
        code, said = await run("user", "list", "--at", f"{broker.context.config.address};127.0.0.1:1")
        assert (code, "rootroot" in said, "127.0.0.1:1: " in said) == (3, True, True)

        assert (await run("user", "delete", "inner", "--yes"))[0] == 0
        for change in (("delete", "rootroot", "--yes"), ("update", "rootroot", "--normal")):
            code, said = await run("user", *change)
            assert (code, "rootroot is the last super user" in said) == (3, True), said
        assert set(broker.acl.directory.users) == {"rootroot"}
        assert (await run("user", "delete", "rootroot", "--yes", "--even-last"))[0] == 0
        assert set(broker.acl.directory.users) == set()
        code, said = await run("user", "list")
        assert (code, "status" in said) == (3, False), said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("user create shop", "nobody is there to type a password"),
        ("user create shop --password-file /nowhere", "/nowhere: No such file"),
        ("user update shop", "nothing to change"),
        ("user list --at h:1 --nameservers", "leave out --nameservers"),
        ("user delete shop", "add --yes"),
        ("policy create shop --resource orders --action Pub", "is no resource"),
        ("policy create shop --resource Topic:a --action Pub --source here", "expected an address"),
        ("policy create shop --resource Topic:a --action Any", "'Any' is not one of"),
        ("policy create shop --resource Topic:a*b --action Pub", "would never match"),
        ("policy create shop --resource Cluster:* --action Pub", "no request asks Pub of a cluster"),
        ("policy delete shop --default", "--default goes with --resource"),
    ],
)
def test_wrong_uses_are_named_before_anything_is_asked(
    words: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert exits.run(command(), (*words.split(), "--namesrv", "127.0.0.1:1")) == exits.USAGE
    assert says in capsys.readouterr().err


def test_a_server_without_users_is_said_to_have_none() -> None:
    assert "authenticationEnabled is off there" in _advised(
        "An system error occurred, please try again later."
    )
    assert _advised("no route") == "no route"
