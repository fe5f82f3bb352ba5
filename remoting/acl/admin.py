"""How do mqadmin's ``createUser``, ``createAcl``, ``updateAclConfig`` and the like change the rules?

ACL 2.0: AUTH_* (3001 to 3010). ACL 1.0, as RocketMQ had it up to 5.2: 50 to 54. Answers and texts are the
original's, but for passwords: they are shown to super users and peers alone, and no text has one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from model.acl.policies import Policies, Resource, acl_to_json, policy_type, subject_of
from model.codes import Request, Response
from model.errors import ConfigError, PeerError, Refused
from remoting import bodies
from remoting.acl.gate import Gate, is_peer
from remoting.acl.plain_files import PlainFiles, version_of
from remoting.codec import Command
from remoting.headers import opt_bool
from remoting.keys import Signer
from remoting.request_bodies import request_object
from remoting.slices import joined, loop_slice, written

# Aliases of other answers in RocketMQ's table of codes.
PLAIN_PUT_FAILED: Final = 209
PLAIN_DELETE_FAILED: Final = 210
PLAIN_WHITE_FAILED: Final = 211
BODY_BYTES_MAX: Final = 256 << 10
"""Of a request: more than the entries one user may have take."""

_OF_USERS: Final = frozenset({Request.AUTH_CREATE_USER, Request.AUTH_UPDATE_USER, Request.AUTH_DELETE_USER})
Answer = Callable[[Command], Awaitable[Command]]


async def _kept(request: Command) -> None:
    """Where nothing has to be written."""


class DirectoryRequests:
    """3001 to 3010, answered while ACL 2.0 is on. ``keep`` returns when the change of a request is safe."""

    def __init__(self, gate: Gate, credentials: Signer | None) -> None:
        self._gate = gate
        self._credentials = credentials
        self.keep: Callable[[Command], Awaitable[None]] = _kept

    def handlers(self) -> dict[int, Answer]:
        return {code: partial(self._while_on, answer) for code, answer in self._answers().items()}

    async def _while_on(self, answer: Answer, request: Command) -> Command:
        """As the original without an ``authenticationMetadataProvider``: who could plant a user while ACL is
        off would be a super user once it is on."""
        if not (self._gate.authenticates or self._gate.authorizes):
            raise Refused("An system error occurred, please try again later.", Response.SYSTEM_ERROR)
        return await answer(request)

    def _answers(self) -> dict[int, Answer]:
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
        body = _body(request)
        self._gate.directory.create_user(request.ext.get("username"), body, self._by_super(request))
        return await self._done(request)

    async def _update_user(self, request: Command) -> Command:
        body = _body(request)
        self._gate.directory.update_user(request.ext.get("username"), body, self._by_super(request))
        return await self._done(request)

    async def _delete_user(self, request: Command) -> Command:
        self._gate.directory.delete_user(request.ext.get("username"), self._by_super(request))
        return await self._done(request)

    async def _get_user(self, request: Command) -> Command:
        user = self._gate.directory.get_user(request.ext.get("username"))
        secrets = self._gate.of_super_user(request)
        return request.reply(body=b"" if user is None else bodies.dumps(_shown(user.to_json(), secrets)))

    async def _list_users(self, request: Command) -> Command:
        users = self._gate.directory.list_users(request.ext.get("filter"))
        secrets = self._gate.of_super_user(request)
        shown = [_shown(user.to_json(), secrets) for user in users]
        return request.reply(body=bodies.dumps(shown) if shown else b"")

    async def _put_acl(self, request: Command) -> Command:
        self._gate.directory.put_acl(self._subject(request), _body(request))
        return await self._done(request)

    async def _delete_acl(self, request: Command) -> Command:
        ext = request.ext
        resource, kind = Resource.of(ext.get("resource")), policy_type(ext.get("policyType"))
        self._gate.directory.delete_acl(self._subject(request), kind, resource)
        return await self._done(request)

    async def _get_acl(self, request: Command) -> Command:
        name = subject_of(request.ext.get("subject"))
        policies = self._gate.directory.get_acl(name)
        if policies is None or name is None:
            return request.reply()
        return request.reply(body=bodies.dumps(acl_to_json(name, policies)))

    async def _list_acls(self, request: Command) -> Command:
        found = self._gate.directory.look_at_acls(
            request.ext.get("subjectFilter"), request.ext.get("resourceFilter")
        )
        body = await joined(_listed(found), loop_slice())
        return request.reply(body=body)

    def about(self, request: Command) -> str:
        """The name of the user that a change is about."""
        if request.code in _OF_USERS:
            return request.ext.get("username") or ""
        return self._subject(request) or ""

    def _subject(self, request: Command) -> str | None:
        """As the original: the body's subject, when it names a user, goes before the header's."""
        in_header = subject_of(request.ext.get("subject"))
        if request.code == Request.AUTH_DELETE_ACL:
            return in_header
        named = _body(request).get("subject")
        return subject_of(named if isinstance(named, str) else None) or in_header

    def _by_super(self, request: Command) -> bool:
        """A super user, or the key of operators."""
        of_key = self._credentials is not None and is_peer(request, self._credentials)
        return of_key or self._gate.of_operator(request)

    async def _done(self, request: Command) -> Command:
        await self.keep(request)
        return request.reply()


def _shown(user: dict[str, Any], secrets: bool) -> dict[str, Any]:
    """``secrets``: a super user asks. A key of operators changes users, and learns nobody's password."""
    return user if secrets else {**user, "password": None}


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
        await self._try(lambda: self._files.put_account(raw), PLAIN_PUT_FAILED)
        return request.reply()

    async def _try(self, change: Callable[[], bool | None], code: int) -> bool:
        try:
            return await self._files.aside(change) is not False
        except (ConfigError, OSError) as error:
            raise Refused(str(error), code) from None

    async def _delete(self, request: Command) -> Command:
        key = request.ext.get("accessKey") or ""
        if not key or not await self._try(lambda: self._files.delete_account(key), PLAIN_DELETE_FAILED):
            text = f"The accessKey[{key}] corresponding to accessConfig has been deleted failed."
            raise Refused(text, PLAIN_DELETE_FAILED)
        return request.reply()

    async def _white(self, request: Command) -> Command:
        text, path = request.ext.get("globalWhiteAddrs") or "", request.ext.get("aclFileFullPath") or ""
        if not await self._try(lambda: self._files.set_white(_split(text), path), PLAIN_WHITE_FAILED):
            raise Refused(f"The globalWhiteAddresses[{text}] has been updated failed.", PLAIN_WHITE_FAILED)
        return request.reply()

    async def _versions(self, request: Command) -> Command:
        ext = await self._files.aside(lambda: _version_fields(self._files.all(), self._files.default))
        return request.reply(ext=self._where | ext)

    async def _all(self, request: Command) -> Command:
        told = await self._files.aside(lambda: _accounts_told(self._files.all().values()))
        return request.reply(body=await written(told, loop_slice(), depth=2))


