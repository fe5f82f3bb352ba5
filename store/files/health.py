"""May the store take writes, and if not, why?

A full disk refuses writes until space returns, a process without descriptors until some are free: opening a
file touched nothing. A failed sync, or any other failed write, is for ever: after
it nobody knows what the disk holds, so nothing is flushed past it and it is never retried as a success.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from model.errors import DiskError
from runtime.descriptors import OUT_OF_DESCRIPTORS

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSES: Final = OUT_OF_DESCRIPTORS | FULL


class Health:
    """The reasons against writing; ``on_broken`` hears the first error that is for ever."""

    def __init__(self) -> None:
        self.broken: str | None = None
        self.silent = True  # while opening and closing, when calls may run off the loop, no hook is called
        self.on_broken: list[Callable[[DiskError], None]] = []
        self.on_sync_failed: Callable[[], None] = lambda: None
        """Called after ``on_broken``, in the thread of the sync, also while ``silent``."""
        self.before_sync: Callable[[Callable[[], int]], None] = lambda end: None
        """Asks where the log ends before each sync of it, in that thread: should the sync fail when nobody is
        left to hear of it, a start is to know what there was. Raises OSError: the log is not to be synced."""
        self.before_cut: Callable[[int], None] = lambda end: None
        """Hears where the log is about to end. Raises OSError."""
        self.on_full: list[Callable[[], None]] = []
        """Called when space begins to lack."""
        self.why_not_writable: str | None = None
        """None, or why writes are refused."""
        self._full: dict[str, str] = {}

    def _weigh(self) -> None:
        """What speaks against writing may be another."""
        self.why_not_writable = self.broken or next(iter(self._full.values()), None)

    @property
    def out_of_space(self) -> bool:
        """Did a write or an allocation fail for lack of space, and none succeed since?"""
        return any(what != "ratio" for what in self._full)

    def full(self, what: str, text: str) -> None:
        self._full[what] = text
        self._weigh()

    def is_full(self, what: str) -> bool:
        return what in self._full

    def room(self, what: str) -> None:
        """Space returned for ``what``."""
        self._full.pop(what, None)
        self._weigh()

    def failed(self, error: OSError, doing: str, *, sync: bool = False) -> DiskError:
        """Note that ``doing`` failed and return the DiskError to raise.

        Lack of space or of descriptors passes, except in a sync: after that the pages are lost whatever the
        reason was.
        """
        text = f"{doing} failed: {error.strerror or error}"
        if error.errno in _PASSES and not sync:
            had_room = not self.out_of_space
            self._full[doing] = text
            self._weigh()
            if had_room and error.errno not in OUT_OF_DESCRIPTORS:
                for hook in self.on_full:
                    hook()
            return DiskError(text)
        try:
            return self.broke(text)  # first: another broker is to lead, however long this disk takes
        finally:
            if sync:
                self.on_sync_failed()

    def broke(self, text: str) -> DiskError:
        """Note an error that is for ever and return it."""
        problem = DiskError(text)
        if self.broken is None:
            self.broken = text
            self._weigh()
            for hook in () if self.silent else self.on_broken:
                hook(problem)
        return problem
