"""May the sender of this request have it? ACL 1.0 and 2.0 at the ports of one server.

The gate stands before all handlers. A request that is signed with the key of the peers passes; any other one
is the affair of the schemes that are on: ``plain`` (1.0) and ``directory`` (2.0, authentication and
authorization each by a key of its own, as in RocketMQ). A refusal has the original's code and text: 1.0
SYSTEM_ERROR with its exception's name, 2.0 NO_PERMISSION.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from model.acl import plain as plain_acl
from model.acl.addresses import host_of
from model.acl.directory import Directory
from model.acl.plain import Account, Perm, need_admin
from model.acl.policies import Need, User, denied
from model.codes import Request, Response, name_of
from model.config.server import ServerConfig, codes_in
from model.errors import PeerError, Refused
from remoting.acl.audit import Audit
from remoting.acl.needs import (
    SETTINGS,
    needs,
    plain_needs,
    plain_reads,
    plain_sends_to,
    reads,
    sends_to,
)
from remoting.acl.plain_files import PlainFiles
from remoting.auth import ACCESS_KEY, PEER_CODES, ROCKETMQ, SIGNATURE, Scheme, is_signed
from remoting.codec import Command
from remoting.keys import OWN_SIGNATURE, Signer

PLAIN_ERROR = "org.apache.rocketmq.acl.common.AclException: "


class Admission(enum.Enum):
    """How a request passed."""

    PEER = "signed with the key of the peers: what that key is good for decides"
    RIGHT = "its sender has a right of its own, also to what else only those keys are good for"
    CLIENT = "as any client's: where a key of the peers is, what they and operators ask for takes that key"


@dataclass(frozen=True, slots=True)
class NeededRight:
    """A right to a topic, in the words of both schemes; ``group``: that it is read for."""

    actions: tuple[str, ...]
    perm: Perm
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """By what a request was admitted that waits since."""

    code: int
    ext: dict[str, str]
    remote: str
    user: User | None
    account: Account | None

    @property
    def address(self) -> str:
        return host_of(self.remote)


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request that was admitted: who may be sent something later without asking for it. It is kept
    as long as the sender is there: nothing of the request is.

    ``account``: the name of a user, an account or a key of the peers that is there."""

    account: str | None
    address: str
    user: User | None
    by_peer: bool


