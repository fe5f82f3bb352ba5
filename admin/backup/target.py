"""Where do backups lie? A directory: of this machine, or mounted from elsewhere."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from admin.backup.manifest import NAME, CannotBackUp, Manifest, Part, decode, encode, name_of

BLOCK_BYTES: Final = 4 << 20

Progress = Callable[[int], None]
"""Hears how many bytes were read or written since the last call."""


def blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """``size`` bytes of ``file``; fewer when it ends before."""
    while size > 0 and (block := file.read(min(BLOCK_BYTES, size))):
        size -= len(block)
        yield block


class Target:
    """One directory of backups. Raises CannotBackUp, OSError."""

    def __init__(self, directory: Path, progress: Progress = lambda size: None) -> None:
        self.directory = directory
        self.progress = progress
        self._objects = directory / "objects"
        self._manifests = directory / "manifests"

    def make(self) -> None:
        """Make the directory; one with other things in it is left alone."""
        there = [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []
        others = sorted(set(there) - {"objects", "manifests", "lock"})
        if others:
            raise CannotBackUp(f"{self.directory} holds other things than backups: {others[0]}")
        for path in (self._objects, self._manifests):
            path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One backup at a time: another one's parts are not named yet."""
        with (self.directory / "lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotBackUp(f"another backup into {self.directory} is under way") from None
            yield

    def names(self) -> list[str]:
        """Of all backups, oldest first."""
        if not self._manifests.is_dir():
            raise CannotBackUp(f"{self.directory} holds no backups: it has no manifests")
        found = (path.name.removesuffix(".json") for path in self._manifests.iterdir())
        return sorted(name for name in found if NAME.fullmatch(name))

    def manifest(self, name: str | None = None) -> Manifest:
        """The backup of that name, or the newest."""
        names = self.names()
        if not names:
            raise CannotBackUp(f"{self.directory} holds no backup yet")
        if name is not None and name not in names:
            raise CannotBackUp(f"{self.directory} has no backup {name}: keelmq backup list shows them")
        chosen = name or names[-1]
        path = self._manifests / f"{chosen}.json"
        return decode(path.read_bytes(), str(path))

    def has(self, part: Part) -> bool:
        """Whether it is there, as far as its size says."""
        path = self._objects / part.sha256
        return path.is_file() and path.stat().st_size == part.size

    def put(self, file: BinaryIO, size: int) -> tuple[str, bool]:
        """Keep ``size`` bytes of ``file``: their SHA-256, and whether they are new here."""
        draft = self._objects / f".draft-{os.getpid()}"
        digest, taken = hashlib.sha256(), 0
        try:
            with draft.open("wb") as out:
                for block in blocks(file, size):
                    digest.update(block)
                    taken += out.write(block)
                    self.progress(len(block))
                if taken != size:
                    raise CannotBackUp(f"{file.name} became shorter while it was read")
                out.flush()
                os.fsync(out.fileno())
            sha256 = digest.hexdigest()
            if self.has(Part(sha256, size)):
                return sha256, False
            draft.replace(self._objects / sha256)
            return sha256, True
        finally:
            draft.unlink(missing_ok=True)

    def copy(self, part: Part, out: BinaryIO | None) -> None:
        """Read a part, compare its SHA-256, and write it to ``out`` if there is one."""
        digest, size = hashlib.sha256(), 0
        path = self._objects / part.sha256
        try:
            with path.open("rb") as file:
                for block in blocks(file, part.size + 1):
                    digest.update(block)
                    size += len(block)
                    if out is not None:
                        out.write(block)
                    self.progress(len(block))
        except FileNotFoundError:
            raise CannotBackUp(f"{path} is missing: this backup is not whole") from None
        if digest.hexdigest() != part.sha256 or size != part.size:
            raise CannotBackUp(f"{path} is damaged: this backup is not whole")

    def finish(self, manifest: Manifest, keep: int) -> str:
        """Add a backup whose parts are all here; of older ones ``keep - 1`` stay. Returns its name."""
        _sync(self._objects)
        name = name_of(manifest.made_ms)
        path = self._manifests / f"{name}.json"
        draft = self._manifests / f".draft-{os.getpid()}"
        with draft.open("wb") as out:
            out.write(encode(manifest))
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
        _sync(self._manifests)
        self._forget(keep)
        return name

    def _forget(self, keep: int) -> None:
        names = self.names()
        needed = {part.sha256 for name in names[-keep:] for part in self.manifest(name).parts}
        for name in names[:-keep]:
            (self._manifests / f"{name}.json").unlink()
        for path in self._objects.iterdir():
            if path.name not in needed:
                path.unlink()


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
