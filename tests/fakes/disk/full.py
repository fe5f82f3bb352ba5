"""A disk that refuses every write from a moment on."""

from __future__ import annotations

import errno
import os

from runtime.env import Buffer, Disk, File
from tests.fakes.disk.passing import PassingDisk, PassingFile


class FullDisk(PassingDisk):
    """``runtime.env.Disk`` over another one. Writes fail with ``error``, half done if it is ENOSPC."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.error: int | None = None

    def open(self, path: str, *, create: bool = False) -> File:
        return _FullFile(self, self._disk.open(path, create=create))


class _FullFile(PassingFile):
    def __init__(self, disk: FullDisk, file: File) -> None:
        super().__init__(file)
        self._disk = disk

    def pwrite(self, data: Buffer, offset: int) -> None:
        error = self._disk.error
        if error == errno.ENOSPC:
            self._file.pwrite(bytes(data)[: len(data) // 2], offset)
        if error is not None:
            raise OSError(error, os.strerror(error), self.path)
        self._file.pwrite(data, offset)
