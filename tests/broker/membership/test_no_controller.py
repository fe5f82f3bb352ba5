"""A broker that can use no Controller says why: what each of them answered, or what ended the connection."""

from __future__ import annotations

import pytest

from broker.membership.controllers import Controllers
from model.codes import Request, Response
from model.config import BrokerConfig
from model.errors import Refused
from remoting.codec import Command
from remoting.service import Connection, RemotingClient, RemotingServer
from runtime.os_env import OsEnv
from tests.ports import free_port

DENIED = "User:brokers2 is not found; brokers2 is a key of peerCredentialsFile, and its clock is off"


async def test_the_reason_is_named_and_forgotten_when_it_passed() -> None:
    env, refusing = OsEnv(seed=1), True

    async def answer(_: Connection, request: Command) -> Command:
        if refusing:
            raise Refused(DENIED, Response.NO_PERMISSION)
        return request.reply(0, ext={"isLeader": "false"})

    server = RemotingServer(env, "controller", answer)
    port = await server.start("127.0.0.1", 0)
    silent = free_port()
    client = RemotingClient(env, "broker")
    config = BrokerConfig(controller_addr=f"127.0.0.1:{port};127.0.0.1:{silent}")
    controllers = Controllers(env, config, client)
    with pytest.raises(ConnectionError) as refused:
        await controllers.call(Command(Request.CONTROLLER_GET_REPLICA_INFO))
    text = str(refused.value)
    assert text.startswith("none of the Controllers can be used: ")
    assert f"127.0.0.1:{port}: it answered 16: {DENIED}" in text
    assert f"127.0.0.1:{silent}: " in text
    assert "call failed" in text.lower()

    refusing = False
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}: it knows no leader"):
        await controllers.call(Command(Request.CONTROLLER_GET_REPLICA_INFO))
    alone = Controllers(env, BrokerConfig(controller_addr=f"127.0.0.1:{port}"), client)
    with pytest.raises(ConnectionError, match=r"none of the Controllers \['127.0.0.1:\d+'\] knows a leader"):
        await alone.call(Command(Request.CONTROLLER_GET_REPLICA_INFO))
    await controllers.stop()
    await alone.stop()
    await client.close()
    await server.stop()
