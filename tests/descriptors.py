"""A process that has no descriptor left."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from typing import Final

import pytest

SPARE: Final = 16  # descriptors the process may take before it has none left


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Within it no file can be opened and no connection accepted by this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + SPARE, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            held.extend(iter(lambda: os.dup(0), -1))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