@dataclass(slots=True)
class Gate:
    """``plain``: None = ACL 1.0 is off. ``cluster``: what a right on the cluster names."""

    audit: Audit
    plain: PlainFiles | None = None
    directory: Directory = field(default_factory=Directory)
    authenticates: bool = False
    authorizes: bool = False
    open_to_all: frozenset[int] = frozenset()
    open_to_users: frozenset[int] = frozenset()
    cluster: str = "DefaultCluster"
    clusters_of: Callable[[Command], Iterable[str]] = lambda request: ()
    """Of which clusters the broker is that a request names: a right to another one, which the request names
    beside it, is none to change it."""

    @classmethod
    def of(cls, config: ServerConfig, audit: Audit, plain: PlainFiles | None, cluster: str) -> Gate:
        return cls(
            audit,
            plain,
            authenticates=config.authentication_enabled,
            authorizes=config.authorization_enabled,
            open_to_all=codes_in(config.authentication_whitelist) or frozenset(),
            open_to_users=codes_in(config.authorization_whitelist) or frozenset(),
            cluster=cluster,
        )

    @property
    def on(self) -> bool:
        return self.plain is not None or self.authenticates or self.authorizes

    def check(self, request: Command, remote: str, credentials: Signer | None) -> Admission:
        """Raises Refused, and leaves a line about it."""
        if credentials is not None and is_peer(request, credentials):
            return Admission.PEER
        try:
            return self.decide(request, remote)
        except Refused as refused:
            told = with_peer_reason(refused, request, credentials)
            self.audit.on_denied(request, remote, told.remark, refused.lacks)
            raise told from None

    def decide(self, request: Command, remote: str) -> Admission:
        """As ``check``, for one who is no peer."""
        address = host_of(remote)
        may = False
        signed_with = signed_by(request)
        if self.plain is not None:
            may = self._plain(self.plain, request, address, signed_with)
        user = self._user(request, signed_with)
        if request.code in self.open_to_users:
            may = may or (user is not None and user.is_super)
        elif user is not None and user.is_super:
            may = True  # who may do all needs no list of what it takes
        elif self.authorizes:
            # The original looks into no request without ext fields: it has no user either.
            name = None if user is None else user.name
            may = self.directory.authorizes(name, self._needs(request), address) or may
        elif request.code in PEER_CODES | SETTINGS and not may:
            if self.authenticates:
                raise denied(f"{name_of(request.code)} is for super users: there are no policies")
            if self.plain is not None:
                raise _plain_refusal(need_admin(request.code, request.ext.get(ACCESS_KEY)), "")
        return Admission.RIGHT if may else Admission.CLIENT

    def secrets(self, request: Command) -> list[tuple[Scheme, str]]:
        """With what a request of the user that it names may be signed."""
        name = request.ext.get(ACCESS_KEY, "")
        user = self.directory.users.get(name) if self.authenticates else None
        account = None if self.plain is None else self.plain.acl.accounts.get(name)
        found = [] if user is None else [user.password]
        found += [] if account is None else [account.secret_key]
        return [(ROCKETMQ, secret) for secret in found]

    def _needs(self, request: Command) -> list[Need]:
        found = needs(request, self.cluster)
        if request.code in PEER_CODES:
            found += [Need("Cluster", name, ("Update",)) for name in self.clusters_of(request)]
        return found

    def of_operator(self, request: Command) -> bool:
        """Whether a super user or an admin signed this."""
        name, signed_with = request.ext.get(ACCESS_KEY) or "", signed_by(request)
        if self.plain is not None:
            account = self.plain.acl.accounts.get(name)
            if account is not None and account.admin and signed_with(account.secret_key):
                return True
        return self.of_super_user(request)

    def of_super_user(self, request: Command) -> bool:
        name, signed_with = request.ext.get(ACCESS_KEY) or "", signed_by(request)
        try:
            return self.authenticates and self.directory.authenticates(name, signed_with).is_super
        except Refused:
            return False

    def check_topic(self, request: Command, remote: str, topic: str, asked: NeededRight) -> None:
        """Raises Refused unless the sender of ``request``, which was admitted, has the right ``asked`` to a
        topic that only its handler found."""
        try:
            self._check_topic(request, host_of(remote), topic, asked)
        except Refused as refused:
            self.audit.on_denied(request, remote, refused.remark, refused.lacks)
            raise

    def _check_topic(self, request: Command, address: str, topic: str, asked: NeededRight) -> None:
        name = request.ext.get(ACCESS_KEY)
        if self.plain is not None:
            wanted = list(plain_reads(topic, asked.group, asked.perm))
            # The signature is right: it was looked at when the request was admitted.
            refused = self.plain.acl.refuses(address, name, lambda secret: True, wanted, None)
            if refused is not None:
                raise _plain_refusal(refused, self.plain.acl.lacks(name, wanted))
        if self.authorizes and request.code not in self.open_to_users:
            user = self._user(request, signed_by(request))
            found = list(reads(topic, asked.group, *asked.actions))
            self.directory.authorizes(None if user is None else user.name, found, address)

    def passed(self, request: Command, remote: str) -> Pass | None:
        """What is to be asked again of a request that waits; None where nothing is."""
        user, account = self._proven(request, host_of(remote))
        if user is None and account is None:
            return None
        return Pass(
            request.code,
            {field: request.ext[field] for field in ("topic", "consumerGroup") if field in request.ext},
            remote,
            user,
            account,
        )

    def _proven(self, request: Command, address: str) -> tuple[User | None, Account | None]:
        """Who sent a request that was admitted. One that a white list of codes or addresses let by has the
        name that it proves alone; an account's own white list is a proof of that one."""
        name, signed_with = request.ext.get(ACCESS_KEY) or "", signed_by(request)
        user = self.directory.users.get(name) if self.authenticates else None
        if user is not None and request.code in self.open_to_all:
            user = user if user.enabled and signed_with(user.password) else None
        account = None if self.plain is None else self.plain.acl.accounts.get(name)
        if self.plain is not None and account is not None and self.plain.acl.on_white_list(address):
            proven = account.white.matches(address) or signed_with(account.secret_key)
            account = account if proven else None
        return user, account

    def sender(self, request: Command, remote: str, *, by_peer: bool) -> Sender:
        """Who sent a request that was admitted."""
        address = host_of(remote)
        user, account = self._proven(request, address)
        name = request.ext.get(ACCESS_KEY) if by_peer else None
        if user is not None:
            name = user.name
        elif account is not None:
            name = account.access_key
        return Sender(name, address, user, by_peer)

    def may_publish(self, sender: Sender, topic: str) -> bool:
        """Whether a sender may send to a topic, as far as is known of it."""
        if sender.by_peer:
            return True
        user = self._as_now(sender.user)
        lost = user is None and sender.user is not None
        if self.authenticates and user is None and (lost or Request.SEND_MESSAGE_V2 not in self.open_to_all):
            return False
        try:
            if self.plain is not None:
                wanted = list(plain_sends_to(topic))
                refused = self.plain.acl.refuses(
                    sender.address, sender.account, lambda secret: True, wanted, None
                )
                if refused is not None:
                    return False
            if self.authorizes and not (user is not None and user.is_super):
                name = None if user is None else user.name
                self.directory.authorizes(name, list(sends_to(topic)), sender.address)
        except Refused:
            return False
        return True

    def _as_now(self, user: User | None) -> User | None:
        """It may be demoted, disabled or gone since it said that it is there."""
        if user is None or not self.authenticates:
            return user
        found = self.directory.users.get(user.name)
        return found if found is not None and found.enabled else None

    def still(self, held: Pass) -> None:
        """Raises Refused when its sender has lost what it was admitted by, and leaves a line about it."""
        request = Command(held.code, held.ext)
        try:
            self._still(request, held)
        except Refused as refused:
            name = held.account.access_key if held.account is not None else None
            name = held.user.name if held.user is not None else name
            known = replace(request, ext={**request.ext, ACCESS_KEY: name or ""})
            self.audit.on_denied(known, held.remote, refused.remark, refused.lacks)
            raise

    def _still(self, request: Command, held: Pass) -> None:
        if self.plain is not None and held.account is not None:
            key = held.account.access_key
            known = self.plain.acl.accounts.get(key)
            right = known is not None and known.secret_key == held.account.secret_key
            wanted = plain_needs(request, self.cluster)
            refused = self.plain.acl.refuses(held.address, key, lambda secret: right, wanted, None)
            if refused is not None:
                raise _plain_refusal(refused, self.plain.acl.lacks(key, wanted))
        if held.user is None:
            return
        before = held.user
        if self.authenticates and held.code not in self.open_to_all:
            self.directory.authenticates(before.name, lambda password: password == before.password)
        if self.authorizes and held.code not in self.open_to_users:
            self.directory.authorizes(before.name, needs(request, self.cluster), held.address)

    def _user(self, request: Command, signed_with: Callable[[str], bool]) -> User | None:
        """The user who proves to have signed. Raises Refused where there has to be one."""
        if not self.authenticates:
            return None
        name = request.ext.get(ACCESS_KEY)
        if request.code not in self.open_to_all:
            return self.directory.authenticates(name, signed_with)
        try:
            return self.directory.authenticates(name, signed_with)
        except Refused:
            return None

    def _plain(
        self, plain: PlainFiles, request: Command, address: str, signed_with: Callable[[str], bool]
    ) -> bool:
        name = request.ext.get(ACCESS_KEY)
        # The original names five of these.
        code = request.code if request.code in PEER_CODES | SETTINGS else None
        wanted: list[plain_acl.Need] = []

        def read() -> Iterator[plain_acl.Need]:
            """Asked for behind the signature: a body has megabytes, and its sender may be anybody."""
            wanted.extend(plain_needs(request, self.cluster))
            yield from wanted

        try:
            refused = plain.acl.refuses(address, name, signed_with, read(), code)
        except PeerError as error:
            refused = str(error)
        if refused is not None:
            raise _plain_refusal(refused, plain.acl.lacks(name, wanted))
        # An address on a white list may send; to act as an operator takes an admin's signature (``decide``).
        account = plain.acl.accounts.get(name or "")
        return code is not None and account is not None and account.admin and signed_with(account.secret_key)


