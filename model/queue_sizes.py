"""How large are the files of a store's queues, when no configuration is at hand?

A file is named by the byte of its queue at which it begins: a multiple of that size. A broker makes no longer
ones; one that was cut, or that a full disk stopped, is shorter. So no single file tells: what most of them
have does, and how far apart the names of two files in a row are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from model.config import StoreConfig

USUAL: Final = StoreConfig.queue_file_bytes
"""What brokers have unless they are told: one file of this size is as good as two of another."""
SURE: Final = 2
ENTRY_BYTES: Final = 20


class File(Protocol):
    """One of a queue: where its name says that it begins, and how long it is, bytes."""

    @property
    def start(self) -> int: ...
    @property
    def size(self) -> int: ...


class Told(NamedTuple):
    """``size``: of each file, bytes; 0: nothing tells. ``sure``: more than one thing tells it, or who runs
    the store does."""

    size: int
    sure: bool


Files = Sequence[Sequence[File]]
"""Those of each queue, oldest first."""


def told_by(queues: Files) -> Told:
    """What files say.

    files (name:size)            size    because
    0:400 400:400                400     both have it, and the names say so
    0:200 400:400 | 0:400        400     a file was cut
    0:800 400:400 | 0:400        400     a broker makes no longer ones: zeros were written behind it
    0:0 400:0                    400     the names
    0:200                        200     not sure: it may have been cut
    """
    votes: Counter[int] = Counter()
    files = [file for queue in queues for file in queue]
    for file in files:
        votes[file.size] += SURE if file.size == USUAL else 1
    for queue in queues:
        votes.update(after.start - before.start for before, after in pairwise(queue))
    ranked = sorted(
        ((count - _against(size, files), size) for size, count in votes.items() if _may_be(size)),
        reverse=True,
    )
    if not ranked or ranked[0][0] <= 0:
        return Told(0, False)
    count, size = ranked[0]
    return Told(size, votes[size] >= SURE and (len(ranked) == 1 or ranked[1][0] < count))


def _may_be(size: int) -> bool:
    return size > 0 and size % ENTRY_BYTES == 0


def _against(size: int, files: Iterable[File]) -> int:
    """The files that no broker with this size opens."""
    return sum(1 for file in files if not opens(size, file))


def opens(size: int, file: File) -> bool:
    """Does a broker with this size open such a file?"""
    return file.size <= size and file.start % size == 0
