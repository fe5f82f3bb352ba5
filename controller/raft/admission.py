"""When may a member without a vote get one?

It may have forgotten a vote, or a decision only it and one other held. So it is admitted once it holds every
decision, and once others confirmed, after it began, that nobody leads a later term than this leader: a read
(``controller.raft.reads``). Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.raft.calls import Done


class Admission:
    """The members without a vote that answer this leader."""

    def __init__(self) -> None:
        self._asking: dict[str, object] = {}  # member -> the read made for it
        self._confirmed: set[str] = set()  # members that began before such a read ended

    def is_confirmed(self, member: str) -> bool:
        """Whether others confirmed this leader after ``member`` began."""
        return member in self._confirmed

    def ask(self, member: str, read: Callable[[Done], None]) -> None:
        """Begin a read for ``member``, unless one is under way."""
        if member in self._asking:
            return
        mark = self._asking[member] = object()

        def done(_result: Any, why: str | None) -> None:
            # The link may have ended meanwhile: then the member may have begun anew since.
            if self._asking.get(member) is mark:
                del self._asking[member]
                if why is None:
                    self._confirmed.add(member)

        read(done)

    def link_ended(self, member: str) -> None:
        """It may come back with an empty directory."""
        self._asking.pop(member, None)
        self._confirmed.discard(member)
