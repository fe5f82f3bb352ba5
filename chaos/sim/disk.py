"""What is on a simulated disk after a kill, and what after a power failure?

``Machine`` is one file system with two layers: what the page cache shows, and what is durable. A killed
process loses nothing that it wrote, but, by chance, what a sync of its log failed to write: the kernel calls
such pages clean, and drops them when it likes. That disk may fail the kernel's own writing of ``abort``,
too: what of it was not synced goes with them. A power failure keeps, of everything not synced,

* an arbitrary subset of the written 4 KiB pages, some of them torn at a 512-byte sector
* the old or the new size of each file
* a prefix of the creates, renames and removes of each directory since its last ``sync_dir``

Directories themselves are durable when made; one that was removed is back when a file of it is, and a sync of
the one it lay in makes its end durable. ``SimDisk`` is what one life sees of its machine: the ``Disk``
of ``runtime.env``. Pages exist only once written, so a preallocated file costs nothing.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from chaos.sim.inode import PAGE_BYTES, Inode
from chaos.sim.loop import Life
from runtime.env import Buffer, DiskUsage

LOG: Final = "/commitlog/"
STOP: Final = "/abort"
DROPS: Final = 0.5
"""So often the pages of a failed sync are gone when its process has died."""
STOP_DROPS: Final = 0.5
"""So often then what was written to ``abort`` and not synced goes with them."""


@dataclass(slots=True)
class _Rename:
    """A change of names not yet durable: ``gone`` is unlinked, ``path`` names ``inode`` (None: nothing)."""

    directories: tuple[str, ...]
    path: str
    inode: Inode | None
    gone: str | None = None


@dataclass(slots=True)
class DiskFaults:
    """What is broken on a machine right now."""

    full: bool = False
    """Every write that needs a new block raises ENOSPC."""
    no_descriptors: bool = False
    """No file or directory can be opened: EMFILE."""
    sync_errors: int = 0
    """So many next syncs raise EIO and drop the dirty pages."""
    write_errors: int = 0
    read_errors: int = 0
    lying: bool = False
    """Syncs return as if done and write nothing."""
    slow_s: float = 0.0
    """Added to every offloaded call."""

    @property
    def any(self) -> bool:
        failing = self.sync_errors or self.write_errors or self.read_errors
        return bool(self.full or self.no_descriptors or failing or self.lying or self.slow_s)


@dataclass(slots=True)
class DiskCounts:
    writes: int = 0
    syncs: int = 0
    failed: int = 0
    powerless: int = 0
    dropped: int = 0
    """Killed processes whose log lacked what a failed sync left in memory."""
    lied: int = 0
    """Power failures with bytes missing that a sync had promised."""


class Machine:
    """One machine's file system: it outlives the processes that run on it."""

    def __init__(
        self, name: str, seed: int | str, now_ms: Callable[[], int], *, capacity_bytes: int = 1 << 36
    ) -> None:
        self.name = name
        self.now_ms = now_ms
        self.capacity_bytes = capacity_bytes
        self.faults = DiskFaults()
        self.counts = DiskCounts()
        self._rng = random.Random(f"disk:{name}:{seed}")
        self._memory = random.Random(f"memory:{name}:{seed}")  # its own, so that other draws stay
        self._of_stop = random.Random(f"stop:{name}:{seed}")  # the same: that file came to be written often
        self._files: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._directories: set[str] = {"/", ""}
        self._pending: list[_Rename] = []
        self._locks: dict[str, Life] = {}
        self.kept: tuple[dict[str, Inode], set[str]] | None = None
        self.believed = False
        """A sync that wrote nothing was taken for one that did, and the power has not failed since."""

    # Faults

    def wipe(self) -> None:
        """An empty disk in the place of this one."""
        self._files.clear()
        self._durable.clear()
        self._pending.clear()
        self._locks.clear()
        self._directories = {"/", ""}
        self.faults = DiskFaults()
        self.believed = False

    def keep(self) -> None:
        """Copy what is there now, for ``put_back``."""
        self.kept = {path: inode.copied() for path, inode in self._files.items()}, set(self._directories)

    def put_back(self) -> bool:
        """The copy takes the place of what is there; False without one."""
        if self.kept is None:
            return False
        files, directories = self.kept
        self.wipe()
        self._files = {path: inode.copied() for path, inode in files.items()}
        self._durable, self._directories = dict(self._files), set(directories)
        return True

    def lose_power(self) -> None:
        """What was not durable survives in part; see the module's text."""
        self.counts.powerless += 1
        self.counts.lied += self.believed
        self.believed = False
        kept_until: dict[str, int] = {}
        for directory in sorted({d for change in self._pending for d in change.directories}):
            count = sum(directory in change.directories for change in self._pending)
            kept_until[directory] = self._rng.randint(0, count)
        for change in self._pending:
            keep = all(kept_until[d] > 0 for d in change.directories)
            for directory in change.directories:
                # One that is lost ends its directory's prefix: later changes there are lost too.
                kept_until[directory] = kept_until[directory] - 1 if keep else 0
            if keep:
                self._make_durable(change)
        self._pending.clear()
        self._files = dict(self._durable)
        for path in self._files:
            self.makedirs(_directory(path))
        stop = self._stop()
        for inode in self._inodes():
            inode.lose_power(self._of_stop if inode is stop else self._rng)
        self._locks.clear()
        self.faults = DiskFaults()

    def flip_bit(self, prefix: str) -> tuple[str, int] | None:
        """Flip one bit, on the disk and in the cache, of a written page under ``prefix``: (path, offset)."""
        places = [
            (path, number)
            for path in sorted(self._files)
            if path.startswith(prefix)
            for number in sorted(self._files[path].pages)
        ]
        if not places:
            return None
        path, number = self._rng.choice(places)
        inode = self._files[path]
        limit = min(PAGE_BYTES, inode.size - number * PAGE_BYTES)
        if limit <= 0:
            return None
        at = number * PAGE_BYTES + self._rng.randrange(limit)
        self.flip(path, at * 8 + self._rng.randrange(8))
        return path, at

    def flip(self, path: str, bit: int) -> None:
        """Flip bit ``bit`` of a file, counted from its first byte's lowest, on the disk and in the cache."""
        inode = self._files[path]
        number, at = divmod(bit // 8, PAGE_BYTES)
        inode.pages.setdefault(number, bytearray(PAGE_BYTES))[at] ^= 1 << bit % 8

    def lose_file(self, path: str) -> None:
        """It is gone from the disk, too."""
        self._files.pop(path, None)
        self._durable.pop(path, None)
        self._pending = [change for change in self._pending if path not in (change.path, change.gone)]

    def process_died(self, life: Life) -> None:
        self._locks = {path: owner for path, owner in self._locks.items() if owner is not life}
        dropped = [i for path, i in sorted(self._files.items()) if LOG in path and i.dropped]
        if dropped and self._memory.random() < DROPS:
            self.counts.dropped += 1
            for inode in dropped:
                inode.drop()
            stop = self._stop()
            if stop is not None and self._of_stop.random() < STOP_DROPS:
                stop.fail_sync()
                stop.drop()

    def _stop(self) -> Inode | None:
        return next((inode for path, inode in self._files.items() if path.endswith(STOP)), None)

    # Looking from outside (checks)

    def paths(self, prefix: str) -> list[str]:
        return sorted(path for path in self._files if path.startswith(prefix))

    def content(self, path: str) -> bytes:
        inode = self._files[path]
        return inode.read(inode.size, 0)

    # What SimDisk uses

    def find(self, path: str) -> Inode | None:
        return self._files.get(path)

    def create(self, path: str) -> Inode:
        directory = _directory(path)
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        if path in self._directories:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if self.faults.full:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        inode = self._files[path] = Inode(self.now_ms())
        self._pending.append(_Rename((directory,), path, inode))
        return inode

    def remove(self, path: str) -> None:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self._files[path]
        self._pending.append(_Rename((_directory(path),), path, None))

    def replace(self, source: str, target: str) -> None:
        inode = self._files.pop(source, None)
        if inode is None:
            if source in self._directories:
                self._move_directory(source, target)
                return
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        if _directory(target) not in self._directories:
            self._files[source] = inode
            raise FileNotFoundError(errno.ENOENT, "no such directory", target)
        self._files[target] = inode
        directories = tuple(sorted({_directory(source), _directory(target)}))
        self._pending.append(_Rename(directories, target, inode, gone=source))

    def _move_directory(self, source: str, target: str) -> None:
        for path in [p for p in self._files if p.startswith(source + "/")]:
            moved = target + path[len(source) :]
            self.makedirs(_directory(moved))
            self.replace(path, moved)
        self.makedirs(target)
        self._directories = {d for d in self._directories if d != source and not d.startswith(source + "/")}

    def sync_dir(self, directory: str) -> None:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        left: list[_Rename] = []
        for change in self._pending:
            if directory in change.directories:
                self._make_durable(change)
            else:
                left.append(change)
        self._pending = left

    def sync_tree(self, path: str) -> None:
        """``sync_dir`` of ``path`` and of every directory below it."""
        for directory in sorted(self._directories):
            if directory == path or directory.startswith(path + "/"):
                self.sync_dir(directory)

    def _make_durable(self, change: _Rename) -> None:
        if change.gone is not None:
            self._durable.pop(change.gone, None)
        if change.inode is None:
            self._durable.pop(change.path, None)
        else:
            self._durable[change.path] = change.inode

    def makedirs(self, path: str) -> None:
        if path in self._files:
            raise FileExistsError(errno.EEXIST, "is a file", path)
        while path and path not in self._directories:
            self._directories.add(path)
            path = _directory(path)

    def is_dir(self, path: str) -> bool:
        return path in self._directories

    def listdir(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        names = [p[len(prefix) :] for p in (*self._files, *self._directories) if p.startswith(prefix)]
        return sorted({name.partition("/")[0] for name in names if name})

    def rmtree(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        for name in self.paths(path + "/"):
            del self._files[name]
            self._pending.append(_Rename(tuple(sorted({_directory(name), _directory(path)})), name, None))
        self._directories = {d for d in self._directories if d != path and not d.startswith(path + "/")}

    def used_bytes(self) -> int:
        return sum(max(inode.allocated, len(inode.pages) * PAGE_BYTES) for inode in self._inodes())

    def lock(self, path: str, life: Life) -> SimLock:
        owner = self._locks.get(path)
        if owner is not None and owner.alive:
            raise BlockingIOError(errno.EAGAIN, f"held by {owner.name}", path)
        if path not in self._files:
            self.create(path)
        self._locks[path] = life
        return SimLock(self, path, life)

    def unlock(self, path: str, life: Life) -> None:
        if self._locks.get(path) is life:
            del self._locks[path]

    def _inodes(self) -> list[Inode]:
        seen: dict[int, Inode] = {}
        for path in sorted(self._files):
            seen.setdefault(id(self._files[path]), self._files[path])
        return list(seen.values())


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


@dataclass(slots=True)
class SimLock:
    machine: Machine
    path: str
    life: Life

    def release(self) -> None:
        self.machine.unlock(self.path, self.life)


class SimFile:
    """An open file of one life; ``File`` of ``runtime.env``."""

    __slots__ = ("_inode", "_life", "_machine", "_open", "path")

    def __init__(self, machine: Machine, life: Life, path: str, inode: Inode) -> None:
        self.path = path
        self._machine = machine
        self._life = life
        self._inode = inode
        self._open = True

    def _check(self) -> Inode:
        if not self._open or not self._life.alive:
            raise OSError(errno.EBADF, "this file is closed", self.path)
        return self._inode

    @property
    def descriptor(self) -> int | None:
        return None  # every read is this class's own

    def pread(self, size: int, offset: int) -> bytes:
        inode, faults = self._check(), self._machine.faults
        if faults.read_errors:
            faults.read_errors -= 1
            raise OSError(errno.EIO, "read failed", self.path)
        return inode.read(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        inode = self._check()
        machine = self._machine
        machine.counts.writes += 1
        if machine.faults.write_errors:
            machine.faults.write_errors -= 1
            machine.counts.failed += 1
            raise OSError(errno.EIO, "write failed", self.path)
        if machine.faults.full and offset + len(data) > max(inode.allocated, inode.size):
            machine.counts.failed += 1
            raise OSError(errno.ENOSPC, "no space left on device", self.path)
        inode.write(data, offset)
        inode.mtime_ms = machine.now_ms()

    def size(self) -> int:
        return self._check().size

    def truncate(self, size: int) -> None:
        inode = self._check()
        inode.truncate(size)
        inode.allocated = min(inode.allocated, size)
        inode.mtime_ms = self._machine.now_ms()

    def allocate(self, size: int) -> None:
        inode = self._check()
        machine = self._machine
        if size <= inode.allocated:
            return
        if machine.faults.full or machine.used_bytes() + size - inode.allocated > machine.capacity_bytes:
            machine.counts.failed += 1
            raise OSError(errno.ENOSPC, "no space left on device", self.path)
        inode.allocated = size
        inode.size = max(inode.size, size)

    def data_from(self, offset: int) -> tuple[int, int] | None:
        inode = self._check()
        first = offset // PAGE_BYTES
        number = first if first in inode.pages else min((n for n in inode.pages if n > first), default=-1)
        if number < 0:
            return None
        return max(offset, number * PAGE_BYTES), min((number + 1) * PAGE_BYTES, inode.size)

    def zero(self, offset: int, size: int) -> None:
        self.pwrite(bytes(size), offset)

    def sync(self) -> None:
        inode = self._check()
        machine = self._machine
        machine.counts.syncs += 1
        if machine.faults.sync_errors:
            machine.faults.sync_errors -= 1
            machine.counts.failed += 1
            inode.fail_sync()
            raise OSError(errno.EIO, "sync failed", self.path)
        if machine.faults.lying:
            machine.believed = True
            return
        inode.sync()

    def close(self) -> None:
        self._open = False


@dataclass(slots=True)
class SimDisk:
    """A machine's file system as one life sees it; ``Disk`` of ``runtime.env``."""

    machine: Machine
    life: Life
    opened: int = field(default=0)

    def _check(self) -> Machine:
        if not self.life.alive:
            raise OSError(errno.EBADF, "this process is dead", self.life.name)
        return self.machine

    def _opens(self, path: str) -> Machine:
        machine = self._check()
        if machine.faults.no_descriptors:
            raise OSError(errno.EMFILE, "too many open files", path)
        return machine

    def open(self, path: str, *, create: bool = False) -> SimFile:
        machine = self._opens(path)
        inode = machine.find(path)
        if inode is None:
            if machine.is_dir(path):
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = machine.create(path)
        self.opened += 1
        return SimFile(machine, self.life, path, inode)

    def exists(self, path: str) -> bool:
        machine = self._check()
        return machine.find(path) is not None or machine.is_dir(path)

    def is_dir(self, path: str) -> bool:
        return self._check().is_dir(path)

    def size(self, path: str) -> int | None:
        machine = self._check()
        if machine.is_dir(path):
            return None
        inode = machine.find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode.size

    def identity(self, path: str) -> Hashable:
        inode = self._check().find(path)
        if inode is None and not self.is_dir(path):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return path if inode is None else id(inode)

    def listdir(self, path: str) -> list[str]:
        return self._opens(path).listdir(path)

    def makedirs(self, path: str) -> None:
        self._check().makedirs(path)

    def remove(self, path: str) -> None:
        self._check().remove(path)

    def rmtree(self, path: str) -> None:
        self._check().rmtree(path)

    def replace(self, source: str, target: str) -> None:
        self._check().replace(source, target)

    def keep_mode(self, source: str, target: str) -> None:
        """Files have no modes here."""

    def sync_dir(self, path: str) -> None:
        self._opens(path).sync_dir(path)

    def sync_all(self, path: str) -> None:
        machine = self._opens(path)
        for name in machine.paths(path + "/"):
            self.open(name).sync()
        machine.sync_tree(path)

    def mtime_ms(self, path: str) -> int:
        inode = self._check().find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode.mtime_ms

    def usage(self, path: str) -> DiskUsage:
        machine = self._check()
        free = 0 if machine.faults.full else max(0, machine.capacity_bytes - machine.used_bytes())
        return DiskUsage(machine.capacity_bytes, free)

    def lock(self, path: str) -> SimLock:
        return self._opens(path).lock(path, self.life)
