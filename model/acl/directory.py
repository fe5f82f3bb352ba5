"""ACL 2.0: which users are there, what may each do, and who may change that?

The rules and words of RocketMQ's ``AuthenticationMetadataManagerImpl``, ``AuthorizationMetadataManagerImpl``
and the ``AUTH_*`` requests of its ``AdminBrokerProcessor``: only a super user makes, changes or deletes a
super user; policies are for users that exist, and go with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from model.acl.policies import (
    Lookup,
    Need,
    Policies,
    Resource,
    User,
    acl_to_json,
    denied,
    filtered,
    kind_of,
    policies_of,
    refuses,
    updated,
    without,
)
from model.codes import Response
from model.errors import Refused

USERS_MAX: Final = 2000
ENTRIES_MAX: Final = 500
VERDICTS_MAX: Final = 65536
NAME_CHARS_MAX: Final = 512  # of a longer name no verdict is remembered


class Directory:
    """Users and policies. ``on_change`` hears of each change; verdicts are remembered until the next.

    Holds: policies belong to users that exist; a user has a name and a password.
    """

    def __init__(self, users_max: int = USERS_MAX) -> None:
        self.users: dict[str, User] = {}
        self.acls: dict[str, Policies] = {}
        self.revision = 0
        self.changes = 0
        """Counted here, and never copied: two tables of one revision may differ, of one count they do not."""
        self.on_change: list[Callable[[], None]] = []
        self.on_moved: list[Callable[[str | None], None]] = []
        """Before ``on_change``: the user whose entry or policies are others; None: any may be."""
        self._users_max = users_max
        self._verdicts: dict[tuple[str, Need, str], str | None] = {}
        self._lookups: dict[str, Lookup] = {}

    # Decisions

    def authenticates(self, name: str | None, signed_with: Callable[[str], bool]) -> User:
        """The user who signed. Raises Refused. ``signed_with``: is the signature that of this password?"""
        if not name:
            raise denied("username cannot be null.")
        user = self.users.get(name)
        if user is None:
            raise denied(f"User:{name} is not found.")
        if not user.enabled:
            raise denied(f"User:{name} is disabled.")
        if not signed_with(user.password):
            raise denied("check signature failed.")
        return user

    def authorizes(self, name: str | None, needs: list[Need], address: str) -> bool:
        """Raises Refused unless the user may do all of this; whether a rule of theirs says so (a request that
        needs nothing is open to all). ``name``: proven, None where nothing is."""
        if not needs:
            return self.is_super(name)
        if name is None:
            raise denied("Authorization failed. Please verify your access rights and try again.")
        user = self.users.get(name)
        if user is None:
            raise denied(f"User:{name} not found.")
        if user.is_super:
            return True
        for need in needs:
            refused = self._verdict(name, need, address)
            if refused is not None:
                error = denied(refused)
                error.lacks = " or ".join(need.actions)
                raise error
        return True

    def _verdict(self, name: str, need: Need, address: str) -> str | None:
        key = (name, need, address)
        try:
            return self._verdicts[key]
        except KeyError:
            lookup = self._lookups.get(name)
            if lookup is None:
                lookup = self._lookups[name] = Lookup(self.acls.get(name))
            found = refuses(f"User:{name}", lookup, need, address)
        if len(need.name) <= NAME_CHARS_MAX:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            self._verdicts[key] = found
        return found

    def is_super(self, name: str | None) -> bool:
        user = self.users.get(name or "")
        return user is not None and user.is_super

    # Users

    def create_user(self, name: str | None, raw: Any, by_super: bool) -> None:
        raw = _asked(name, raw)
        if kind_of(raw.get("userType")) == "Super" and not by_super:
            raise Refused("The super user can only be create by super user", Response.SYSTEM_ERROR)
        password = raw.get("password")
        if not isinstance(password, str) or not password.strip():
            raise denied("password can not be blank")
        assert name is not None
        if name in self.users:
            raise denied("The user is existed")
        if len(self.users) >= self._users_max:
            raise Refused(f"there are {self._users_max} users: no more", Response.SYSTEM_ERROR)
        self.users[name] = User(name, password).changed(raw)
        self._changed(name)

    def update_user(self, name: str | None, raw: Any, by_super: bool) -> None:
        raw = _asked(name, raw)
        if kind_of(raw.get("userType")) == "Super" and not by_super:
            raise Refused("The super user can only be update by super user", Response.SYSTEM_ERROR)
        old = self.users.get(name or "")
        if old is None:
            raise denied("The user is not exist")
        _need_super(old, by_super)
        self.users[old.name] = old.changed(raw)
        self._changed(old.name)

    def delete_user(self, name: str | None, by_super: bool) -> None:
        if not (name or "").strip():
            raise denied("username can not be blank")
        user = self.users.get(name or "")
        if user is None:
            return
        _need_super(user, by_super)
        del self.users[user.name]
        self.acls.pop(user.name, None)
        self._changed(user.name)

    def get_user(self, name: str | None) -> User | None:
        if not (name or "").strip():
            raise Refused("The username is blank", Response.INVALID_PARAMETER)
        return self.users.get(name or "")

    def list_users(self, part: str | None) -> list[User]:
        part = (part or "").strip()
        return [user for name, user in sorted(self.users.items()) if part in name]

    def add_unless_there(self, name: str, password: str) -> bool:
        """A super user of the configuration; whether it was made."""
        if name in self.users:
            return False
        self.users[name] = User(name, password, "Super")
        self._changed(name)
        return True

    # Policies

    def put_acl(self, name: str | None, body: Any) -> None:
        """``createAcl`` and ``updateAcl``: they do the same."""
        new = policies_of(body)
        if name is None:
            raise denied("The subject type is null.")
        if name not in self.users:
            raise denied(f"The subject of User:{name} is not exist.")
        found = updated(self.acls.get(name, {}), new)
        if sum(map(len, found.values())) > ENTRIES_MAX:
            raise Refused(f"a user has at most {ENTRIES_MAX} entries", Response.SYSTEM_ERROR)
        self.acls[name] = found
        self._changed(name)

    def delete_acl(self, name: str | None, kind: str, resource: Resource | None) -> None:
        """The entry of one resource, or all that the user has."""
        old = self.get_acl(name)
        assert name is not None
        if old is None:
            raise denied("The acl is not exist.")
        left = {} if resource is None else without(old, kind, resource)
        if left:
            self.acls[name] = left
        else:
            del self.acls[name]
        self._changed(name)

    def get_acl(self, name: str | None) -> Policies | None:
        if name is None:
            raise denied("The subject is null.")
        if name not in self.users:
            raise denied("The subject is not exist.")
        return self.acls.get(name)

    def look_at_acls(
        self, subject: str | None, resource: str | None
    ) -> Iterator[tuple[str, Policies | None]]:
        """Each user who has policies: those that a list by these filters shows, None for none."""
        for name, policies in sorted(self.acls.items(), key=lambda item: item[0]):
            yield name, filtered(name, policies, subject or "", resource or "")

    # The table as a whole

    def to_json(self) -> dict[str, Any]:
        """Of the file, and of slaves' copies. It holds passwords: signatures are checked by them."""
        return {
            "revision": self.revision,
            "users": {name: user.to_json() for name, user in self.users.items()},
            "acls": {name: acl_to_json(name, policies) for name, policies in self.acls.items()},
        }

    def load(self, raw: Mapping[str, Any]) -> bool:
        """Become what ``to_json`` gave; whether anything differs. Raises ValueError naming the entry."""
        users = _users_in(raw.get("users"))
        known = raw.get("acls")
        if isinstance(known, Mapping):
            known = {name: acl for name, acl in known.items() if name in users}
        acls: dict[str, Policies] = dict(_parsed("acls", known, policies_of))
        same = (users, acls) == (self.users, self.acls)
        self.users, self.acls, self.revision = users, acls, int(raw.get("revision") or 0)
        if same:
            return False
        self._tell(None)
        return True

    def load_part(self, raw: Mapping[str, Any]) -> None:
        """Take the entries of the users named in ``part``; one without an entry has none any more. Raises
        ValueError, KeyError, TypeError."""
        users = _users_in(raw.get("users"))
        acls = _parsed("acls", raw.get("acls"), policies_of)
        for name in map(str, raw["part"]):
            self.users.pop(name, None)
            self.acls.pop(name, None)
            if name in users:
                self.users[name] = users[name]
                if name in acls:
                    self.acls[name] = acls[name]
            self._tell(name)
        self.revision = int(raw["revision"])

    def check_invariants(self) -> None:
        assert self.acls.keys() <= self.users.keys(), "policies belong to users that exist"
        assert all(name and user.password for name, user in self.users.items()), "a user has a password"

    def _changed(self, name: str) -> None:
        self.revision += 1
        self._tell(name)

    def _tell(self, name: str | None) -> None:
        self.changes += 1
        self._verdicts.clear()
        self._lookups.clear()
        for moved in self.on_moved:
            moved(name)
        for hook in self.on_change:
            hook()


