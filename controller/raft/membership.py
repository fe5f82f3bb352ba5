"""When may a member without a vote get one, and when may a member be replaced?

It may have forgotten a vote, or a decision only it and one other held. So it is admitted once it holds every
decision, and once others confirmed, after it began, that nobody leads a later term than this leader: a read
(``controller.raft.reads``).

A replacement makes a seat vacant at once (``controller.raft.seats``). It needs a majority of all members that
vote and answer, without that seat, and there is one at a time. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.raft.calls import Done
from controller.raft.seats import Seats


class Membership:
    """The seats, and the members that answer this leader. ``voting``: those that said, on the link there is,
    that they are admitted. ``vacated``: replaced ones whose link has not ended yet."""

    def __init__(self) -> None:
        self.seats = Seats()
        self.voting: set[str] = set()
        self.vacated: set[str] = set()
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
        self.voting.discard(member)

    def is_replaced(self, member: str, incarnation: int | None) -> bool:
        """Whether another incarnation of ``member`` counts than the one that was admitted."""
        return incarnation is not None and incarnation < self.seats.incarnation(member)

    def why_not_replace(
        self, old: str, others: set[str], answering: set[str], commit: int, *, lost: bool
    ) -> str | None:
        """Why the leader may not replace ``old`` now, and what to do; None = it may. ``answering``: other
        members that answered lately. ``lost``: ``old`` counts as lost, also when it answers."""
        open_change = self.seats.open_change(commit)
        if open_change is not None:
            return f"the replacement of {open_change.node_id} is not committed yet; try again"
        for node_id in sorted(self.seats.current.keys() & others - {old}):
            if node_id not in self.voting:
                return (
                    f"{node_id} was replaced and does not vote yet: one change at a time. Start it, or "
                    f"replace {node_id} again if its new machine is lost"
                )
        without = sorted((self.voting & answering) - {old})
        count = len(others) + 1
        if (len(without) + 1) * 2 <= count:
            return (
                f"without {old} only {len(without) + 1} of {count} Controllers vote and answer "
                f"({', '.join(['this one', *without])}); a majority must. Bring another one back first"
            )
        if not lost and old in self.voting & answering:
            return (
                f"{old} answers, and would have no vote any more: end it first, or say --yes to replace it"
                " all the same"
            )
        return None
