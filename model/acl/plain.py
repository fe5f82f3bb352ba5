"""ACL 1.0: may the holder of an AccessKey do this? The accounts of ``plain_acl.yml``, and the decision.

RocketMQ's ``PlainPermissionManager.validate`` and ``PlainPermissionChecker``, in their order: the global
white list, the AccessKey, its white list, its signature, then what it may do. An ``admin`` may do
everything; a topic or group without a permission of its own has the account's default, and without that
DENY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, Final

from model.acl.addresses import White, white
from model.errors import ConfigError

KEY_CHARS_MIN: Final = 7
"""Of an AccessKey and of a secret key: "length should longer than 6"."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"


class Perm(IntFlag):
    NONE = 0
    DENY = 1
    ANY = 2
    PUB = 4
    SUB = 8

    def allows(self, needed: Perm) -> bool:
        """Whether a permission is enough for what is needed (``ANY``: either of PUB and SUB)."""
        if self & Perm.DENY:
            return False
        return bool(self & (Perm.PUB | Perm.SUB) if needed & Perm.ANY else self & needed)


_PERMS: Final = {
    "PUB": Perm.PUB,
    "SUB": Perm.SUB,
    "PUB|SUB": Perm.PUB | Perm.SUB,
    "SUB|PUB": Perm.PUB | Perm.SUB,
}


_WORDS: Final = {Perm.PUB: "PUB", Perm.SUB: "SUB", Perm.ANY: "PUB or SUB"}


@dataclass(frozen=True, slots=True)
class Need:
    """What a request wants of one topic or group."""

    name: str
    is_group: bool
    perm: Perm

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'topic'}:{self.name}"


@dataclass(frozen=True, slots=True)
class Account:
    """One of ``accounts``."""

    access_key: str
    secret_key: str = field(repr=False)
    white: White
    admin: bool
    default_topic: Perm
    default_group: Perm
    topics: Mapping[str, Perm]
    groups: Mapping[str, Perm]

    def refuses(self, need: Need) -> str | None:
        """Why the account may not do this, in the original's words, or None."""
        own = (self.groups if need.is_group else self.topics).get(need.name)
        if own is None:
            default = self.default_group if need.is_group else self.default_topic
            return None if default.allows(need.perm) else f"No default permission for {need}"
        return None if own.allows(need.perm) else f"No permission for {need}"


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """What all files say together."""

    white: tuple[White, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)

    def on_white_list(self, address: str) -> bool:
        return any(entry.matches(address) for entry in self.white)

    def refuses(
        self,
        address: str,
        access_key: str | None,
        signed_with: Callable[[str], bool],
        needs: Iterable[Need],
        admin_code: int | None,
    ) -> str | None:
        """Why not, in the original's words, or None. ``signed_with``: is the signature that of this secret?
        ``admin_code``: the request's code when only an admin may ask for it. ``needs`` is gone through when
        it is proven who asks."""
        if self.on_white_list(address):
            return None
        if access_key is None:
            return "No accessKey is configured"
        account = self.accounts.get(access_key)
        if account is None:
            return f"No acl config for {access_key}"
        if account.white.matches(address):
            return None
        if not signed_with(account.secret_key):
            return f"Check signature failed for accessKey={access_key}"
        needs = list(needs)
        if any(need.name == TRACE_TOPIC and need.perm == Perm.PUB for need in needs):
            return None
        if account.admin:
            return None
        if admin_code is not None:
            return need_admin(admin_code, access_key)
        return next(filter(None, map(account.refuses, needs)), None)

    def lacks(self, access_key: str | None, needs: Iterable[Need]) -> str:
        """The permission for want of which ``refuses`` said no, or nothing."""
        account = self.accounts.get(access_key or "")
        lacking = (need.perm for need in needs if account is not None and account.refuses(need) is not None)
        return next((_WORDS.get(perm, "") for perm in lacking), "")


def need_admin(code: int, access_key: str | None) -> str:
    """What the original says to one who is no admin."""
    name = "null" if access_key is None else access_key
    return f"Need admin permission for request code={code}, but accessKey={name} is not"