def _version_fields(files: Mapping[str, dict[str, Any]], default: str) -> dict[str, str]:
    versions = {path: version_of(content) for path, content in files.items()}
    version = versions.get(default) or version_of({})
    return {
        "version": bodies.dumps(version).decode(),
        "allAclFileVersion": bodies.dumps(versions).decode(),
    }


def _accounts_told(files: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """As an answer has them: each account where it stands first."""
    accounts: dict[str, Any] = {}
    whites: list[Any] = []
    for content in files:
        whites += content.get("globalWhiteRemoteAddresses") or []
        for account in content.get("accounts") or []:
            shown = {**account, "admin": str(account.get("admin")).lower() == "true"}
            accounts.setdefault(str(account.get("accessKey")), shown)
    return {"globalWhiteAddrs": whites, "plainAccessConfigs": list(accounts.values())}


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _body(request: Command) -> dict[str, Any]:
    if not request.body:
        return {}
    if len(request.body) > BODY_BYTES_MAX:
        text = f"users and policies have at most {BODY_BYTES_MAX} bytes in one request"
        raise Refused(text, Response.SYSTEM_ERROR)
    try:
        return request_object(request)
    except PeerError as error:
        raise Refused(str(error), Response.SYSTEM_ERROR) from None


def _listed(found: Iterator[tuple[str, Policies | None]]) -> Iterator[str]:
    """The list as JSON, a user at a time; nothing when there is none."""
    before = "["
    for name, policies in found:
        if policies is None:
            yield ""  # looked at, and not shown
            continue
        yield before + bodies.dumps(acl_to_json(name, policies)).decode()
        before = ","
    if before == ",":
        yield "]"
