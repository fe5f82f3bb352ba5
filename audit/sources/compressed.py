"""Compressed copies as stores: a tar file, or a store in which single files are compressed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

from audit.sources.location import CODECS, Archive, shown
from audit.sources.storage import LocalStorage, Storage
from audit.sources.unpacked import unpacked_archive, unpacked_file

T = TypeVar("T")

_SEGMENT: Final = re.compile(rf"\d{{20}}\.({'|'.join(CODECS)})")


def archived(archive: Archive, make: Callable[[str], Storage]) -> Storage:
    """The store inside an archive; ``make``: of the folder's location its storage. Raises OSError."""
    where = shown(archive.parent)
    folder = unpacked_archive(archive.parent, lambda: make(archive.parent), archive.file, archive.codec)
    inside = archive.folder or _only_store(str(folder), f"{where}/{archive.file}")
    root = os.path.normpath(folder / inside)
    if os.path.commonpath([root, folder]) != str(folder) or not os.path.isdir(root):
        raise FileNotFoundError(2, f"no folder {archive.folder} in this archive", f"{where}/{archive.file}")
    return LocalStorage(root)


@lru_cache(maxsize=64)
def _only_store(folder: str, name: str) -> str:
    """The one that has a log. Raises OSError when there is none, or there are several."""
    found = sorted(str(log.parent.relative_to(folder)) for log in Path(folder).rglob("commitlog"))
    if not found:
        raise FileNotFoundError(2, "no commitlog in this archive", name)
    if len(found) > 1:
        raise OSError(22, f"several stores in this archive: name one as {name}#{found[0]}", name)
    return found[0]


class CannotUnpackError(OSError):
    """A single file's copy is damaged, or cut short."""


class Unpacking:
    """Any storage. Of a store whose segments are ``<20 digits>.gz`` (``.zst``, ``.bz2``), every file that has
    such a suffix is one without it; it is unpacked when it is asked for."""

    def __init__(self, files: Storage, location: str, make: Callable[[str], Storage]) -> None:
        self._files, self._location, self._make = files, location, make
        self._packed: bool | None = None
        self._unpacked: dict[str, tuple[LocalStorage, str]] = {}

    def _is_packed(self) -> bool:
        if self._packed is None:
            self._packed = False
            with suppress(OSError):
                self._packed = any(map(_SEGMENT.fullmatch, self._files.listdir("commitlog")))
        return self._packed

    def listdir(self, path: str) -> list[str]:
        names = self._files.listdir(path)
        if not names or not self._is_packed():
            return names
        told = {_stem(name) for name in names}
        return sorted(told | self._behind(names) if path.startswith("commitlog") else told)

    def _behind(self, names: list[str]) -> set[str]:
        """Compressed files that nobody reads by the name without its suffix: another file is read by that."""
        behind, taken = set(), {name for name in names if _stem(name) == name}
        for suffix in CODECS:
            packed = {name for name in names if name.endswith(f".{suffix}")}
            behind |= {name for name in packed if _stem(name) in taken}
            taken |= set(map(_stem, packed))
        return behind

    def size(self, path: str) -> int:
        return self._either(path, lambda files, name: files.size(name))

    def mtime_ns(self, path: str) -> int:
        try:
            return self._files.mtime_ns(path)
        except FileNotFoundError:
            if not self._is_packed():
                raise
            return self._files.mtime_ns(self._compressed(path)[0])

    def exists(self, path: str) -> bool:
        if self._files.exists(path):
            return True
        try:
            self._compressed(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read(self, path: str, offset: int, size: int) -> bytes:
        return self._either(path, lambda files, name: files.read(name, offset, size))

    def data_from(self, path: str, offset: int) -> int | None:
        return self._either(path, lambda files, name: files.data_from(name, offset))

    def close(self) -> None:
        for files, _ in self._unpacked.values():
            files.close()
        self._unpacked.clear()
        self._files.close()

    def _either(self, path: str, ask: Callable[[Storage, str], T]) -> T:
        if path not in self._unpacked:
            try:
                return ask(self._files, path)
            except FileNotFoundError:
                if not self._is_packed():
                    raise
                self._unpack(path)
        files, problem = self._unpacked[path]
        if problem:
            why = f"cannot be unpacked: {problem}"
            raise CannotUnpackError(5, why, f"{shown(self._location)}: {path}")
        return ask(files, "file")

    def _unpack(self, path: str) -> None:
        """Raises FileNotFoundError when no compressed file is there either."""
        name, codec = self._compressed(path)
        location = self._location
        file, problem = unpacked_file(location, lambda: self._make(location), name, codec)
        self._unpacked[path] = (LocalStorage(str(file.parent)), problem)

    def _compressed(self, path: str) -> tuple[str, str]:
        if self._is_packed():
            for suffix, codec in CODECS.items():
                if self._files.exists(f"{path}.{suffix}"):
                    return f"{path}.{suffix}", codec
        raise FileNotFoundError(2, "no such file", f"{shown(self._location)}: {path}")


def _stem(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    return stem if suffix in CODECS else name
