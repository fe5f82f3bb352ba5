"""Was this request made by somebody who holds the key of the cluster?

The scheme is RocketMQ's own (``acl/common/AclClientRPCHook``, ``AclSigner``, ``AclUtils``; what a server
leaves out: ``auth/.../DefaultAuthenticationContextBuilder``): its brokers, mqadmin and clients can sign.

    ext AccessKey      who signs
    ext SecurityToken  optional, signed like any other field
    ext Signature      base64(HmacSHA1(secretKey, content))
    content            the values of all other ext fields, keys in the order of their UTF-16 units; the body

Neither the request code, nor the keys, nor the time are part of it: a reader of the traffic can send a
signed request again, also under another code (docs/security.md). So nothing is signed that goes to clients.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from model.codes import Request, Response, name_of
from model.errors import ConfigError, Refused
from remoting.codec import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
SECRET_BYTES_MIN: Final = 16
UNSIGNED_BEFORE: Final = "_UNIQUE_KEY_QUERY"
UNSIGNED_UP_TO_VERSION: Final = 399  # V4_9_3: clients up to it add that field after they have signed

ACL_CODES: Final = frozenset(
    {
        Request.UPDATE_AND_CREATE_ACL_CONFIG,
        Request.DELETE_ACL_CONFIG,
        Request.GET_BROKER_CLUSTER_ACL_INFO,
        Request.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        Request.GET_BROKER_CLUSTER_ACL_CONFIG,
        Request.AUTH_CREATE_USER,
        Request.AUTH_UPDATE_USER,
        Request.AUTH_DELETE_USER,
        Request.AUTH_GET_USER,
        Request.AUTH_LIST_USER,
        Request.AUTH_CREATE_ACL,
        Request.AUTH_UPDATE_ACL,
        Request.AUTH_DELETE_ACL,
        Request.AUTH_GET_ACL,
        Request.AUTH_LIST_ACL,
    }
)
"""Users, policies and accounts: changes, and reads that show secrets."""

AMONG_PEERS: Final = frozenset(
    {
        # brokers to NameServers and Controllers
        Request.REGISTER_BROKER,
        Request.UNREGISTER_BROKER,
        Request.QUERY_DATA_VERSION,  # counts as a heartbeat
        Request.BROKER_HEARTBEAT,
        Request.CONTROLLER_ALTER_SYNC_STATE_SET,
        Request.CONTROLLER_REGISTER_BROKER,
        Request.CONTROLLER_GET_NEXT_BROKER_ID,
        Request.CONTROLLER_APPLY_BROKER_ID,
        # between brokers, and from Controllers and NameServers to brokers
        Request.NOTIFY_BROKER_ROLE_CHANGED,
        Request.NOTIFY_MIN_BROKER_ID_CHANGE,
        Request.EXCHANGE_BROKER_HA_INFO,
        Request.RESET_MASTER_FLUSH_OFFSET,
        Request.READ_LOG_RANGE,
        Request.KEELMQ_COPY_TABLES,
        Request.KEELMQ_LOG_DIGESTS,
        Request.KEELMQ_GIVE_TABLES,
    }
)
"""What servers ask of each other, and nobody else."""

OF_OPERATORS: Final = frozenset(
    {
        # to Controllers; a broker asks for an election, too
        Request.CONTROLLER_ELECT_MASTER,
        Request.UPDATE_CONTROLLER_CONFIG,
        Request.CLEAN_BROKER_DATA,
        Request.KEELMQ_TRANSFER_LEADERSHIP,
        Request.KEELMQ_REPLACE_CONTROLLER,
        Request.KEELMQ_SET_MAINTENANCE,
        # to NameServers
        Request.PUT_KV_CONFIG,
        Request.DELETE_KV_CONFIG,
        Request.WIPE_WRITE_PERM_OF_BROKER,
        Request.ADD_WRITE_PERM_OF_BROKER,
        Request.DELETE_TOPIC_IN_NAMESRV,
        Request.REGISTER_TOPIC_IN_NAMESRV,
        Request.UPDATE_NAMESRV_CONFIG,
        # to brokers
        Request.UPDATE_AND_CREATE_TOPIC,
        Request.UPDATE_AND_CREATE_TOPIC_LIST,
        Request.DELETE_TOPIC_IN_BROKER,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Request.DELETE_SUBSCRIPTIONGROUP,
        Request.UPDATE_AND_GET_GROUP_FORBIDDEN,
        Request.SET_MESSAGE_REQUEST_MODE,
        Request.UPDATE_BROKER_CONFIG,
        Request.INVOKE_BROKER_TO_RESET_OFFSET,
        Request.CLONE_GROUP_OFFSET,
        Request.CONSUME_MESSAGE_DIRECTLY,
        Request.RESUME_CHECK_HALF_MESSAGE,
        Request.TRIGGER_DELETE_FILES,
        Request.CLEAN_EXPIRED_CONSUMEQUEUE,
        Request.CLEAN_UNUSED_TOPIC,
        Request.DELETE_EXPIRED_COMMITLOG,
        Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        Request.SET_COMMITLOG_READ_MODE,
        Request.SWITCH_TIMER_ENGINE,
        Request.POP_ROLLBACK,
        Request.TRIGGER_LITE_DISPATCH,
        # operators to every server: who may do what
        *ACL_CODES,
    }
)

PEER_CODES: Final = AMONG_PEERS | OF_OPERATORS
"""What only peers and operators ask for, and what changes something or hands out whole logs. Everything else
is a client's request, or a read; docs/security.md says what those give a stranger."""

