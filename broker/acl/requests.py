"""Which broker of a group takes changes of users and policies, and when are they safe?

The master, as it takes changes of topics; it answers when every broker that could be elected has them. A
slave hands a change on to its master with the signature of who asked (mqadmin ``-c`` asks every broker of a
cluster, in any order). The files of ACL 1.0 are each broker's own, as RocketMQ's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from broker.context import BrokerContext
from model.acl.policies import Policies, User
from model.codes import Request, Response
from model.config import BrokerConfig
from model.errors import Refused, Unknown
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
HANDED_ON: Final = "handed on by "
"""How the remark of a request begins that a slave got; no signature covers it."""
Rules = tuple[User | None, Policies | None]
TOGETHER_MS: Final = 10_000


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
        self._done = Done()
        control.requests.keep = self._keep

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
        now_ms = self._context.env.monotonic_ms()
        if self._done.by_way_of_another(request, self._rules_of(request), now_ms):
            return request.reply()
        return await answer(request)

    async def _keep(self, request: Command) -> None:
        """Return when the change that ``request`` just made is safe."""
        made = self._rules_of(request)
        await self._context.copies.wait_for_copies(TABLE)
        self._done.add(request, made, self._context.env.monotonic_ms())

    def _rules_of(self, request: Command) -> Rules:
        """All that is said now of the user that a change is about."""
        directory, name = self._control.directory, self._control.requests.about(request)
        return directory.users.get(name), directory.acls.get(name)

    async def _hand_on(self, master: str, request: Command) -> Command:
        config = self._context.config
        asked = replace(request, ext=dict(request.ext), remark=f"{HANDED_ON}{config.address}")
        try:
            answer = await self._client.call(master, asked, config.slave_timeout_ms / 1000 + 1)
        except (OSError, Unknown) as error:
            raise Refused(f"this broker is a slave, and its master: {error}", Response.SYSTEM_ERROR) from None
        return request.reply(answer.code, remark=answer.remark, body=answer.body)


class Done:
    """Which changes were made a moment ago, and by which way they came; pure.

    mqadmin asks each broker of a cluster for the same: the group does it once, and says yes to all. Somebody
    who asks the same broker twice is told that it was there, or is not any more. Holds: what is said to be
    done is so now: once anything else was said of its user, it is done anew.
    """

    def __init__(self) -> None:
        self._made: dict[_Change, _Made] = {}

    def by_way_of_another(self, request: Command, rules: Rules, now_ms: float) -> bool:
        """Whether this was done a moment ago, and comes by this way for the first time. ``rules``: of its
        user, now."""
        self._made = {c: made for c, made in self._made.items() if now_ms - made.at_ms < TOGETHER_MS}
        found = self._made.get(_change(request))
        way = request.remark or ""
        if found is None or way in found.ways or found.rules != rules:
            return False
        found.ways.add(way)
        return True

    def add(self, request: Command, rules: Rules, now_ms: float) -> None:
        """It was done, and made ``rules`` of its user."""
        self._made[_change(request)] = _Made(now_ms, rules, {request.remark or ""})


@dataclass(slots=True)
class _Made:
    at_ms: float
    rules: Rules
    ways: set[str]


_Change = tuple[int, tuple[tuple[str, str], ...], bytes]


def _change(request: Command) -> _Change:
    ext = tuple(
        sorted(
            (k, v) for k, v in request.ext.items() if k in ("username", "subject", "resource", "policyType")
        )
    )
    return request.code, ext, request.body
