"""Compressed copies, unpacked once a machine: all processes of an audit share what one of them unpacked.

It lies in ``TMPDIR/keelmq-unpacked-UID``, a folder a copy, sparse where the copy has zeros. A lock that each
user of a folder shares tells whether it is in use; nobody's are removed at the end of an audit, and those of
an audit that was killed by the next one.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import pyarrow as pa

from audit.sources.location import shown
from audit.sources.storage import Storage, StoredFile

NO_ROOM: Final = "no room to unpack: set TMPDIR to where there is"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""The disk, not the copy, is at fault."""
FREE_BYTES_MIN: Final = 256 * 1024 * 1024
"""So much of the disk is left to others."""
_BLOCK_BYTES: Final = 1024 * 1024
_HOLE_BYTES: Final = 65536
_LOOK_BYTES: Final = 64 * 1024 * 1024
_WHOLE: Final = ".whole"


def decoded(storage: Storage, file: str, codec: str) -> Any:
    """A file as a stream of what was compressed; ``codec`` by Arrow's name, or empty."""
    return stream_of(StoredFile(storage, file), codec)


def stream_of(stored: StoredFile, codec: str) -> Any:
    source = pa.PythonFile(stored, mode="r")
    return pa.CompressedInputStream(source, codec) if codec else source


class _Held:
    """The folders this process uses, each by a shared lock on the file beside it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._locks: dict[Path, int] = {}
        self._left: set[Path] = set()
        self._users = 0
        self._swept = False

    @contextmanager
    def using(self) -> Iterator[None]:
        """While anybody is inside, nothing goes."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self.release()

    def folder(self, key: str, fill: Callable[[Path], str]) -> tuple[Path, str]:
        """The folder of ``key``, filled by whoever comes first, and what ``fill`` said was wrong."""
        with self._lock:
            root = _root()
            if not self._swept:
                self._swept = True
                for lock in root.glob("*.lock"):
                    _remove(lock.with_suffix(""))
            folder = root / key
            if folder not in self._locks:
                self._locks[folder] = _filled(folder, fill)
            return folder, str(json.loads((folder / _WHOLE).read_text()))

    def release(self) -> None:
        with self._lock:
            for descriptor in self._locks.values():
                os.close(descriptor)
            # What other processes of the audit still use goes when this one ends, after them.
            self._left = {folder for folder in (*self._left, *self._locks) if not _remove(folder)}
            self._locks.clear()


HELD: Final = _Held()
atexit.register(HELD.release)
using = HELD.using


def _root() -> Path:
    root = Path(tempfile.gettempdir()) / f"keelmq-unpacked-{os.geteuid()}"
    with suppress(FileExistsError):
        root.mkdir(0o700)
    found = root.lstat()
    if not root.is_dir() or root.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(13, "this folder is somebody else's, or open to others: remove it", str(root))
    return root


def _filled(folder: Path, fill: Callable[[Path], str]) -> int:
    """A descriptor with a shared lock on the folder, which one process fills while others wait."""
    lock, whole = folder.with_suffix(".lock"), folder / _WHOLE
    while True:
        descriptor = _locked(lock, fcntl.LOCK_SH)
        if whole.exists():
            return descriptor
        os.close(descriptor)
        descriptor = _locked(lock, fcntl.LOCK_EX)
        try:
            if not whole.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
                folder.mkdir()
                whole.write_text(json.dumps(fill(folder)))
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in _FULL:  # a file that is closed names none
                raise OSError(error.errno, NO_ROOM, str(folder)) from None
            raise
        finally:
            os.close(descriptor)  # a lock is not made a shared one without a moment of none: ask again


def _locked(path: Path, how: int) -> int:
    """A descriptor that holds the lock. Raises BlockingIOError if it is another's and LOCK_NB was given."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            with suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == path.stat().st_ino:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed while this one waited


def _remove(folder: Path) -> bool:
    """A folder that nobody uses any more. Whether it is gone."""
    lock = folder.with_suffix(".lock")
    try:
        descriptor = _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return not folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    lock.unlink(missing_ok=True)
    os.close(descriptor)
    return True


def _key(location: str, storage: Storage, file: str) -> str:
    """Of the true location: two that are shown alike are two copies."""
    told = f"{location}\0{file}\0{storage.size(file)}\0{storage.mtime_ns(file)}"
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def unpacked_file(location: str, make: Callable[[], Storage], file: str, codec: str) -> tuple[Path, str]:
    """The unpacked file, as far as it can be decoded, and why not further. ``location``: the store's."""

    def fill(folder: Path) -> str:
        problem = ""
        with (folder / "file").open("wb") as out:
            try:
                source = decoded(make(), file, codec)
                with source:
                    _copy(source, out)
            except OSError as error:
                if error.errno in _FULL:
                    raise
                problem = str(error)
        return problem

    storage = make()
    try:
        key = _key(location, storage, file)
    finally:
        storage.close()
    folder, problem = HELD.folder(key, fill)
    return folder / "file", problem


def unpacked_archive(location: str, make: Callable[[], Storage], file: str, codec: str) -> Path:
    """The folder with all files of an archive in ``location``. Raises OSError naming the archive."""
    where = shown(location)

    def fill(folder: Path) -> str:
        try:
            source = decoded(make(), file, codec)
            with source, tarfile.open(fileobj=source, mode="r|", tarinfo=_Member) as archive:
                for member in archive:
                    _take_out(archive, member, folder)
        except tarfile.TarError as error:
            raise OSError(5, f"not a whole archive: {error}", f"{where}/{file}") from None
        return ""

    storage = make()
    try:
        key = _key(location, storage, file)
    finally:
        storage.close()
    try:
        return HELD.folder(key, fill)[0]
    except OSError as error:
        if error.filename:
            raise
        raise OSError(error.errno or 5, f"cannot be unpacked: {error}", f"{where}/{file}") from None


class _Member(tarfile.TarInfo):
    """An archive ends with a block of zeros: one that ends otherwise, or in what is no header, was cut or
    changed, and lacks members. ``tarfile`` takes both for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise tarfile.ReadError(f"it ends without its end mark: {error}") from None


def _take_out(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Directories and plain files; links are left where they are, for what they name may be anything."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise tarfile.TarError(f"{member.name!r} is no path inside it")
    target = folder.joinpath(*path.parts)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
    elif member.isfile():
        target.parent.mkdir(parents=True, exist_ok=True)
        source = archive.extractfile(member)
        assert source is not None, "a plain file"
        with target.open("wb") as out:
            _copy(source, out)
        os.utime(target, (member.mtime, member.mtime))


def _copy(source: Any, out: BinaryIO) -> None:
    """In blocks; zeros become holes."""
    size = looked = 0
    try:
        while data := source.read(_BLOCK_BYTES):
            for at in range(0, len(data), _HOLE_BYTES):
                part = data[at : at + _HOLE_BYTES]
                if part.count(0) == len(part):
                    out.seek(len(part), os.SEEK_CUR)
                else:
                    out.write(part)
            size += len(data)
            if size - looked >= _LOOK_BYTES:
                looked = size
                if shutil.disk_usage(os.path.dirname(out.name)).free < FREE_BYTES_MIN:
                    raise OSError(errno.ENOSPC, NO_ROOM, out.name)
    finally:
        out.truncate(max(size, out.tell()))
