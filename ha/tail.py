"""Does a slave's log end with what its master has there? Asked where no epochs tell: without a Controller,
and of what was written in such a time.

A master that lost its end (a power failure) and wrote on would otherwise go on in the middle of a record of a
slave that still has it. So the slave's first report names an offset before its end, and what comes from there
must be what it has. A log that differs only further back is found by ``keelmq audit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from model.errors import MqError

if TYPE_CHECKING:
    from store.message_store import MessageStore

COMPARE_BYTES: Final = 64 * 1024
"""Enough for several records, or for the header of a large one."""
COMPARE_WAIT_MS: Final = 5000
"""A master that is short of its budget for slaves sends empty frames meanwhile, but not for so long."""


def classic_from(store: MessageStore) -> int | None:
    """From where on what the log holds belongs to no epoch; None: all of it does."""
    if not store.epochs.entries:
        return store.log.min_offset if store.log.end > store.log.min_offset else None
    start = store.epochs.classic_from
    return start if start is not None and start < store.log.end else None


class NeedsReseedError(MqError):
    """This log cannot be continued from the master's, which ends at ``master_end``; only an empty one can.

    The text says why.
    """

    def __init__(self, text: str, master_end: int) -> None:
        super().__init__(text)
        self.master_end = master_end


class Tail:
    """The end of one slave's log while a link begins."""

    def __init__(self, store: MessageStore, segment_bytes: int, begin: int | None = None) -> None:
        """``begin``: the master has the log from there on; None: perhaps only the segment our log ends in."""
        self._store = store
        self._end = end = store.log.end
        # Not before the segment, which may be the first one the master has; and 0 would say "empty".
        back = min(COMPARE_BYTES, end % segment_bytes or (0 if begin is None else segment_bytes))
        self.at = min(max(end - back, begin or 0, store.log.min_offset, 1), end)
        """So far it was compared, and this is what the master is told."""
        self._waiting_ms: float | None = None

    @property
    def compared(self) -> bool:
        return self.at >= self._end

    def take(self, body: bytes, now_ms: float) -> int:
        """Compare ``body``, the master's bytes at ``at``; how many of them the slave has.

        Raises NeedsReseedError: it has others, or the master has none.
        """
        theirs = body[: self._end - self.at]
        if self.compared:
            return 0
        if not theirs:
            self._waiting_ms = now_ms if self._waiting_ms is None else self._waiting_ms
            if now_ms - self._waiting_ms >= COMPARE_WAIT_MS:
                raise NeedsReseedError(
                    f"our log ends at {self._end}, the master has nothing behind {self.at}:"
                    " it is not the log we copied",
                    self.at,
                )
            return 0
        self._waiting_ms = None
        stop = self.at + len(theirs)
        ours = self._store.log.read(self.at, len(theirs))
        if ours != theirs and not self._store.damage.overlaps(self.at, stop):
            equal = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
            raise NeedsReseedError(
                f"our log, which ends at {self._end}, differs from the master's at {self.at + equal}:"
                " one of the two lost its end and wrote on",
                self.at + equal,
            )
        self.at = stop
        return len(theirs)
