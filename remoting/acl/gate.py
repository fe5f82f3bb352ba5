"""May the sender of this request have it? ACL 1.0 and 2.0 at the ports of one server.

The gate stands before all handlers. A request that is signed with the key of the peers passes; any other one
is the affair of the schemes that are on: ``plain`` (1.0) and ``directory`` (2.0, authentication and
authorization each by a key of its own, as in RocketMQ). A refusal has the original's code and text: 1.0
SYSTEM_ERROR with its exception's name, 2.0 NO_PERMISSION.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from model.acl.addresses import host_of
from model.acl.directory import Directory
from model.codes import Response
from model.config.server import ServerConfig
from model.errors import PeerError, Refused
from remoting.acl.audit import Audit
from remoting.acl.needs import admin_code, needs, plain_needs
from remoting.acl.plain_files import PlainFiles
from remoting.auth import ACCESS_KEY, SIGNATURE, content
from remoting.codec import Command
from remoting.keys import Signer

PLAIN_ERROR = "org.apache.rocketmq.acl.common.AclException: "


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

    @classmethod
    def of(cls, config: ServerConfig, audit: Audit, plain: PlainFiles | None, cluster: str) -> Gate:
        return cls(
            audit,
            plain,
            authenticates=config.authentication_enabled,
            authorizes=config.authorization_enabled,
            open_to_all=_codes(config.authentication_whitelist),
            open_to_users=_codes(config.authorization_whitelist),
            cluster=cluster,
        )

    @property
    def on(self) -> bool:
        return self.plain is not None or self.authenticates or self.authorizes

    def check(self, request: Command, remote: str, credentials: Signer | None) -> bool:
        """Raises Refused, and leaves a line about it. Whether the sender has a right of its own to what else
        only the keys of peers and operators are good for."""
        if credentials is not None and is_peer(request, credentials):
            return False  # what the key is good for, the key's own check says
        try:
            return self.decide(request, remote)
        except Refused as refused:
            self.audit.on_denied(request, remote, refused.remark)
            raise

    def decide(self, request: Command, remote: str) -> bool:
        """As ``check``, for one who is no peer."""
        address = host_of(remote)
        may = False
        signed_with = signed_by(request)
        if self.plain is not None:
            may = self._plain(self.plain, request, address, signed_with)
        name = request.ext.get(ACCESS_KEY)
        if self.authenticates and request.code not in self.open_to_all:
            self.directory.authenticates(name, signed_with)
        if self.authorizes and request.code not in self.open_to_users:
            # The original looks into no request without ext fields: it has no user either.
            may = self.directory.authorizes(name, needs(request, self.cluster), address) or may
        elif self.authenticates:
            may = self.directory.is_super(name) or may
        return may

    def is_super(self, request: Command, credentials: Signer | None) -> bool:
        """Whether the sender may make super users: one itself, a peer, or nobody who says a name."""
        name = request.ext.get(ACCESS_KEY)
        return (
            not name
            or self.directory.is_super(name)
            or (credentials is not None and is_peer(request, credentials))
        )

    def _plain(
        self, plain: PlainFiles, request: Command, address: str, signed_with: Callable[[str], bool]
    ) -> bool:
        name = request.ext.get(ACCESS_KEY)
        code = admin_code(request)
        try:
            refused = plain.acl.refuses(address, name, signed_with, plain_needs(request), code)
        except PeerError as error:
            refused = str(error)
        if refused is not None:
            raise Refused(PLAIN_ERROR + refused, Response.SYSTEM_ERROR)
        # An address on a white list may send; to act as an operator takes an admin's signature.
        account = plain.acl.accounts.get(name or "")
        return code is not None and account is not None and account.admin and signed_with(account.secret_key)


def signed_by(request: Command) -> Callable[[str], bool]:
    """Is this secret that of the request's signature? The content is made when first asked."""
    made: list[bytes] = []

    def signed_with(secret: str) -> bool:
        signature = request.ext.get(SIGNATURE)
        if signature is None:
            return False
        if not made:
            made.append(content(request))
        own = base64.b64encode(hmac.digest(secret.encode(), made[0], "sha1"))
        return hmac.compare_digest(own, signature.encode())

    return signed_with


def is_peer(request: Command, credentials: Signer) -> bool:
    """Whether a key of the peers signed this; a look at the name spares everybody else's signature."""
    name = request.ext.get(ACCESS_KEY)
    if name is None or not credentials.knows(name):
        return False
    try:
        credentials.check_signed(request)
    except Refused:
        return False
    return True


def _codes(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.replace(" ", "").split(",") if part.isdigit())
