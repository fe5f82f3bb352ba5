"""ACL 2.0: may a user do this to a topic, a group or the cluster? Resources, policies, and the decision.

RocketMQ's ``auth/authorization``: of the entries whose resource, action and source match, the custom policy
goes before the default one, a type before ``*``, a name before a prefix, a longer prefix before a shorter
one, and these before ``Topic:*``. No entry: no.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from model.acl.addresses import from_source, is_source
from model.codes import Response
from model.errors import Refused

TYPES: Final = ("Unknown", "Any", "Cluster", "Namespace", "Topic", "Group")
ACTIONS: Final = ("Unknown", "All", "Any", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
POLICY_TYPES: Final = ("Custom", "Default")
DECISIONS: Final = ("Allow", "Deny")
USER: Final = "User"

_TYPE_OF: Final = {name.lower(): name for name in TYPES}
_ACTION_OF: Final = {name.lower(): name for name in ACTIONS}
_POLICY_OF: Final = {name.lower(): name for name in POLICY_TYPES}
_DECISION_OF: Final = {name.lower(): name for name in DECISIONS}


def denied(text: str) -> Refused:
    """How the original answers what its authentication or authorization objects to."""
    return Refused(text, Response.NO_PERMISSION)


@dataclass(frozen=True, slots=True)
class Resource:
    """``*``, ``Type:*``, ``Type:name`` or ``Type:prefix*``. ``name`` None: any."""

    kind: str
    name: str | None = None
    prefixed: bool = False

    @classmethod
    def of(cls, key: str | None) -> Resource | None:
        """None when the text names no resource."""
        if key is None or not key.strip():
            return None
        if key == "*":
            return cls("Any")
        kind, _, name = key.partition(":")
        found = _TYPE_OF.get(kind.lower())
        if found is None:
            return None
        if name == "*":
            return cls(found)
        if name.endswith("*"):
            # Before nothing but stars stands no prefix: as ``Type:*``, which is also how it would be written.
            prefix = name.partition("*")[0]
            return cls(found, prefix, prefixed=True) if prefix else cls(found)
        return cls(found, name)

    def __str__(self) -> str:
        if self.kind == "Any":
            return "*"
        return f"{self.kind}:{'*' if self.name is None else self.name + '*' * self.prefixed}"

    def covers(self, kind: str, name: str) -> bool:
        if self.kind == "Any":
            return True
        if self.kind != kind:
            return False
        return self.name is None or (name.startswith(self.name) if self.prefixed else name == self.name)

    @property
    def rank(self) -> tuple[int, int, int]:
        """The lowest of those that match decides."""
        width = 2 if self.name is None else int(self.prefixed)
        return (self.kind == "Any", width, -len(self.name or "") if width == 1 else 0)


@dataclass(frozen=True, slots=True)
class Need:
    """What a request wants of one resource: one of ``actions`` is enough."""

    kind: str
    name: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """What is decided about one resource."""

    resource: Resource
    actions: tuple[str, ...]
    sources: tuple[str, ...]
    allow: bool

    def matches(self, need: Need, address: str) -> bool:
        return (
            self.resource.covers(need.kind, need.name)
            and bool(self.actions)
            and ("All" in self.actions or not set(need.actions).isdisjoint(self.actions))
            and (not self.sources or any(from_source(address, source) for source in self.sources))
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "resource": str(self.resource),
            "actions": list(self.actions),
            "sourceIps": list(self.sources) or None,
            "decision": "Allow" if self.allow else "Deny",
        }


Policies = Mapping[str, tuple[Entry, ...]]
"""Entries by the type of their policy, Custom and Default, in the order they were made."""


class Lookup:
    """The policies of one user, found by what they are about: of 500 entries a name meets a few."""

    def __init__(self, policies: Policies | None) -> None:
        self._wide: dict[str, list[Entry]] = {kind: [] for kind in POLICY_TYPES}  # *, Type:*
        self._named: dict[tuple[str, str, bool, str], list[Entry]] = {}
        lengths: set[int] = set()
        for policy, entries in (policies or {}).items():
            for entry in entries:
                about = entry.resource
                if about.name is None:
                    self._wide.setdefault(policy, []).append(entry)
                    continue
                self._named.setdefault((policy, about.kind, about.prefixed, about.name), []).append(entry)
                if about.prefixed:
                    lengths.add(len(about.name))
        self._prefix_lengths = sorted(lengths)

    def matching(self, need: Need, address: str) -> list[Entry]:
        """The entries that decide: those of the custom policy, else those of the default one."""
        named, kind, name = self._named, need.kind, need.name
        for policy in POLICY_TYPES:
            found = [*self._wide[policy], *named.get((policy, kind, False, name), ())]
            for length in self._prefix_lengths:
                if length <= len(name):
                    found += named.get((policy, kind, True, name[:length]), ())
            matching = [entry for entry in found if entry.matches(need, address)]
            if matching:
                return matching
        return []


def refuses(subject: str, policies: Lookup, need: Need, address: str) -> str | None:
    """Why ``subject`` may not do this, in the original's words, or None."""
    matching = policies.matching(need, address)
    best = min(matching, key=lambda entry: (entry.resource.rank, not entry.allow), default=None)
    if best is not None and best.allow:
        return None
    detail = "no matched policies." if best is None else "the decision is deny."
    return f"{subject} has no permission to access {need} from {address}, {detail}"


