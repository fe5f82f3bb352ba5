"""A disk that crashes its process at a chosen operation, and then may lose what was not synced."""

from __future__ import annotations

import contextlib

from chaos.sim.disk import Machine, SimDisk
from chaos.sim.loop import Life
from runtime.env import Buffer, File
from tests.fakes.disk.passing import PassingDisk, PassingFile


class Crash(BaseException):
    """The process is no more."""


class CrashingDisk(PassingDisk):
    """``runtime.env.Disk`` over a simulated machine. Operation number ``crash_at`` does not happen."""

    def __init__(self, machine: Machine, crash_at: int | None = None) -> None:
        super().__init__(SimDisk(machine, Life("test", 0)))
        self.operations = 0
        self.crash_at = crash_at

    def step(self) -> None:
        self.operations += 1
        if self.operations == self.crash_at:
            raise Crash

    def open(self, path: str, *, create: bool = False) -> File:
        return _CrashingFile(self, self._disk.open(path, create=create))

    def remove(self, path: str) -> None:
        self.step()
        self._disk.remove(path)

    def rmtree(self, path: str) -> None:
        self.step()
        self._disk.rmtree(path)

    def replace(self, source: str, target: str) -> None:
        self.step()
        self._disk.replace(source, target)

    def sync_dir(self, path: str) -> None:
        self.step()
        self._disk.sync_dir(path)

    def sync_all(self, path: str) -> None:
        self.step()
        self._disk.sync_all(path)


class _CrashingFile(PassingFile):
    def __init__(self, disk: CrashingDisk, file: File) -> None:
        super().__init__(file)
        self._disk = disk

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._disk.step()
        self._file.pwrite(data, offset)

    def truncate(self, size: int) -> None:
        self._disk.step()
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._disk.step()
        self._file.allocate(size)

    def zero(self, offset: int, size: int) -> None:
        self._disk.step()
        self._file.zero(offset, size)

    def sync(self) -> None:
        self._disk.step()
        self._file.sync()


def machine(seed: int = 1) -> Machine:
    made = Machine("m", seed, lambda: 0)
    made.makedirs("/raft")
    made.sync_dir("/")
    return made


def crashing(disk: CrashingDisk) -> contextlib.AbstractContextManager[None]:
    """A block the disk may end early; whether it did is ``disk.operations == disk.crash_at``."""
    return contextlib.suppress(Crash)