def _plain_refusal(text: str, lacks: str) -> Refused:
    """``lacks`` counts where permissions were looked at."""
    refused = Refused(PLAIN_ERROR + text, Response.SYSTEM_ERROR)
    if text.startswith(("No permission for", "No default permission for")):
        refused.lacks = lacks
    return refused


def signed_by(request: Command) -> Callable[[str], bool]:
    """Is this secret that of the request's signature?"""

    def signed_with(secret: str) -> bool:
        signature = request.ext.get(SIGNATURE)
        return signature is not None and is_signed(request, ROCKETMQ, secret, signature)

    return signed_with


def is_peer(request: Command, credentials: Signer) -> bool:
    """Whether a key of the peers signed this."""
    return peer_key(request, credentials) is not None


def peer_key(request: Command, credentials: Signer) -> object | None:
    """The key of the peers that signed this; a look at the name spares everybody else's signature."""
    name = request.ext.get(ACCESS_KEY)
    if name is None or not credentials.knows(name):
        return None
    try:
        return credentials.check_signed(request)
    except Refused:
        return None


def with_peer_reason(refused: Refused, request: Command, credentials: Signer | None) -> Refused:
    """A refusal of one who names a key of the peers says why that key is not believed: a peer whose clock or
    secret is wrong is no unknown user, and one whose key was taken out hears where it stood."""
    name = request.ext.get(ACCESS_KEY)
    if name is None or credentials is None:
        return refused
    if not credentials.knows(name):
        if OWN_SIGNATURE not in request.ext:
            return refused  # RocketMQ's text alone, for RocketMQ's clients
        text = f"{refused.remark}; nor is {name} a key of peerCredentialsFile here"
        return Refused(text, refused.code)
    try:
        credentials.check_signed(request)
    except Refused as failed:
        text = f"{refused.remark}; {name} is a key of peerCredentialsFile, and {failed.remark}"
        return Refused(text, refused.code)
    return refused
