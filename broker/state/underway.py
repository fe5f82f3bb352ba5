"""How much that clients sent is kept until somebody else has answered, or a state has changed?

A request that waits keeps its header and its body. What waits by a client's will is counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from remoting.codec import Command
from runtime import sizes
from runtime.sizes import text_bytes

EACH_BYTES: Final = 4 << 10
"""What a request that waits takes beside what it brought."""


def size_of(command: Command) -> int:
    """What is kept of ``command`` while it waits."""
    ext = sum(text_bytes(name) + text_bytes(value) for name, value in command.ext.items())
    return EACH_BYTES + 2 * sizes.EACH_BYTES * len(command.ext) + ext + len(command.body)


class Underway:
    """Counts what waits: at most ``count_max`` at once, and ``bytes_max`` of all unless it is one alone."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.size_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        return not self.count or (
            self.count < self._count_max and self.size_bytes + size_bytes <= self._bytes_max
        )

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """``size_bytes`` wait within."""
        self.count += 1
        self.size_bytes += size_bytes
        try:
            yield
        finally:
            self.count -= 1
            self.size_bytes -= size_bytes
