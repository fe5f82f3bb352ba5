"""The promise of the commands and the clients to a cluster with ACL: they sign as who they are told, and say
what the broker said to those it turns away."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.service import Broker
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.message import Message, Received
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.config import NamesrvConfig
from model.errors import MqError
from namesrv.service import NameServer
from remoting.auth import Credentials
from runtime.os_env import OsEnv
from tests import ROOT as ROOT_DIRECTORY
from tests.broker.helpers import config_for, eventually

ROOT = Credentials("rootroot", "root-secret")
USER = json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key})
INNER = json.dumps({"accessKey": "inner", "secretKey": "inner-secret"})
ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": USER,
    "innerClientAuthenticationCredentials": INNER,
}


@asynccontextmanager
async def cluster(path: Path) -> AsyncIterator[str]:
    """A NameServer and a broker, both with ACL; the NameServer's address."""
    env = OsEnv()
    names = NamesrvConfig.from_mapping({**ON, "listenPort": "0", "authConfigPath": str(path / "names")})
    namesrv = NameServer(env, names)
    await namesrv.start()
    broker = Broker(env, config_for(path / "store", namesrvAddr=namesrv.address, brokerId="0", **ON))
    await broker.start()
    try:
        await eventually(lambda: namesrv.status()["brokers"], "the broker is registered")
        yield namesrv.address
    finally:
        await broker.stop()
        await namesrv.stop()


async def command(*arguments: str, **environment: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", *arguments),
        cwd=ROOT_DIRECTORY,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_commands_sign_as_they_are_told(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv:
        key = {"KEELMQ_ACCESS_KEY": ROOT.access_key, "KEELMQ_SECRET_KEY": ROOT.secret_key}
        at = ("--namesrv", namesrv)
        code, said = await command("topic", "create", "T", *at)
        assert code != 0
        assert "username cannot be null" in said
        code, said = await command("topic", "create", "T", *at, **key)
        assert code == 0, said
        options = ("--access-key", ROOT.access_key, "--secret-key", ROOT.secret_key)
        code, said = await command("send", "T", "hello", *at, *options)
        assert code == 0, said
        code, said = await command("send", "T", "hello", *at, "--access-key", "alice", "--secret-key", "x")
        assert code != 0
        assert "User:alice is not found" in said
        code, said = await command("send", "T", "hello", *at, "--access-key", "alice")
        assert code != 0
        assert "--secret-key" in said


async def test_producer_and_consumer_sign(tmp_path: Path) -> None:
    got: list[Received] = []

    async def listener(messages: list[Received]) -> None:
        got.extend(messages)

    async with cluster(tmp_path) as namesrv:
        code, said = await command(
            *("topic", "create", "T", "--namesrv", namesrv),
            KEELMQ_ACCESS_KEY=ROOT.access_key,
            KEELMQ_SECRET_KEY=ROOT.secret_key,
        )
        assert code == 0, said
        env = OsEnv()
        async with Producer(env, "pg", namesrv, SendOptions(credentials=ROOT)) as producer:
            for number in range(3):
                await producer.send(Message(topic="T", body=b"%d" % number))
        with pytest.raises(MqError, match="username cannot be null"):
            async with Producer(env, "pg", namesrv, SendOptions(timeout_s=2)) as producer:
                await producer.send(Message(topic="T", body=b"no"))
        consumer = PushConsumer(
            env,
            "cg",
            namesrv,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(from_first=True, credentials=ROOT),
        )
        async with consumer:
            await eventually(lambda: len(got) == 3, "all messages")
