"""The production world: asyncio sockets, the operating system's files, the wall clock."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import random
import shutil
import socket
import stat
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from runtime import native
from runtime.descriptors import SPARE
from runtime.env import Buffer, Disk, DiskUsage, Listener, Network, P
from runtime.report.events import Event, EventLog

T = TypeVar("T")

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
"""Linux makes it anew at each boot (random(4)); containers see their host's."""
MEMORY_MAX: Final = "/sys/fs/cgroup/memory.max"
"""A container's limit, which its page cache counts against (cgroups(7), version 2); hosts have none."""
ACCEPTS_A_TURN: Final = 16
"""asyncio accepts so many connections in one turn, and tells of so many it could not: with no descriptor
left a hundred tracebacks a port and second held the loop up for longer than an election takes."""
BACKLOG: Final = 1024
"""Connections the kernel keeps until they are accepted; its own limit is net.core.somaxconn."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""clock_gettime(2): as CLOCK_MONOTONIC, but it counts on while the machine is suspended: a lease that was
granted before must be over then. Other systems have only the first."""


def _clock_ms(clock: int) -> float:
    return time.clock_gettime_ns(clock) / 1e6


_module: Final = native.module()
_monotonic_ms: Final[partial[float]] = partial(_clock_ms if _module is None else _module.clock_ms, _CLOCK)
"""A broker's turn asks a dozen times: compiled, it is no call of Python."""

_FALLOC_FL_KEEP_SIZE: Final = 0x01
_FALLOC_FL_ZERO_RANGE: Final = 0x10
_NOT_OFFERED: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_ZEROS: Final = bytes(1 << 20)

FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
"""Of what is made here: messages are for the owner and the group. What is there already keeps its mode."""

_libc = ctypes.CDLL(None, use_errno=True)
if hasattr(_libc, "fallocate64"):  # where off_t is 64 bits wide whatever the machine's word
    _libc.fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def _zero_range(descriptor: int, offset: int, size: int) -> bool:
    """Let the file system make bytes zeros without writing them; False when it cannot. Raises OSError."""
    if not hasattr(_libc, "fallocate64"):
        return False
    mode = _FALLOC_FL_ZERO_RANGE | _FALLOC_FL_KEEP_SIZE
    while _libc.fallocate64(descriptor, mode, offset, size):
        number = ctypes.get_errno()
        if number in _NOT_OFFERED:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


class Maps(Protocol):
    def forget(self, descriptor: int) -> None:
        """Map nothing of this file any more: it is about to be closed."""


