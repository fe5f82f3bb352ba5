"""What do operators ask about the users and policies of ACL 2.0? Of one server at a time: each keeps its own,
but for the brokers of a group, whose master has those of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from client.admin import AdminClient
from model.acl.policies import USER, Entry
from model.codes import Request
from model.errors import PeerError
from remoting import bodies


@dataclass(frozen=True, slots=True, order=True)
class KnownUser:
    """A user as lists show it: without a password, whatever the server tells."""

    name: str
    kind: str
    status: str


@dataclass(frozen=True, slots=True)
class KnownEntry:
    """One entry of a user's policies."""

    user: str
    policy: str
    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...]
    decision: str


class AccessRules:
    """Raises as AdminClient does."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def users(self, server: str, part: str = "") -> list[KnownUser]:
        """Those whose name has ``part`` in it."""
        listed = await self._listed(server, Request.AUTH_LIST_USER, {"filter": part})
        return [
            KnownUser(str(u["username"]), str(u.get("userType")), str(u.get("userStatus"))) for u in listed
        ]

    async def is_super(self, server: str, name: str) -> bool:
        """Whether there is a super user of that name."""
        return any((u.name, u.kind) == (name, "Super") for u in await self.users(server, name))

    async def create_user(self, server: str, name: str, password: str, kind: str) -> None:
        """Refused where it is there already."""
        body = {"username": name, "password": password, "userType": kind}
        await self._ask(server, Request.AUTH_CREATE_USER, {"username": name}, body)

    async def update_user(
        self,
        server: str,
        name: str,
        *,
        password: str | None = None,
        kind: str | None = None,
        enabled: bool | None = None,
    ) -> None:
        """What is None stays. Refused where there is no such user."""
        body: dict[str, Any] = {"username": name}
        if password is not None:
            body["password"] = password
        if kind is not None:
            body["userType"] = kind
        if enabled is not None:
            body["userStatus"] = "enable" if enabled else "disable"
        await self._ask(server, Request.AUTH_UPDATE_USER, {"username": name}, body)

    async def delete_user(self, server: str, name: str) -> None:
        """With its policies; nothing happens where there is none."""
        await self._ask(server, Request.AUTH_DELETE_USER, {"username": name})

    async def entries(self, server: str, user: str = "", resource: str = "") -> list[KnownEntry]:
        """Of the user of that name, or of all; of resources with ``resource`` in them."""
        ext = {"subjectFilter": f"{USER}:{user}" if user else "", "resourceFilter": resource}
        listed = await self._listed(server, Request.AUTH_LIST_ACL, ext)
        found = []
        for acl in listed:
            name = str(acl["subject"]).partition(":")[2]
            if user in ("", name):  # the server's filter is a part of the name
                found += [
                    _entry(name, str(policy["policyType"]), entry)
                    for policy in acl["policies"]
                    for entry in policy["entries"]
                ]
        return found

    async def put_entries(self, server: str, user: str, policy: str, entries: Sequence[Entry]) -> None:
        """They take the place of entries of the same resources."""
        body = {
            "subject": f"{USER}:{user}",
            "policies": [{"policyType": policy, "entries": [entry.to_json() for entry in entries]}],
        }
        await self._ask(server, Request.AUTH_UPDATE_ACL, {"subject": f"{USER}:{user}"}, body)

    async def delete_entries(self, server: str, user: str, policy: str, resource: str | None) -> None:
        """The entry of one resource; without one all of the user's. Refused where there is none."""
        ext = {"subject": f"{USER}:{user}", "policyType": policy}
        if resource is not None:
            ext["resource"] = resource
        await self._ask(server, Request.AUTH_DELETE_ACL, ext)

    async def _listed(self, server: str, code: int, ext: dict[str, str]) -> list[dict[str, Any]]:
        response = await self._admin.session.call(server, code, ext)
        listed = bodies.loads(response.body, bodies.BELIEVED) if response.body else []
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise PeerError(f"{server} answered no list")
        return listed

    async def _ask(
        self, server: str, code: int, ext: dict[str, str], body: dict[str, Any] | None = None
    ) -> None:
        data = b"" if body is None else bodies.dumps(body)
        await self._admin.session.call(server, code, ext, data, timeout_s=CHANGE_S)


CHANGE_S = 10.0
"""A broker answers a change when every broker that could be elected has it."""


def _entry(user: str, policy: str, raw: dict[str, Any]) -> KnownEntry:
    return KnownEntry(
        user,
        policy,
        str(raw["resource"]),
        tuple(map(str, raw.get("actions") or ())),
        tuple(map(str, raw.get("sourceIps") or ())),
        str(raw["decision"]),
    )
