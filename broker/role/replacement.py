"""Should this master ask for a replacement, because another broker could serve and it cannot?

It can confirm nothing while too few slaves are heard, and takes nothing while its disk is full. The
Controllers hear it all the same, so to them it is well. It waits a moment for the trouble to pass, asks them
for another master, and again after a pause that grows. They look whether one can do better
(``controller.elections.step_downs``). Pure: time comes as ``now_ms`` (monotonic).
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from model.ids import BrokerId, Epoch

PAUSE_MS: Final = 1_000.0  # half of the Controllers' pause between two
PAUSE_MAX_MS: Final = 60_000.0
ASKING_MS: Final = 3_000.0  # an answer of the Controllers takes at most this long


class Trouble(enum.StrEnum):
    """Why a master cannot serve."""

    CUT_OFF = "it hears too few slaves for an acknowledgement"
    FULL = "its disk is full"


WAIT_MS: Final = {Trouble.CUT_OFF: 300.0, Trouble.FULL: 1_000.0}
"""Trouble that passes within this is not worth an election."""


class MasterFacts(NamedTuple):
    """One look at this broker. ``can_be_replaced``: it leads, and its Controllers depose on request."""

    can_be_replaced: bool
    epoch: Epoch
    cut_off: bool
    full: bool
    target: BrokerId | None  # the slave that would get all of the log

    @property
    def trouble(self) -> Trouble | None:
        if not self.can_be_replaced:
            return None
        if self.cut_off:
            return Trouble.CUT_OFF
        return Trouble.FULL if self.full and self.target is not None else None


class Replacement:
    """In: ``look``, ``on_refused``. Out: the trouble to ask for a replacement for, and ``keeps_set``."""

    def __init__(self) -> None:
        self._trouble: Trouble | None = None
        self._epoch: Epoch | None = None
        self._since_ms = 0.0
        self._not_before_ms = float("-inf")
        self._pause_ms = PAUSE_MS

    def look(self, facts: MasterFacts, now_ms: float) -> Trouble | None:
        """The trouble for which to ask now; the answer is an election, or ``on_refused``."""
        self._note(facts.trouble, facts.epoch, now_ms)
        trouble = self._trouble
        if trouble is None or now_ms < max(self._since_ms + WAIT_MS[trouble], self._not_before_ms):
            return None
        return trouble

    def on_refused(self, now_ms: float) -> None:
        """Nobody else can serve, or nobody answered."""
        self._not_before_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)

    def keeps_set(self, epoch: Epoch, now_ms: float) -> bool:
        """Whether members that are not heard stay in the set for now: without them no other broker could be
        elected. Asked when this master is found to be cut off, perhaps before ``look``: so it notes that."""
        self._note(Trouble.CUT_OFF, epoch, now_ms)
        bound_ms = self._since_ms + WAIT_MS[Trouble.CUT_OFF] + ASKING_MS
        return self._not_before_ms < self._since_ms and now_ms < bound_ms

    def _note(self, trouble: Trouble | None, epoch: Epoch, now_ms: float) -> None:
        if (trouble, epoch) == (self._trouble, self._epoch):
            return
        if trouble is None and now_ms > self._not_before_ms:
            self._pause_ms = PAUSE_MS  # it passed, and not because of the pause alone
        self._trouble, self._epoch, self._since_ms = trouble, epoch, now_ms
