"""How do mqadmin's ``createUser``, ``createAcl``, ``updateAclConfig`` and the like change the rules?

ACL 2.0: AUTH_* (3001 to 3010). ACL 1.0, as RocketMQ had it up to 5.2: 50 to 54. Answers and texts are the
original's, but for passwords: they are shown to super users and peers alone, and no text has one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from model.acl.policies import Resource, acl_to_json, policy_type, subject_of
from model.codes import Request, Response
from model.errors import ConfigError, PeerError, Refused
from remoting import bodies
from remoting.acl.gate import Gate
from remoting.acl.plain_files import PlainFiles, version_of
from remoting.codec import Command
from remoting.headers import opt_bool
from remoting.keys import Signer

# Aliases of other answers in RocketMQ's table of codes.
PLAIN_PUT_FAILED: Final = 209
PLAIN_DELETE_FAILED: Final = 210
PLAIN_WHITE_FAILED: Final = 211

Answer = Callable[[Command], Awaitable[Command]]


async def _kept() -> None:
    """Where nothing has to be written."""


class DirectoryRequests:
    """3001 to 3010. ``keep`` returns when a change is safe."""

    def __init__(self, gate: Gate, credentials: Signer | None) -> None:
        self._gate = gate
        self._credentials = credentials
        self.keep: Callable[[], Awaitable[None]] = _kept

    def handlers(self) -> dict[int, Answer]:
        return {
            int(Request.AUTH_CREATE_USER): self._create_user,
            int(Request.AUTH_UPDATE_USER): self._update_user,
            int(Request.AUTH_DELETE_USER): self._delete_user,
            int(Request.AUTH_GET_USER): self._get_user,
            int(Request.AUTH_LIST_USER): self._list_users,
            int(Request.AUTH_CREATE_ACL): self._put_acl,
            int(Request.AUTH_UPDATE_ACL): self._put_acl,
            int(Request.AUTH_DELETE_ACL): self._delete_acl,
            int(Request.AUTH_GET_ACL): self._get_acl,
            int(Request.AUTH_LIST_ACL): self._list_acls,
        }

    async def _create_user(self, request: Command) -> Command:
        self._gate.directory.create_user(request.ext.get("username"), _body(request), self._by_super(request))
        return await self._done(request)

    async def _update_user(self, request: Command) -> Command:
        self._gate.directory.update_user(request.ext.get("username"), _body(request), self._by_super(request))
        return await self._done(request)

    async def _delete_user(self, request: Command) -> Command:
        self._gate.directory.delete_user(request.ext.get("username"), self._by_super(request))
        return await self._done(request)

    async def _get_user(self, request: Command) -> Command:
        user = self._gate.directory.get_user(request.ext.get("username"))
        return request.reply(body=b"" if user is None else bodies.dumps(self._shown(request, user.to_json())))

    async def _list_users(self, request: Command) -> Command:
        users = self._gate.directory.list_users(request.ext.get("filter"))
        shown = [self._shown(request, user.to_json()) for user in users]
        return request.reply(body=bodies.dumps(shown) if shown else b"")

    async def _put_acl(self, request: Command) -> Command:
        body = _body(request)
        named = body.get("subject")
        # As the original: the body's subject, when it names a user, goes before the header's.
        name = subject_of(named if isinstance(named, str) else None)
        self._gate.directory.put_acl(name or subject_of(request.ext.get("subject")), body)
        return await self._done(request)

    async def _delete_acl(self, request: Command) -> Command:
        ext = request.ext
        resource, kind = Resource.of(ext.get("resource")), policy_type(ext.get("policyType"))
        self._gate.directory.delete_acl(subject_of(ext.get("subject")), kind, resource)
        return await self._done(request)

    async def _get_acl(self, request: Command) -> Command:
        name = subject_of(request.ext.get("subject"))
        policies = self._gate.directory.get_acl(name)
        if policies is None or name is None:
            return request.reply()
        return request.reply(body=bodies.dumps(acl_to_json(name, policies)))

    async def _list_acls(self, request: Command) -> Command:
        found = self._gate.directory.list_acls(
            request.ext.get("subjectFilter"), request.ext.get("resourceFilter")
        )
        shown = [acl_to_json(name, policies) for name, policies in found]
        return request.reply(body=bodies.dumps(shown) if shown else b"")

    def _by_super(self, request: Command) -> bool:
        return self._gate.is_super(request, self._credentials)

    def _shown(self, request: Command, user: dict[str, Any]) -> dict[str, Any]:
        return user if self._by_super(request) else {**user, "password": None}

    async def _done(self, request: Command) -> Command:
        await self.keep()
        return request.reply()


class PlainRequests:
    """50 to 54. ``where``: broker name, address and cluster, as 52 tells them."""

    def __init__(self, files: PlainFiles, where: dict[str, str]) -> None:
        self._files = files
        self._where = where

    def handlers(self) -> dict[int, Answer]:
        return {
            int(Request.UPDATE_AND_CREATE_ACL_CONFIG): self._put,
            int(Request.DELETE_ACL_CONFIG): self._delete,
            int(Request.GET_BROKER_CLUSTER_ACL_INFO): self._versions,
            int(Request.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG): self._white,
            int(Request.GET_BROKER_CLUSTER_ACL_CONFIG): self._all,
        }

    async def _put(self, request: Command) -> Command:
        ext = request.ext
        raw: dict[str, Any] = {
            key: ext.get(key)
            for key in ("secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
        }
        # The AccessKey of the account: a signed request has that of its sender under another spelling.
        raw["accessKey"] = ext.get("accessKey")
        raw["admin"] = "true" if opt_bool(ext, "admin") else "false"
        for key in ("topicPerms", "groupPerms"):
            raw[key] = _split(ext[key]) if key in ext else None
        _try(lambda: self._files.put_account(raw), PLAIN_PUT_FAILED)
        return request.reply()

    async def _delete(self, request: Command) -> Command:
        key = request.ext.get("accessKey") or ""
        if not key or not _try(lambda: self._files.delete_account(key), PLAIN_DELETE_FAILED):
            text = f"The accessKey[{key}] corresponding to accessConfig has been deleted failed."
            raise Refused(text, PLAIN_DELETE_FAILED)
        return request.reply()

    async def _white(self, request: Command) -> Command:
        text, path = request.ext.get("globalWhiteAddrs") or "", request.ext.get("aclFileFullPath") or ""
        if not _try(lambda: self._files.set_white(_split(text), path), PLAIN_WHITE_FAILED):
            raise Refused(f"The globalWhiteAddresses[{text}] has been updated failed.", PLAIN_WHITE_FAILED)
        return request.reply()

    async def _versions(self, request: Command) -> Command:
        files = self._files.all()
        version = version_of(files.get(self._files.default, {}))
        versions = {path: version_of(content) for path, content in files.items()}
        return request.reply(
            ext={
                **self._where,
                "version": bodies.dumps(version).decode(),
                "allAclFileVersion": bodies.dumps(versions).decode(),
            }
        )

    async def _all(self, request: Command) -> Command:
        accounts: dict[str, Any] = {}
        whites: list[Any] = []
        for content in self._files.all().values():
            whites += content.get("globalWhiteRemoteAddresses") or []
            for account in content.get("accounts") or []:
                shown = {**account, "admin": str(account.get("admin")).lower() == "true"}
                accounts.setdefault(str(account.get("accessKey")), shown)
        body = {"globalWhiteAddrs": whites, "plainAccessConfigs": list(accounts.values())}
        return request.reply(body=bodies.dumps(body))


def _try(change: Callable[[], bool | None], code: int) -> bool:
    try:
        return change() is not False
    except (ConfigError, OSError) as error:
        raise Refused(str(error), code) from None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _body(request: Command) -> dict[str, Any]:
    if not request.body:
        return {}
    try:
        return bodies.loads_object(request.body)
    except PeerError as error:
        raise Refused(str(error), Response.SYSTEM_ERROR) from None