class OsFile:
    """A file by descriptor; reads and writes at offsets only."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor  # no property: compiled code asks for it at each pull
        self.maps: Maps | None = None
        """Has parts of it mapped (``runtime/native/maps.pxi``)."""

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self.descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size and (more := os.pread(self.descriptor, size - done, offset + done)):
            parts.append(more)
            done += len(more)
        return b"".join(parts)

    def pwrite(self, data: Buffer, offset: int) -> None:
        done = os.pwrite(self.descriptor, data, offset)
        while done < len(data):
            written = os.pwrite(self.descriptor, memoryview(data)[done:], offset + done)
            if written == 0:
                raise OSError(errno.EIO, "write made no progress", self.path)
            done += written

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def allocate(self, size: int) -> None:
        if size > self.size():
            os.posix_fallocate(self.descriptor, 0, size)

    def data_from(self, offset: int) -> tuple[int, int] | None:
        try:
            begin = os.lseek(self.descriptor, offset, os.SEEK_DATA)
            return begin, os.lseek(self.descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        size = self.size()  # a file system that does not say
        return (offset, size) if offset < size else None

    def zero(self, offset: int, size: int) -> None:
        if _zero_range(self.descriptor, offset, size):
            return
        end = offset + size
        while offset < end:
            zeros = _ZEROS[: end - offset]
            self.pwrite(zeros, offset)  # zeros that are there may be those of a sync that failed
            offset += len(zeros)

    def sync(self) -> None:
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        # Linux frees the descriptor whatever close says (close(2)): a second try would close another's.
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            if self.maps is not None:
                self.maps.forget(descriptor)
            os.close(descriptor)


class OsLock:
    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_to_read(path: str) -> int:
    return SPARE.open(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _give(path: str, like: os.stat_result) -> bool:
    """Give a file the owner of another one, or its group at least; whether it has that group."""
    for owner in (like.st_uid, -1):
        with suppress(PermissionError):
            os.chown(path, owner, like.st_gid)
            return True
    return os.stat(path).st_gid == like.st_gid


class OsDisk:
    """The operating system's file system."""

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return OsFile(path, SPARE.open(lambda: os.open(path, flags, FILE_MODE)))
        except OSError as error:
            if create or error.errno not in (errno.EACCES, errno.EROFS):
                raise
            # What may only be read is opened for reading: an audit looks at stores it must not change.
            return OsFile(path, _open_to_read(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int | None:
        found = os.stat(path)
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def identity(self, path: str) -> Hashable:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(SPARE.open(lambda: os.listdir(path)))
        except FileNotFoundError:
            return []

    def makedirs(self, path: str) -> None:
        # os.makedirs gives the mode to the last directory only.
        if path and not os.path.isdir(path):
            self.makedirs(os.path.dirname(path.rstrip("/")))
            with suppress(FileExistsError):  # made meanwhile
                os.mkdir(path, DIRECTORY_MODE)
            if not os.path.isdir(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def remove(self, path: str) -> None:
        os.remove(path)

    def rmtree(self, path: str) -> None:
        shutil.rmtree(path)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def keep_mode(self, source: str, target: str) -> None:
        try:
            old = os.stat(source)
        except FileNotFoundError:
            return
        new, mode = os.stat(target), stat.S_IMODE(old.st_mode)
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid) and not _give(target, old):
            mode &= ~0o070  # another group than that which was meant
        if mode != stat.S_IMODE(new.st_mode):
            with suppress(PermissionError):  # a file system without modes
                os.chmod(target, mode)

    def sync_dir(self, path: str) -> None:
        descriptor = _open_to_read(path)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, path: str) -> None:
        if not hasattr(_libc, "syncfs"):
            os.sync()
            return
        descriptor = _open_to_read(path)
        try:
            if _libc.syncfs(descriptor):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(descriptor)

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def usage(self, path: str) -> DiskUsage:
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree
        return DiskUsage((used + stat.f_bavail) * stat.f_frsize, stat.f_bavail * stat.f_frsize)

    def lock(self, path: str) -> OsLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            # A POSIX lock on byte 0, like Java's FileChannel.tryLock(0, 1): the two exclude each other.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            os.close(descriptor)
            raise
        return OsLock(descriptor)


class _Server:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._server.close()


class OsNetwork:
    """TCP of the operating system through the running loop."""

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, shared: bool = False
    ) -> Listener:
        return await self._listen(factory, host, port, reuse_port=shared or None)

    async def _listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **more: Any
    ) -> Listener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            factory, host, port, reuse_address=True, backlog=ACCEPTS_A_TURN, **more
        )
        for listening in server.sockets:
            # The kernel's queue is another matter: a burst of clients after a failover has to fit.
            own = socket.socket(fileno=listening.fileno())
            try:
                own.listen(BACKLOG)
            finally:
                own.detach()
        return _Server(server)

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, timeout_s: float = 3.0
    ) -> tuple[asyncio.Transport, P]:
        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().create_connection(factory, host, port)


class OsEnv:
    """What a real process gets. ``seed`` fixes the random source for tests; networks are plain TCP unless
    others are given."""

    monotonic_ms = staticmethod(_monotonic_ms)

    def __init__(
        self,
        *,
        seed: int | None = None,
        watch: Callable[[Event], None] | None = None,
        network: Network | None = None,
        ha_network: Network | None = None,
    ) -> None:
        self.disk: Disk = OsDisk()
        self.network: Network = network or OsNetwork()
        self.ha_network: Network = ha_network or self.network
        self.random = random.Random(seed)
        self.events = EventLog(self.now_ms, watch)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def memory_bytes(self) -> int:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:
            with open(MEMORY_MAX, encoding="ascii") as file:
                return min(machine, int(file.read()))
        except (OSError, ValueError):
            return machine  # no container, or one without a limit: "max"

    async def offload(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, call)
