"""Clients that sign, at a broker with ACL 2.0."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from broker.service import Broker
from model.codes import Request, Response
from remoting import bodies
from remoting.auth import Credentials
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import RemotingClient

ROOT = Credentials("rootroot", "root-secret")
ALICE = Credentials("alice", "alice-secret")
ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
}
NO = Response.NO_PERMISSION


class Signed:
    """A client that signs with one key."""

    def __init__(self, broker: Broker, key: Credentials | None) -> None:
        self.remoting = RemotingClient(broker.env, "signed", credentials=key)
        self.address = f"127.0.0.1:{broker.port}"
        self._sent = 0

    async def __call__(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await self.remoting.call(self.address, Command(int(code), ext or {}, body), 10)

    async def send(self, topic: str) -> Command:
        self._sent += 1
        text = f"UNIQ_KEY\x01{self._sent:032X}\x02WAIT\x01true\x02"
        ext = SendHeader("pg", topic, 0, 1_700_000_000_000, properties=text).to_ext()
        return await self(Request.SEND_MESSAGE_V2, ext, b"hello")

    async def user(self, code: int, name: str, **fields: Any) -> Command:
        return await self(code, {"username": name}, bodies.dumps(fields))

    async def allow(self, name: str, *resources: str, actions: str = "Pub") -> Command:
        entries = [{"resource": r, "actions": actions.split(","), "decision": "Allow"} for r in resources]
        body = bodies.dumps({"subject": f"User:{name}", "policies": [{"entries": entries}]})
        return await self(Request.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)


@contextlib.asynccontextmanager
async def signing(broker: Broker, *keys: Credentials | None) -> AsyncIterator[list[Signed]]:
    clients = [Signed(broker, key) for key in keys]
    try:
        yield clients
    finally:
        for client in clients:
            await client.remoting.close()
