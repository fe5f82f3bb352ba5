"""A disk and its files that pass every call on to others: what tests put between overrides some."""

from __future__ import annotations

from collections.abc import Hashable

from runtime.env import Buffer, Disk, DiskUsage, File, Lock


class PassingDisk:
    """``runtime.env.Disk`` over ``disk``."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: str, *, create: bool = False) -> File:
        return self._disk.open(path, create=create)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def is_dir(self, path: str) -> bool:
        return self._disk.is_dir(path)

    def size(self, path: str) -> int | None:
        return self._disk.size(path)

    def identity(self, path: str) -> Hashable:
        return self._disk.identity(path)

    def listdir(self, path: str) -> list[str]:
        return self._disk.listdir(path)

    def makedirs(self, path: str) -> None:
        self._disk.makedirs(path)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def rmtree(self, path: str) -> None:
        self._disk.rmtree(path)

    def replace(self, source: str, target: str) -> None:
        self._disk.replace(source, target)

    def keep_mode(self, source: str, target: str) -> None:
        self._disk.keep_mode(source, target)

    def sync_dir(self, path: str) -> None:
        self._disk.sync_dir(path)

    def sync_all(self, path: str) -> None:
        self._disk.sync_all(path)

    def mtime_ms(self, path: str) -> int:
        return self._disk.mtime_ms(path)

    def usage(self, path: str) -> DiskUsage:
        return self._disk.usage(path)

    def lock(self, path: str) -> Lock:
        return self._disk.lock(path)


class PassingFile:
    """``runtime.env.File`` over ``file``."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.path = file.path

    @property
    def descriptor(self) -> int | None:
        return None  # every read is this class's own

    def pread(self, size: int, offset: int) -> bytes:
        return self._file.pread(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._file.pwrite(data, offset)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    def data_from(self, offset: int) -> tuple[int, int] | None:
        return self._file.data_from(offset)

    def zero(self, offset: int, size: int) -> None:
        self._file.zero(offset, size)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()
