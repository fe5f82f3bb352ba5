"""A disk that refuses one kind of call on one file, for as long as the fault stands."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Final

from chaos.sim.disk import Machine
from runtime.env import Buffer, Disk, File
from tests.fakes.disk.passing import PassingDisk, PassingFile

JOURNAL: Final = "raft.journal"
NEW_JOURNAL: Final = "raft.journal.tmp"
SNAPSHOT: Final = "raft.snapshot"
NEW_SNAPSHOT: Final = "raft.snapshot.tmp"


@dataclass(slots=True)
class Fault:
    """``operation`` on the file called ``file`` fails with ``error``; ``hits``: so often it did.

    A directory is synced for the file that was renamed last, and ``file`` is what that was called before.
    """

    operation: str
    file: str
    error: int
    hits: int = 0


class RefusingDisk(PassingDisk):
    """``runtime.env.Disk`` over another one. A refused write is half done, as by a full disk; a refused sync
    makes the kernel forget what was to be synced."""

    def __init__(self, disk: Disk, machine: Machine) -> None:
        super().__init__(disk)
        self._machine = machine
        self.fault: Fault | None = None
        self._open: list[_RefusingFile] = []
        self._renamed = ""

    @property
    def descriptors(self) -> int:
        """How many files are open."""
        return len(self._open)

    def refuses(self, operation: str, path: str) -> bool:
        fault = self.fault
        if fault is None or (fault.operation, fault.file) != (operation, path.rpartition("/")[2]):
            return False
        fault.hits += 1
        return True

    def check(self, operation: str, path: str) -> None:
        if self.refuses(operation, path):
            raise self.error(path)

    def error(self, path: str) -> OSError:
        assert self.fault is not None, "looked at by the caller"
        return OSError(self.fault.error, os.strerror(self.fault.error), path)

    def open(self, path: str, *, create: bool = False) -> File:
        self.check("open", path)
        file = _RefusingFile(self, self._disk.open(path, create=create))
        self._open.append(file)
        return file

    def closed(self, file: _RefusingFile) -> None:
        if file in self._open:
            self._open.remove(file)

    def fail_sync(self, file: File) -> None:
        self._machine.faults.sync_errors += 1
        with contextlib.suppress(OSError):
            file.sync()
        raise self.error(file.path)

    def replace(self, source: str, target: str) -> None:
        self.check("replace", source)
        self._disk.replace(source, target)
        self._renamed = source
        for file in self._open:
            if file.path == source:
                file.path = target

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", self._renamed)
        self._disk.sync_dir(path)


class _RefusingFile(PassingFile):
    def __init__(self, disk: RefusingDisk, file: File) -> None:
        super().__init__(file)
        self._disk = disk

    def pwrite(self, data: Buffer, offset: int) -> None:
        if self._disk.refuses("pwrite", self.path):
            self._file.pwrite(bytes(data)[: len(data) // 2], offset)
            raise self._disk.error(self.path)
        self._file.pwrite(data, offset)

    def sync(self) -> None:
        if not self._disk.refuses("sync", self.path):
            self._file.sync()
            return
        self._disk.fail_sync(self._file)

    def close(self) -> None:
        self._disk.closed(self)
        self._file.close()
        self._disk.check("close", self.path)
