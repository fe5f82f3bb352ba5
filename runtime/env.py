"""The only way out: clock, random source, network and disk that every part is handed.

Production wires these to asyncio and the operating system (``runtime.os_env``); simulation wires virtual
time, in-memory links and in-memory disks with a page cache that a power failure loses in part
(``chaos.worlds``). ``asyncio.sleep``, ``asyncio.timeout`` and ``loop.call_later`` may be used directly: they
follow the loop's clock, which is virtual under simulation. Wall-clock time, randomness, sockets, files and
threads may not.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, runtime_checkable

from runtime.report.events import EventLog

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of the file system a path lies on.

    ``total_bytes`` leaves out the blocks that are reserved for root, as ``df`` does for its percentage:
    counted as used, they would have old segments deleted, and writes refused, long before the disk is full.
    """

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """An open file. Calls raise OSError as the operating system would; none keeps a position."""

    @property
    def path(self) -> str: ...
    @property
    def descriptor(self) -> int | None:
        """For compiled code, which reads with ``pread`` as well; None: there is none, or it must not."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer only at the end of the file."""

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of ``data`` or raise OSError; what a failed call left behind is undefined."""

    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def allocate(self, size: int) -> None:
        """Grow to ``size`` bytes of zeros with the blocks reserved (ENOSPC now, not at a later write)."""

    def data_from(self, offset: int) -> tuple[int, int] | None:
        """Where the next bytes that may not be zeros begin and end, at or behind ``offset``; None when only
        zeros follow. What was preallocated and never written costs no reading."""

    def zero(self, offset: int, size: int) -> None:
        """Make bytes inside of the file zeros, as cheaply as the file system can, the blocks still reserved.
        A crash before the next ``sync`` leaves any part of them as it was."""

    def sync(self) -> None:
        """fdatasync. Blocks: call it through ``Env.offload`` while serving. After it raised, what was
        written since the last good sync may be lost: never retry it as if nothing had happened."""

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are ordinary strings; errors are OSError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless ``create``. Never truncates."""

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def size(self, path: str) -> int | None:
        """Bytes of a file, which is not opened: opening a device may do something. None: it is no regular
        file, but a folder, a pipe, or a device. Raises OSError."""

    def identity(self, path: str) -> Hashable:
        """The same for all names of one file or folder, through links as well. Raises OSError."""

    def listdir(self, path: str) -> list[str]:
        """Names in ``path``, sorted; empty when the directory does not exist."""

    def makedirs(self, path: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def rmtree(self, path: str) -> None: ...
    def replace(self, source: str, target: str) -> None: ...
    def keep_mode(self, source: str, target: str) -> None:
        """Give ``target``, which is to take the place of ``source``, its mode and owner, as far as this
        process may. Nothing happens when there is no ``source``."""

    def sync_dir(self, path: str) -> None:
        """Make names created, replaced and removed in ``path`` durable. Blocks."""

    def sync_all(self, path: str) -> None:
        """Make everything written under the directory ``path`` durable, contents and names: cheaper than one
        sync each for thousands of files, but it may wait for what others wrote as well. Blocks."""

    def mtime_ms(self, path: str) -> int: ...
    def usage(self, path: str) -> DiskUsage: ...
    def lock(self, path: str) -> Lock:
        """Take the one-process lock on ``path`` (created when absent). Raises BlockingIOError if held."""


class Lock(Protocol):
    def release(self) -> None: ...


class Listener(Protocol):
    @property
    def port(self) -> int: ...
    def close(self) -> None:
        """Stop accepting; connections already made go on."""


class Network(Protocol):
    """TCP as asyncio's Protocol API. Transports are asyncio.Transport in production and act like one in
    simulation: write, writelines, close, abort, is_closing, get_extra_info('peername'|'sockname'),
    pause_reading, resume_reading, get_write_buffer_size, set_write_buffer_limits; the protocol gets
    connection_made, data_received or get_buffer/buffer_updated, eof_received, connection_lost,
    pause_writing, resume_writing."""

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, shared: bool = False
    ) -> Listener:
        """Port 0 picks a free one. Others of this user may listen at the same place when all of them say
        ``shared``; each connection goes to one of them. Raises OSError."""

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, timeout_s: float = 3.0
    ) -> tuple[asyncio.Transport, P]:
        """Raises OSError; a connect that takes longer than ``timeout_s`` raises TimeoutError (an OSError)."""


@runtime_checkable
class FollowsFiles(Protocol):
    """A network whose files may change. Who holds it for long has it look at them again and again: new
    connections use what they say."""

    async def look(self, env: Env) -> None: ...


class Env(Protocol):
    """One node's world."""

    @property
    def disk(self) -> Disk: ...
    @property
    def network(self) -> Network: ...
    @property
    def ha_network(self) -> Network:
        """Of links between the brokers of a group: TLS may be on in one of the two only."""

    @property
    def random(self) -> random.Random: ...
    @property
    def events(self) -> EventLog: ...
    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back and counts on while the machine is suspended (which
        the event loop's does not: the two are not compared). Works outside a running loop too."""

    def boot_id(self) -> str:
        """The same as long as the machine did not lose its memory: what processes wrote without a sync is
        still there while it is the same. Empty where the system does not tell."""

    def memory_bytes(self) -> int:
        """The machine's memory, or what the container may have of it."""

    async def offload(self, call: Callable[[], T]) -> T:
        """Run a blocking call off the loop (a thread in production) and return its result."""


def read_file(disk: Disk, path: str) -> bytes:
    """The whole content of ``path``; FileNotFoundError when absent."""
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


_SMALL_BYTES: Final = 64 * 1024

Stamp = tuple[int, int, int]


def stamp(disk: Disk, path: str) -> Stamp | None:
    """What shows that a file changed: its time, its size, and of a small one a checksum, as two writes within
    a tick of the clock may leave time and size as they were. None when it cannot be read. Blocks."""
    try:
        file = disk.open(path)
    except OSError:
        return None
    try:
        size = file.size()
        return disk.mtime_ms(path), size, zlib.crc32(file.pread(size, 0)) if size <= _SMALL_BYTES else 0
    except OSError:
        return None
    finally:
        file.close()


def write_file(disk: Disk, path: str, data: bytes, *, backup: bool = False) -> None:
    """Replace ``path`` by ``data`` so that a crash leaves the old or the new content, never a mix; mode and
    owner stay.

    With ``backup`` the former content stays as ``path.bak``, as RocketMQ's files do. Blocks on two syncs.
    """
    directory = path.rpartition("/")[0] or "."
    temporary = path + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        disk.keep_mode(path, temporary)
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    if backup and disk.exists(path):
        # A copy, not a rename: there is no moment without a current file.
        former = disk.open(path + ".bak.tmp", create=True)
        try:
            former.truncate(0)
            disk.keep_mode(path, path + ".bak.tmp")
            former.pwrite(read_file(disk, path), 0)
            former.sync()
        finally:
            former.close()
        disk.replace(path + ".bak.tmp", path + ".bak")
    disk.replace(temporary, path)
    disk.sync_dir(directory)
