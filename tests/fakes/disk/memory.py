"""A disk in memory with a page cache: a crash loses what was not synced, and calls can be made to fail."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Hashable
from typing import TypeVar

from runtime.env import Buffer, DiskUsage, Network
from runtime.os_env import OsNetwork
from runtime.report.events import EventLog

T = TypeVar("T")
PAGE = 512


class _Node:
    def __init__(self) -> None:
        self.cache = bytearray()
        self.disk = bytearray()
        self.dirty: set[int] = set()
        self.dropped: set[int] = set()  # a failed sync gave these up: clean for the kernel, not on the disk

    def sync(self) -> None:
        before, self.disk = self.disk, bytearray(self.cache)
        for page in self.dropped:
            old = bytes(before[page * PAGE : (page + 1) * PAGE]).ljust(PAGE, b"\0")
            held = self.disk[page * PAGE : (page + 1) * PAGE]
            self.disk[page * PAGE : (page + 1) * PAGE] = old[: len(held)]
        self.dirty.clear()

    def fail_sync(self) -> None:
        """What Linux does after EIO: the page cache keeps what was written, and never writes it again."""
        self.dropped |= self.dirty
        self.dirty.clear()

    def after_crash(self, keep: Callable[[], bool]) -> _Node:
        node = _Node()
        node.disk = bytearray(self.disk)
        if len(self.cache) > len(node.disk):
            node.disk.extend(bytes(len(self.cache) - len(node.disk)))
        for page in sorted(self.dirty):
            if keep():
                node.disk[page * PAGE : (page + 1) * PAGE] = self.cache[page * PAGE : (page + 1) * PAGE]
        if len(self.cache) != len(self.disk) and keep():
            # The size is written on its own: it is the old one, or already the new one.
            del node.disk[min(len(self.cache), len(self.disk)) :]
        node.cache = bytearray(node.disk)
        return node

    def copy(self) -> _Node:
        node = _Node()
        node.cache, node.disk, node.dirty = bytearray(self.cache), bytearray(self.disk), set(self.dirty)
        node.dropped = set(self.dropped)
        return node


class FaultyFile:
    def __init__(self, disk: FaultyDisk, path: str, node: _Node) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self.closed = False

    def _check(self, what: str) -> None:
        assert not self.closed, f"{what} of a closed file: {self.path}"
        self._disk.check(what, self.path)

    @property
    def descriptor(self) -> int | None:
        return None  # every read is this class's own

    def pread(self, size: int, offset: int) -> bytes:
        self._check("pread")
        return bytes(self._node.cache[offset : offset + size])

    def pwrite(self, data: Buffer, offset: int) -> None:
        try:
            self._check("pwrite")
        except OSError:
            self._put(bytes(data)[: len(data) // 2], offset)  # a failed write leaves a part behind
            raise
        self._put(bytes(data), offset)

    def _put(self, data: bytes, offset: int) -> None:
        cache = self._node.cache
        if len(cache) < offset + len(data):
            cache.extend(bytes(offset + len(data) - len(cache)))
        cache[offset : offset + len(data)] = data
        if data:
            pages = range(offset // PAGE, (offset + len(data) - 1) // PAGE + 1)
            self._node.dirty.update(pages)
            self._node.dropped.difference_update(pages)

    def size(self) -> int:
        return len(self._node.cache)

    def truncate(self, size: int) -> None:
        self._check("truncate")
        cache = self._node.cache
        if size < len(cache):
            del cache[size:]
        else:
            cache.extend(bytes(size - len(cache)))

    def allocate(self, size: int) -> None:
        self._check("allocate")
        if size > len(self._node.cache):
            self.truncate(size)

    def data_from(self, offset: int) -> tuple[int, int] | None:
        self._check("data_from")
        return (offset, self.size()) if offset < self.size() else None

    def zero(self, offset: int, size: int) -> None:
        self.pwrite(bytes(size), offset)

    def sync(self) -> None:
        try:
            self._check("sync")
        except OSError:
            self._node.fail_sync()
            raise
        self._node.sync()

    def close(self) -> None:
        self.closed = True


class _Lock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class FaultyDisk:
    """``fail`` is asked before each pread, pwrite, truncate, allocate, sync, sync_dir, remove, replace: an
    errno fails it."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.dirs: set[str] = {"/"}
        self.locks: set[str] = set()
        self.fail: Callable[[str, str], int | None] = lambda what, path: None
        self.free_bytes = 1 << 40
        self.syncs = 0
        self.now_ms = 0
        self.boots = 1

    def check(self, what: str, path: str) -> None:
        if what == "sync":
            self.syncs += 1
        number = self.fail(what, path)
        if number is not None:
            raise OSError(number, os.strerror(number), path)

    def crash(self, seed: int | None = None) -> FaultyDisk:
        """The disk after a power failure: what was not synced is gone.

        With ``seed`` each page of 512 bytes, each file's size, and each directory's names are by chance the
        old or the new ones: records and pages of the file system's 4096 are torn.
        """
        chance = random.Random(seed)

        def keep() -> bool:
            return seed is not None and chance.random() < 0.5

        names = dict(self.durable)
        if seed is not None:
            changed = [
                p for p in {**self.durable, **self.nodes} if self.durable.get(p) is not self.nodes.get(p)
            ]
            for directory in sorted({path.rpartition("/")[0] for path in changed}):
                if keep():
                    names = {p: node for p, node in names.items() if p.rpartition("/")[0] != directory}
                    names |= {p: node for p, node in self.nodes.items() if p.rpartition("/")[0] == directory}
        after = FaultyDisk()
        kept = {path: node.after_crash(keep) for path, node in sorted(names.items())}
        after.nodes, after.durable = dict(kept), dict(kept)
        after.dirs = set(self.dirs)
        after.now_ms, after.boots = self.now_ms, self.boots + 1
        return after

    def copy(self) -> FaultyDisk:
        """This disk as it is now, what is not synced included."""
        twins = {id(node): node.copy() for node in (*self.nodes.values(), *self.durable.values())}
        other = FaultyDisk()
        other.nodes = {path: twins[id(node)] for path, node in self.nodes.items()}
        other.durable = {path: twins[id(node)] for path, node in self.durable.items()}
        other.dirs = set(self.dirs)
        other.now_ms, other.boots = self.now_ms, self.boots
        return other

    def killed(self) -> FaultyDisk:
        """The disk after the process was killed: the page cache is still there."""
        after = FaultyDisk()
        after.nodes, after.durable, after.dirs = self.nodes, self.durable, self.dirs
        after.now_ms, after.boots = self.now_ms, self.boots
        return after

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        if path not in self.nodes:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            assert path.rpartition("/")[0] in self.dirs, f"no directory for {path}"
            self.nodes[path] = _Node()
        return FaultyFile(self, path, self.nodes[path])

    def exists(self, path: str) -> bool:
        return path in self.nodes or path in self.dirs

    def is_dir(self, path: str) -> bool:
        return path in self.dirs

    def size(self, path: str) -> int | None:
        return None if path in self.dirs else self.open(path).size()

    def identity(self, path: str) -> Hashable:
        return path if path in self.dirs else id(self.open(path)._node)

    def listdir(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        names = {p[len(prefix) :].split("/")[0] for p in (*self.nodes, *self.dirs) if p.startswith(prefix)}
        return sorted(name for name in names if name)

    def makedirs(self, path: str) -> None:
        while path and path not in self.dirs:
            self.dirs.add(path)
            path = path.rpartition("/")[0]

    def remove(self, path: str) -> None:
        if path not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.check("remove", path)
        del self.nodes[path]

    def rmtree(self, path: str) -> None:
        for name in [p for p in self.nodes if p.startswith(path + "/")]:
            del self.nodes[name]
        self.dirs = {d for d in self.dirs if d != path and not d.startswith(path + "/")}

    def replace(self, source: str, target: str) -> None:
        self.check("replace", target)
        self.nodes[target] = self.nodes.pop(source)

    def keep_mode(self, source: str, target: str) -> None:
        """Files have no modes here."""

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        prefix = path.rstrip("/") + "/"
        for name in [p for p in self.durable if p.startswith(prefix) and p not in self.nodes]:
            del self.durable[name]
        for name, node in self.nodes.items():
            if name.rpartition("/")[0] == path.rstrip("/"):
                self.durable[name] = node

    def sync_all(self, path: str) -> None:
        for name, node in self.nodes.items():
            if name.startswith(path + "/"):
                self.check("sync", name)
                node.sync()
        for directory in sorted(self.dirs):
            if directory == path or directory.startswith(path + "/"):
                self.sync_dir(directory)

    def mtime_ms(self, path: str) -> int:
        return 0

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(1 << 41, self.free_bytes)

    def lock(self, path: str) -> _Lock:
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self.locks.add(path)
        return _Lock(self.locks, path)


class FaultyEnv:
    """An Env on a FaultyDisk with a clock that is set by hand."""

    def __init__(self, disk: FaultyDisk | None = None, now_ms: int = 1_700_000_000_000) -> None:
        self.disk = disk or FaultyDisk()
        self.network: Network = OsNetwork()
        self.ha_network = self.network
        self.random = random.Random(0)
        self.clock_ms = now_ms
        self.boot = f"boot-{self.disk.boots}"
        self.events = EventLog(self.now_ms)

    def now_ms(self) -> int:
        return self.clock_ms

    def monotonic_ms(self) -> float:
        return float(self.clock_ms)

    def boot_id(self) -> str:
        return self.boot

    def memory_bytes(self) -> int:
        return 1 << 30

    async def offload(self, call: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return call()
