"""How do users and policies get to a file, and to slaves, at their limits: 2,000 users with 500 entries each?

``config/auth.json`` (ours): ``{"acls": {user: AclInfo}, "revision", "users": {user: UserInfo}}``. A change
has the users it is about in ``part``; one without an entry has none any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.tables.moved import Moved
from model.acl.directory import Directory
from model.acl.policies import acl_to_json
from remoting.bodies import Members


class UserTable:
    """What of the directory changed, and how it is written; pure. No text is kept: it changes seldom.

    Holds: each user whose entry differs from that of a mark is named by ``since`` it, or all are.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._moved = Moved[str]()
        directory.on_moved.append(self._note)

    @property
    def mark(self) -> int:
        """Counts the changes; ``since`` takes one of its values."""
        return self._moved.mark

    def shown(self) -> dict[str, Any]:
        """``Directory.to_json`` as of this moment, each entry of which is made when it is written."""
        users, acls = self._directory.users, self._directory.acls
        return self._written(list(users), list(acls))

    def since(self, mark: int) -> dict[str, Any] | None:
        """What ``Directory.load_part`` needs to make a table as of ``mark`` this one; None when that cannot
        be told."""
        names = self._moved.since(mark)
        if names is None:
            return None
        users, acls = self._directory.users, self._directory.acls
        found = self._written([n for n in names if n in users], [n for n in names if n in acls])
        return {**found, "part": sorted(names)}

    def _written(self, users: Iterable[str], acls: Iterable[str]) -> dict[str, Any]:
        directory = self._directory
        found = [(name, directory.users[name]) for name in users]
        policies = [(name, directory.acls[name]) for name in acls]
        return {
            "revision": directory.revision,
            "users": Members((name, user.to_json()) for name, user in found),
            "acls": Members((name, acl_to_json(name, held)) for name, held in policies),
        }

    def _note(self, name: str | None) -> None:
        if name is None:
            self._moved.forget()
        else:
            self._moved.add([name])