def perm_of(text: str | None) -> Perm:
    """What an account's text allows; what is no permission is DENY."""
    return _PERMS.get((text or "").strip(), Perm.DENY)


def account_of(raw: Mapping[str, Any]) -> Account:
    """One entry of ``accounts``. Raises ConfigError."""
    access, secret = raw.get("accessKey"), raw.get("secretKey")
    if access is None or secret is None or min(len(str(access)), len(str(secret))) < KEY_CHARS_MIN:
        # The original shows the secret here.
        raise ConfigError(
            f"The accessKey={access} and its secretKey cannot be null and length should longer than 6"
        )
    return Account(
        str(access),
        str(secret),
        white(None if raw.get("whiteRemoteAddress") is None else str(raw["whiteRemoteAddress"])),
        raw.get("admin") is True or str(raw.get("admin")).lower() == "true",
        perm_of(raw.get("defaultTopicPerm")),
        perm_of(raw.get("defaultGroupPerm")),
        _perms(raw.get("topicPerms"), "topic"),
        _perms(raw.get("groupPerms"), "group"),
    )


def _perms(entries: Any, what: str) -> dict[str, Perm]:
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise ConfigError(f"{what}Perms is no list: {entries!r}")
    found = {}
    for entry in entries:
        name, equals, perm = str(entry).partition("=")
        if not equals or "=" in perm:
            raise ConfigError(f"Parse resource permission failed for {what}:{entry}")
        found[name.strip()] = perm_of(perm)
    return found


def check_perms(entries: Iterable[str]) -> None:
    """Raise ConfigError unless each is ``name=permission``, as an operator's change must be."""
    for entry in entries:
        _, equals, perm = entry.partition("=")
        if not equals or "=" in perm:
            raise ConfigError(
                f"Parse Resource format error for {entry}.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            )
        if perm.strip() not in _PERMS and perm.strip() != "DENY":
            raise ConfigError(
                f"Parse resource permission error for {entry}.\n"
                "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
            )


_FILE_KEYS: Final = frozenset({"globalWhiteRemoteAddresses", "accounts", "dataVersion"})
_ACCOUNT_KEYS: Final = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)


def complaints(raw: Mapping[str, Any]) -> list[str]:
    """What of a file is without effect, as the original takes it: unknown keys, and permissions that are
    none and so DENY."""
    found = [f"{key} is no key of the file and has no effect" for key in raw if key not in _FILE_KEYS]
    for account in raw.get("accounts") or []:
        if isinstance(account, Mapping):
            name = account.get("accessKey")
            found += [f"account {name}: {text}" for text in _account_complaints(account)]
    return found


def _account_complaints(account: Mapping[str, Any]) -> Iterable[str]:
    for key in account:
        if key not in _ACCOUNT_KEYS:
            yield f"{key} is no key of an account and has no effect"
    for key in ("defaultTopicPerm", "defaultGroupPerm"):
        if account.get(key) and not _is_perm(str(account[key])):
            yield f"{key}: {account[key]} is no permission and counts as DENY"
    for key in ("topicPerms", "groupPerms"):
        listed = account.get(key)
        for entry in listed if isinstance(listed, list) else []:
            if not _is_perm(str(entry).partition("=")[2]):
                yield f"{key}: {entry} has no permission and counts as DENY"


def _is_perm(text: str) -> bool:
    return text.strip() in _PERMS or text.strip() == "DENY"


def acl_of(files: Iterable[Mapping[str, Any]]) -> PlainAcl:
    """All files as one; an AccessKey counts where it stands first. Raises ConfigError."""
    entries: list[White] = []
    accounts: dict[str, Account] = {}
    for raw in files:
        entries += [white(str(text)) for text in raw.get("globalWhiteRemoteAddresses") or []]
        for item in raw.get("accounts") or []:
            if not isinstance(item, Mapping):
                raise ConfigError(f"an account is no map of keys and values: {type(item).__name__}")
            account = account_of(item)
            accounts.setdefault(account.access_key, account)
    return PlainAcl(tuple(entries), accounts)
