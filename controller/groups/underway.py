"""How far is one election that is under way?

(``election.py`` sees to the elections of all groups, ``elect.py`` says who wins one.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controller.groups.asking import Inquiry
from controller.groups.prospects import OWN, Wish

NEVER: Final = float("inf")


class Phase(StrEnum):
    STEPPING_DOWN = "stepping down"  # the master was asked to hand over
    ASKING = "asking"
    PAUSING = "pausing"  # the master may be back in a moment; then the candidates are asked again
    PROPOSING = "proposing"
    RETRYING = "retrying"  # the proposal failed; then all of it once more


@dataclass(slots=True)
class Election:
    """One that is under way. ``ticket`` None: this Controller's own. ``asked_ms``: when the candidates were
    asked for the last time. ``full``: said that they take no messages.
    ``missed``: something happened meanwhile that may let another be elected."""

    wish: Wish = OWN
    ticket: int | None = None
    phase: Phase = Phase.ASKING
    inquiry: Inquiry | None = None
    due_ms: float = NEVER
    asked_ms: float = 0.0
    back_until_ms: float = 0.0
    answered: frozenset[int] | None = None
    full: frozenset[int] = frozenset()
    attempt: int = 0
    handed_over: bool = False
    all_of_them: bool = False
    missed: bool = False

    @property
    def compares(self) -> bool:
        """An operator names the transfer target, and no master said that it has everything."""
        return self.wish.designate and not self.handed_over

    def check(self, name: str) -> None:
        """Raise if this election of the group ``name`` can neither go on nor end."""
        asking, phase = self.inquiry is not None, self.phase
        assert asking == (phase is Phase.ASKING), f"{name}: candidates are asked in no other phase"
        waits = phase in (Phase.ASKING, Phase.PAUSING, Phase.RETRYING)
        assert waits == (self.due_ms < NEVER), f"{name}: {phase}, and nothing makes it go on"
        requested = self.ticket is not None
        assert requested or phase is not Phase.STEPPING_DOWN, f"{name}: only a request drains a master"
