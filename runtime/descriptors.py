"""What does a process do when it has no descriptor left?

It holds some back. A file that must be opened takes one of them; while one is missing servers take no new
clients, and what is free again goes back first. So a store goes on where connections end.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

KEPT: Final = 16
"""A flush opens one file or directory at a time; those of a few threads come together."""
REFILL_S: Final = 0.5
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Spare:
    """Descriptors that nothing uses. None are held before ``keep``: only servers need them.

    In: ``open``, ``refill``. Out: ``short``. Holds: at most as many as are wanted.
    """

    def __init__(self) -> None:
        self.taken = 0
        """How often one was needed."""
        self._held: list[int] = []
        self._wanted = 0

    @property
    def short(self) -> bool:
        return len(self._held) < self._wanted

    def keep(self, count: int) -> None:
        """Hold so many from now on, as far as there are any."""
        self._wanted = count
        while len(self._held) > count:
            os.close(self._held.pop())
        self.refill()

    def open(self, opens: Callable[[], T]) -> T:
        """What ``opens`` returns, with one of these for it if there is no other. Raises OSError."""
        while True:
            try:
                return opens()
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self._give():
                    raise

    def _give(self) -> bool:
        try:
            descriptor = self._held.pop()
        except IndexError:
            return False
        if not self.taken:
            log.error("out of file descriptors (LimitNOFILE): new clients are refused until some are free")
        self.taken += 1
        os.close(descriptor)
        return True

    def refill(self) -> None:
        """Take back what was given, if it is free by now."""
        while self.short:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
                return
        if self.taken and self._wanted:
            log.warning("file descriptors are free again; %d files were opened without", self.taken)
            self.taken = 0


SPARE: Final = Spare()
"""Of this process."""
