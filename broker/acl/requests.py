"""Which broker of a group takes changes of users and policies, and when are they safe?

The master, as it takes changes of topics; it answers when every broker that could be elected has them. A
slave hands a change on to its master with the signature of who asked (mqadmin ``-c`` asks every broker of a
cluster, in any order). The files of ACL 1.0 are each broker's own, as RocketMQ's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from broker.context import BrokerContext
from model.codes import Request, Response
from model.config import BrokerConfig
from model.errors import PeerError, Refused, Unknown
from remoting import bodies
from remoting.acl.admin import Answer
from remoting.acl.control import AccessControl
from remoting.codec import Command
from remoting.keys import Signer
from remoting.service import Connection, Guard, Handler, RemotingClient
from runtime.env import Env

CHANGES: Final = frozenset(
    {
        Request.AUTH_CREATE_USER,
        Request.AUTH_UPDATE_USER,
        Request.AUTH_DELETE_USER,
        Request.AUTH_CREATE_ACL,
        Request.AUTH_UPDATE_ACL,
        Request.AUTH_DELETE_ACL,
    }
)
TABLE: Final = "auth"
COPIED_WITHIN_S: Final = 1.0
LOOK_S: Final = 0.02


def access_of(env: Env, config: BrokerConfig, guard: Guard, credentials: Signer | None) -> AccessControl:
    where = {
        "brokerName": config.broker_name,
        "brokerAddr": config.address,
        "clusterName": config.cluster_name,
    }
    return AccessControl(env, config, guard, credentials, where)


class AclProcessor:
    """Answers 3001 to 3010, and with ACL 1.0 50 to 54."""

    def __init__(self, context: BrokerContext, control: AccessControl, client: RemotingClient) -> None:
        self._context = context
        self._control = control
        self._client = client
        control.requests.keep = partial(context.copies.wait_for_copies, TABLE)

    def handlers(self) -> dict[int, Handler]:
        return {code: partial(self._handle, answer) for code, answer in self._control.answers.items()}

    async def _handle(self, answer: Answer, connection: Connection, request: Command) -> Command:
        if request.code not in CHANGES:
            return await answer(request)
        role_state = self._context.role_state
        if role_state.role == "slave" and role_state.master_address is not None:
            return await self._hand_on(role_state.master_address, request)
        refused = self._context.copies.refuse()
        if refused is not None:
            raise refused
        return await answer(request)

    async def _hand_on(self, master: str, request: Command) -> Command:
        try:
            asked = replace(request, ext=dict(request.ext))
            answer = await self._client.call(master, asked, self._context.config.slave_timeout_ms / 1000 + 1)
        except (OSError, Unknown) as error:
            raise Refused(f"this broker is a slave, and its master: {error}", Response.SYSTEM_ERROR) from None
        if answer.remark == "The user is existed" and await self._made_before(request):
            return request.reply()
        return request.reply(answer.code, remark=answer.remark, body=answer.body)

    async def _made_before(self, request: Command) -> bool:
        """Whether the user that is to be made is there, as asked: by the same command, at another broker."""
        name = request.ext.get("username", "")
        try:
            wanted = bodies.loads_object(request.body)
        except PeerError:
            return False
        try:
            async with asyncio.timeout(COPIED_WITHIN_S):
                while (user := self._context.trust.directory.users.get(name)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return False
        return user == user.changed(wanted)