HOW: Final = (
    "keelmq's servers sign with the same peerCredentialsFile, its commands with --credentials FILE or"
    " KEELMQ_CREDENTIALS_FILE, RocketMQ's brokers with innerClientAuthenticationCredentials, mqadmin with"
    " accessKey and secretKey in conf/tools.yml"
)


KEPT_BYTES_MIN: Final = 64 << 10
"""What the signature of a longer body has to be is computed once, whoever asks."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a signature is made: a MAC over ``before_body`` and the body."""

    digest: str
    before_body: Callable[[Command], bytes]

    def signature(self, command: Command, secret: str) -> str:
        if len(command.body) < KEPT_BYTES_MIN:
            made = hmac.digest(secret.encode(), self.before_body(command) + command.body, self.digest)
        else:
            mac = hmac.new(secret.encode(), self.before_body(command), self.digest)
            mac.update(command.body)  # no copy of megabytes
            made = mac.digest()
        return base64.b64encode(made).decode()


def is_signed(command: Command, scheme: Scheme, secret: str, given: str) -> bool:
    """Whether ``given`` is the signature of a command that was received, and that nobody changes."""
    right = None if command.macs is None else command.macs.get((scheme.digest, secret))
    if right is None:
        right = scheme.signature(command, secret)
        if len(command.body) >= KEPT_BYTES_MIN:
            command.macs = {**(command.macs or {}), (scheme.digest, secret): right}
    return hmac.compare_digest(given.encode(), right.encode())


def kept_as(command: Command, scheme: Scheme, secret: str, made: bytes) -> None:
    """``made`` is the MAC of ``command``: it is not computed again."""
    command.macs = {**(command.macs or {}), (scheme.digest, secret): base64.b64encode(made).decode()}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The one key that the peers and operators of a cluster share."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, command: Command) -> Command:
        """A copy of ``command`` that says who signed it. Its ``opaque`` and ``flag`` may still change."""
        signed = replace(command, ext={**command.ext, ACCESS_KEY: self.access_key})
        signed.ext[SIGNATURE] = self.signature(signed)
        return signed

    def knows(self, access_key: str) -> bool:
        return access_key == self.access_key

    def secrets(self, command: Command) -> list[tuple[Scheme, str]]:
        return [(ROCKETMQ, self.secret_key)] if self.knows(command.ext.get(ACCESS_KEY, "")) else []

    def look(self) -> None:
        """One key never changes."""

    def has(self, key: object) -> bool:
        return key == self

    def is_named(self, command: Command, key: object) -> bool:
        return key == self and self.knows(command.ext.get(ACCESS_KEY, ""))

    def signature(self, command: Command) -> str:
        return ROCKETMQ.signature(command, self.secret_key)

    def check(self, command: Command) -> None:
        """Raises Refused (NO_PERMISSION, as the original) unless a peer request is signed with this key."""
        if command.code in PEER_CODES:
            self.check_signed(command)

    def check_signed(self, command: Command) -> Credentials:
        """Raises Refused as ``check`` does, whatever is asked for."""
        what = name_of(command.code)
        signature = command.ext.get(SIGNATURE)
        if signature is None or ACCESS_KEY not in command.ext:
            raise Refused(f"{what} must be signed here: {HOW}", Response.NO_PERMISSION)
        # Both are compared whatever the other is, and in constant time: neither can be found piece by piece.
        known = hmac.compare_digest(command.ext[ACCESS_KEY].encode(), self.access_key.encode())
        right = is_signed(command, ROCKETMQ, self.secret_key, signature)
        if not (known and right):
            raise Refused(
                f"{what} is signed with another key than this server's peerCredentialsFile: {HOW}",
                Response.NO_PERMISSION,
            )
        return self


def fields(command: Command) -> bytes:
    """What a signature of ``command`` is made of, but for the body."""
    old = command.version <= UNSIGNED_UP_TO_VERSION
    keys = [key for key in command.ext if key != SIGNATURE and not (old and key == UNSIGNED_BEFORE)]
    keys.sort(key=lambda key: key.encode("utf-16-be"))
    return "".join(command.ext[key] for key in keys).encode()


ROCKETMQ: Final = Scheme("sha1", fields)


def read_key(found: Any, where: str, form: str) -> tuple[str, str]:
    """The two texts of one key. Raises ConfigError."""
    if not isinstance(found, dict) or set(found) != {"accessKey", "secretKey"}:
        raise ConfigError(f"{where}: {form} and nothing else")
    access, secret = found["accessKey"], found["secretKey"]
    if not (isinstance(access, str) and isinstance(secret, str) and access.strip()):
        raise ConfigError(f"{where}: {form}")
    try:
        access.encode()
        size = len(secret.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: a key is not text: half of a surrogate pair") from None
    if size < SECRET_BYTES_MIN:
        raise ConfigError(f"{where}: secretKey needs at least {SECRET_BYTES_MIN} bytes")
    return access, secret