_Parsed = TypeVar("_Parsed")


def _parsed(what: str, raw: Any, parse: Callable[[Any], _Parsed]) -> dict[str, _Parsed]:
    """No text of an entry is shown: it has secrets."""
    if raw is not None and not isinstance(raw, Mapping):
        raise ValueError(f"{what} is no object of entries by name")
    found = {}
    for name, entry in (raw or {}).items():
        try:
            found[str(name)] = parse(entry)
        except Refused as error:
            raise ValueError(f"{what}, {name}: {error}") from None
        except KeyError as error:
            raise ValueError(f"{what}, {name}: it lacks {error}") from None
        except (TypeError, ValueError, AttributeError):
            raise ValueError(f"{what}, {name}: it is no object of texts") from None
    return found


def _users_in(raw: Any) -> dict[str, User]:
    """What ``create_user`` would not make is no user in a file, either: an empty password is one that anybody
    signs with."""
    found = _parsed("users", raw, User.from_json)
    for name, user in found.items():
        if not name.strip():
            raise ValueError("users: a name is blank")
        if user.name != name:
            raise ValueError(f"users, {name}: its username is {user.name}")
        if not user.password.strip():
            raise ValueError(f"users, {name}: it has no password")
    return found


def _asked(name: str | None, raw: Any) -> Mapping[str, Any]:
    if not name:
        raise Refused("The username is blank", Response.INVALID_PARAMETER)
    if not name.strip():
        raise denied("username can not be blank")
    return raw if isinstance(raw, Mapping) else {}


def _need_super(user: User, by_super: bool) -> None:
    if user.is_super and not by_super:
        raise denied("The super user can only be update by super user")