def updated(old: Policies, new: Policies) -> dict[str, tuple[Entry, ...]]:
    """``old`` with the entries of ``new``, which replace those of the same resource."""
    found = dict(old)
    for kind, entries in new.items():
        merged = {entry.resource: entry for entry in found.get(kind, ())}
        merged.update({entry.resource: entry for entry in entries})
        found[kind] = tuple(merged.values())
    return found


def without(old: Policies, kind: str, resource: Resource) -> dict[str, tuple[Entry, ...]]:
    """``old`` without the entry of one resource; a policy without entries is none."""
    found = dict(old)
    left = tuple(entry for entry in found.pop(kind, ()) if entry.resource != resource)
    return found | {kind: left} if left else found


def subject_of(key: str | None) -> str | None:
    """The user a subject names (``User:name``), or None."""
    kind, _, name = (key or "").partition(":")
    return name if kind.lower() == USER.lower() else None


def policies_of(body: Any) -> dict[str, tuple[Entry, ...]]:
    """The policies of a request's body (``AclInfo``). Raises Refused with the original's words."""
    raw = body.get("policies") if isinstance(body, Mapping) else None
    if not isinstance(raw, list) or not raw:
        raise denied("The body of acl is null")
    found: dict[str, tuple[Entry, ...]] = {}
    for policy in raw:
        entries = policy.get("entries") if isinstance(policy, Mapping) else None
        if not isinstance(entries, list) or not entries:
            continue
        kind = _POLICY_OF.get(str(policy.get("policyType")).lower(), "Custom")
        found[kind] = (*found.get(kind, ()), *map(_entry, entries))
    if not found:
        raise denied("The policies is empty.")
    return found


def _entry(raw: Any) -> Entry:
    if not isinstance(raw, Mapping):
        raise denied("The resource is null.")
    resource = Resource.of(_text(raw.get("resource")))
    if resource is None:
        raise denied("The resource is null.")
    actions = tuple(filter(None, (_ACTION_OF.get(str(a).lower()) for a in _texts(raw.get("actions")))))
    if not actions:
        raise denied("The actions is empty.")
    if "Any" in actions:
        raise denied("The actions can not be Any.")
    sources = tuple(_texts(raw.get("sourceIps")))
    if any(not source.strip() for source in sources):
        raise denied("The source ip is empty.")
    if not all(map(is_source, sources)):
        raise denied("The source ip is invalid.")
    decision = _DECISION_OF.get(str(raw.get("decision")).lower())
    if decision is None:
        raise denied("The decision is null or illegal.")
    return Entry(resource, actions, sources, decision == "Allow")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def policy_type(text: str | None) -> str:
    """The type of policy a request names; without one it is Custom."""
    return _POLICY_OF.get((text or "").lower(), "Custom")


def acl_to_json(user: str, policies: Policies) -> dict[str, Any]:
    """``AclInfo``, as it travels and is stored."""
    return {
        "subject": f"{USER}:{user}",
        "policies": [
            {"policyType": kind, "entries": [entry.to_json() for entry in entries]}
            for kind, entries in policies.items()
        ],
    }


def filtered(
    user: str, policies: Policies, subject: str, resource: str
) -> dict[str, tuple[Entry, ...]] | None:
    """What a list by these filters shows of one user's policies, or None."""
    key = f"{USER}:{user}"
    if subject.strip() and subject not in key:
        return None
    if not resource.strip() or resource in key:
        return dict(policies) or None
    shown = {
        kind: tuple(entry for entry in entries if resource in str(entry.resource))
        for kind, entries in policies.items()
    }
    return {kind: entries for kind, entries in shown.items() if entries} or None


# Users


@dataclass(frozen=True, slots=True)
class User:
    """Who may sign. ``kind`` Super may do everything."""

    name: str
    password: str
    kind: str = "Normal"
    enabled: bool = True

    def __repr__(self) -> str:  # a log line never shows the password
        return f"User({self.name!r}, {self.kind}, {'enable' if self.enabled else 'disable'})"

    @property
    def is_super(self) -> bool:
        return self.kind == "Super"

    def to_json(self) -> dict[str, Any]:
        """``UserInfo``, as it travels and is stored."""
        return {
            "username": self.name,
            "password": self.password,
            "userType": self.kind,
            "userStatus": "enable" if self.enabled else "disable",
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> User:
        return cls(
            str(raw["username"]),
            str(raw.get("password") or ""),
            kind_of(raw.get("userType")) or "Normal",
            status_of(raw.get("userStatus")) is not False,
        )

    def changed(self, raw: Mapping[str, Any]) -> User:
        """With what a request (``UserInfo``) says of it; what it leaves out stays."""
        password, kind, status = (
            raw.get("password"),
            kind_of(raw.get("userType")),
            status_of(raw.get("userStatus")),
        )
        user = self
        if isinstance(password, str) and password.strip():
            user = replace(user, password=password)
        if kind is not None:
            user = replace(user, kind=kind)
        return user if status is None else replace(user, enabled=status)


def kind_of(text: Any) -> str | None:
    return {"super": "Super", "normal": "Normal"}.get(str(text).lower())


def status_of(text: Any) -> bool | None:
    return {"enable": True, "disable": False}.get(str(text).lower())
