"""Each run of a bench begins with free memory that is there, however much was written before.

A broker writes a gigabyte in eight seconds here. Once such files fill the memory, a page has to be taken
from one before another is written: a batch of 16 cost keelmq 3.4 us a message alone, and 7.2 us as the last
of fourteen works. And a virtual machine may give memory that is free back to its host: then a page costs a
fault of the host, which counts as the broker's time. Three brokers took 22 us a message so, and 12 without.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

_BLOCK: Final = bytes(1 << 20)
FREE_MIB: Final = 8192
"""More than one work of a bench writes, all sides together."""


def forget(folder: Path) -> None:
    """Write the files below it back, and drop what is in the page cache of them. Files that go meanwhile, as
    brokers replace theirs, are passed over."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.rglob("*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if path.is_file():
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except FileNotFoundError:
            continue
        finally:
            os.close(descriptor)


@contextmanager
def at_hand(mib: int = FREE_MIB) -> Iterator[None]:
    """Meanwhile so much free memory stays with this machine (at most half of what is available).

    It is used once, and all of it given back but one page of each MiB: only larger blocks go back to a host,
    and who needs memory gets of smaller blocks first.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        yield
        return
    mib = min(mib, psutil.virtual_memory().available >> 21)
    with mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        for _ in range(mib):
            room.write(_BLOCK)
        for at in range(0, mib << 20, 1 << 20):
            room.madvise(mmap.MADV_DONTNEED, at + mmap.PAGESIZE, (1 << 20) - mmap.PAGESIZE)
        yield
