"""How does a signed send stay on the fast way?

``FastPath`` believes what it reads; with ACL on, this stands before it. Sends whose signature is right and
whose sender may send there go to it in one piece, with all else of the read, which the fast path leaves to
the handler anyhow. The first send that is not proven here, and what follows it, takes the ordinary way: there
the gate decides and answers. Rights are remembered until a rule changes; signatures are checked each time.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final

import msgspec

from broker.requests.fast_headers import ODD, SENDS
from broker.requests.fast_path import FastPath
from model.acl.addresses import host_of
from model.codes import Request
from model.errors import PeerError, Refused
from model.message import RETRY_PREFIX
from remoting import codec
from remoting.acl.gate import Gate
from remoting.auth import ACCESS_KEY, SIGNATURE, UNSIGNED_BEFORE, UNSIGNED_UP_TO_VERSION
from remoting.codec import Command
from remoting.long_bodies import LOOKED_AT_BYTES
from remoting.service import Connection

RIGHTS_MAX: Final = 65536
ORDERS_MAX: Final = 1024
REMEMBERED_CHARS_MAX: Final = 512
"""Longer names are not remembered: a header has room for megabytes, and nobody has proved it yet."""
_MARK_MAX: Final = 64 << 10
"""Of a longer header the fields are to be counted before anything is built of it, as the ordinary way does. A
send's properties have 32 KiB."""
_V1: Final = int(Request.SEND_MESSAGE)


class _Head(msgspec.Struct, gc=False):
    code: int
    version: int = 0
    ext: dict[str, str] = msgspec.field(default_factory=dict, name="extFields")


_decode: Final = msgspec.json.Decoder(_Head, strict=False).decode


class SignedPath:
    """The server's BufferHandler where ACL is on."""

    def __init__(self, fast: FastPath, gate: Gate, frame_bytes_max: int) -> None:
        self._process = fast.join_or(fast.process)
        self._gate = gate
        self._frame_bytes_max = frame_bytes_max
        self._rights: set[tuple[int, str, str, str]] = set()
        self._rules: tuple[object, ...] = ()
        self._orders: dict[tuple[str, ...], list[str]] = {}

    def process(
        self, connection: Connection, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]] | None:
        address = host_of(connection.remote)
        if self._white(address):
            return self._process(connection, buffer, start, end)
        at = start
        slow: list[bytes] = []
        with memoryview(buffer) as view:
            try:
                while stop := codec.frame_end(buffer, at, end, self._frame_bytes_max):
                    if not self._passes(view, at, stop, address):
                        break
                    at = stop
            except PeerError:
                # What came before is handled first; then the same bytes end the connection.
                pass
        if at > start:
            found = self._process(connection, buffer, start, at)
            if found is not None:
                at, slow = found
            elif at == end:
                return None
        try:
            while stop := codec.frame_end(buffer, at, end, self._frame_bytes_max):
                slow.append(bytes(buffer[at:stop]))
                at = stop
        except PeerError:
            if not slow:
                raise
        return at, slow

    def _white(self, address: str) -> bool:
        gate = self._gate
        if gate.plain is None or gate.authenticates or gate.authorizes:
            return False
        return gate.plain.acl.on_white_list(address)

    def _passes(self, view: memoryview, at: int, stop: int, address: str) -> bool:
        """Whether the frame is no send, or one that its sender proved and may make."""
        if stop - at > LOOKED_AT_BYTES:
            return (
                False  # it waits its turn, and is refused before its signature is looked at if it is too long
            )
        mark = int.from_bytes(view[at + 4 : at + 8], "big")
        if mark > _MARK_MAX:
            return False  # a ROCKETMQ header, or a long one
        body_at = at + 8 + mark
        try:
            head = _decode(view[at + 8 : body_at])
        except ODD:
            return False
        if head.code not in SENDS:
            return True
        ext = head.ext
        user, signature = ext.get(ACCESS_KEY), ext.get(SIGNATURE)
        topic = ext.get("topic" if head.code == _V1 else "b")
        secret = self._secret(user)
        if secret is None or user is None or signature is None:
            return False
        if topic is None or topic.startswith(RETRY_PREFIX):
            return False  # the right is one to a group
        content = self._content(head.version, ext) + view[body_at:stop]
        own = base64.b64encode(hmac.digest(secret, content, "sha1"))
        if not hmac.compare_digest(own, signature.encode()):
            return False
        return self._may(user, topic, address, Command(head.code, ext, bytes(view[body_at:stop])))

    def _secret(self, user: str | None) -> bytes | None:
        """What the signature is checked with, where one scheme asks for one."""
        gate = self._gate
        if gate.plain is not None:
            account = None if gate.authenticates else gate.plain.acl.accounts.get(user or "")
            return None if account is None else account.secret_key.encode()
        found = gate.directory.users.get(user or "") if gate.authenticates else None
        return None if found is None or not found.enabled else found.password.encode()

    def _content(self, version: int, ext: dict[str, str]) -> bytes:
        keys = tuple(ext)
        order = self._orders.get(keys)
        if order is None or version <= UNSIGNED_UP_TO_VERSION:
            order = [k for k in keys if k != SIGNATURE]
            order.sort(key=lambda key: key.encode("utf-16-be"))
            if version <= UNSIGNED_UP_TO_VERSION:
                order = [k for k in order if k != UNSIGNED_BEFORE]
            elif sum(map(len, keys)) <= REMEMBERED_CHARS_MAX:
                if len(self._orders) >= ORDERS_MAX:
                    self._orders.clear()
                self._orders[keys] = order
        return "".join([ext[key] for key in order]).encode()

    def _forget_if_changed(self) -> None:
        """Not by the revision: a table copied from another master may differ under the same one."""
        directory, plain = self._gate.directory, self._gate.plain
        rules = (directory, directory.changes, None if plain is None else plain.acl)
        if rules != self._rules:
            self._rights.clear()
            self._rules = rules

    def _may(self, user: str, topic: str, address: str, request: Command) -> bool:
        gate = self._gate
        self._forget_if_changed()
        key = (request.code, user, topic, address)  # a code may be on a white list
        if key in self._rights:
            return True
        try:
            gate.decide(request, f"{address}:0")
        except (Refused, PeerError):
            return False  # the gate says so again, and leaves its line
        if len(topic) > REMEMBERED_CHARS_MAX:
            return True
        if len(self._rights) >= RIGHTS_MAX:
            self._rights.clear()
        self._rights.add(key)
        return True
