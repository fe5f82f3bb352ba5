"""Each run of a bench begins with free memory that is there, however much was written before.

A broker writes a gigabyte in eight seconds here. Once such files fill the memory, a page has to be taken
from one before another is written: a batch of 16 cost keelmq 3.4 us a message alone, and 7.2 us as the last
of fourteen works. A virtual machine may have given memory that is free back to its host: then a page costs a
fault of the host, which counts as the broker's time.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

_BLOCK: Final = bytes(1 << 20)


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


def touch(mib: int) -> None:
    """Use so much memory for a moment. Who needs some next gets it first: it was the last that came free."""
    with mmap.mmap(-1, mib << 20) as room:
        for _ in range(mib):
            room.write(_BLOCK)
