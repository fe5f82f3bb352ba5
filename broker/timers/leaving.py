"""Which slots of the timer wheel may leave now? Times and queue offsets in, answers out.

One that is over by the clock of now, once all is read that may recall a message of it: what was in the log
when it was over, and what was written anew (rolled) since by a slot before it.
"""

from __future__ import annotations

from broker.timers.core import LONG_MAX


class Leaving:
    """Holds: a slot that is not over by the clock of now does not leave, whatever the clock said before."""

    def __init__(self) -> None:
        self.before_ms = 0
        """Slots before it may leave ..."""
        self._must_read = 0  # ... once the wheel has all below this queue offset
        self._rolled_ms = LONG_MAX  # the first slot for which something behind that rolled

    def on_turn(self, slot_ms: int, now_ms: int, end: int) -> bool:
        """Whether ``slot_ms``, the next one, is over; ``end``: the next queue offset of the timer topic."""
        if self.before_ms > now_ms:
            # The clock went back. Slots before that are not over any more, and before they are again some of
            # theirs may be recalled.
            self.before_ms = 0
        if slot_ms >= now_ms:
            return False
        if slot_ms >= self.before_ms:
            self.before_ms = now_ms
            self._read_all(end)
        return True

    def may(self, slot_ms: int, now_ms: int, read: int, end: int) -> bool:
        """Whether the next slot may leave in the same turn; ``read``: up to where the wheel has all."""
        if slot_ms >= self._rolled_ms:
            self._read_all(end)
        return read >= self._must_read and self.is_over(slot_ms, now_ms)

    def is_over(self, slot_ms: int, now_ms: int) -> bool:
        """The clock may have gone back while others of the same turn left."""
        return slot_ms < min(self.before_ms, now_ms)

    def on_rolled(self, slot_ms: int) -> None:
        """A message of that slot was written anew."""
        self._rolled_ms = min(self._rolled_ms, slot_ms)

    def _read_all(self, end: int) -> None:
        self._must_read = end
        self._rolled_ms = LONG_MAX
