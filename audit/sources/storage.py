"""What every source can do: list, size, read by range. Nothing here writes; errors are OSError."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Any, Final, Protocol

NOT_REGULAR: Final = "not a regular file"


class UnfitFileError(OSError):
    """What stands there is no file that a store may hold: a pipe, a device, a folder, or one too large."""


class Storage(Protocol):
    """Read-only access to one store directory. Paths below its root use ``/``."""

    def listdir(self, path: str) -> list[str]:
        """Names in ``path``, sorted; empty when it does not exist."""

    def size(self, path: str) -> int:
        """Bytes of a file. FileNotFoundError when absent, UnfitFileError when it is no regular file."""

    def mtime_ns(self, path: str) -> int: ...
    def read(self, path: str, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer only at the end of the file."""

    def data_from(self, path: str, offset: int) -> int | None:
        """The first offset at or after ``offset`` where the file holds data; None when only a hole follows.

        May return ``offset`` itself when the file system cannot tell.
        """

    def exists(self, path: str) -> bool: ...
    def close(self) -> None: ...


class LocalStorage:
    """A directory of this machine; descriptors stay open until ``close``."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._files: dict[str, int] = {}

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path)

    def listdir(self, path: str) -> list[str]:
        try:
            self._stat(path)
            return sorted(os.listdir(self._full(path)))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return self._regular(path, self._stat(path)).st_size

    def mtime_ns(self, path: str) -> int:
        return self._stat(path).st_mtime_ns

    def _stat(self, path: str) -> os.stat_result:
        """A link that leads in a circle leads to nothing."""
        try:
            return os.stat(self._full(path))
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), error.filename) from None
            raise

    def exists(self, path: str) -> bool:
        """Raises OSError where it cannot be told: a folder that one may not look into."""
        try:
            self._stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _open(self, path: str) -> int:
        descriptor = self._files.get(path)
        if descriptor is None:
            full = self._full(path)
            # Opening a device may do something; opening a pipe waits for who writes.
            self._regular(path, self._stat(path))
            descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self._regular(path, os.fstat(descriptor))
            except OSError:
                os.close(descriptor)
                raise
            self._files[path] = descriptor
        return descriptor

    def _regular(self, path: str, found: os.stat_result) -> os.stat_result:
        if not stat.S_ISREG(found.st_mode):
            raise UnfitFileError(22, NOT_REGULAR, self._full(path))
        return found

    def read(self, path: str, offset: int, size: int) -> bytes:
        descriptor = self._open(path)
        data = os.pread(descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size and (more := os.pread(descriptor, size - done, offset + done)):
            parts.append(more)
            done += len(more)
        return b"".join(parts)

    def data_from(self, path: str, offset: int) -> int | None:
        try:
            return os.lseek(self._open(path), offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == 6:  # ENXIO: nothing but a hole (or reserved, unwritten blocks) up to the end
                return None
            return offset  # this file system cannot tell: the caller reads

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def names_in(storage: Storage, path: str) -> list[str]:
    """None in what is no folder, which ``audit.reading.layout`` says of those of a store. Raises OSError."""
    try:
        return storage.listdir(path)
    except NotADirectoryError:
        return []


class StoredFile(io.RawIOBase):
    """One file of a storage as Python's own kind of file. It closes the storage with itself.

    One that ends before it did when it was opened is an OSError: what is left of it may look whole."""

    def __init__(self, storage: Storage, path: str) -> None:
        super().__init__()
        self._storage, self._path, self._at = storage, path, 0
        self.size_bytes = storage.size(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size_bytes}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._storage.read(self._path, self._at, len(view))
        if not data and len(view) and self._at < self.size_bytes:
            read = f"{self.size_bytes} bytes, {self._at} of them could be read"
            raise OSError(5, f"it changed while it was read ({read})")
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._storage.close()
        super().close()
