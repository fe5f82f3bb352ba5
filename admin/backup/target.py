"""Where do backups lie? In a directory, of this machine or mounted from elsewhere, or behind a URL
(admin.backup.remote)."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final

from admin.backup.manifest import CannotBackUp, Damaged, Manifest, Part, decode, encode, ms_of, next_name
from runtime.os_env import DIRECTORY_MODE, FILE_MODE

BLOCK_BYTES: Final = 4 << 20
OBJECTS: Final = "objects"
MANIFESTS: Final = "manifests"
LOCK: Final = "lock"
READING: Final = ".reading"
"""Among the manifests: held, or begun so, by those that read a backup."""
DRAFT: Final = ".draft-"
"""What is being written begins with it."""
ROTTEN: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
"""What a disk, or a file system with checksums, says of bytes that it lost."""
DAMAGED: Final = ".damaged"
"""Behind the name of an object: it was found to be another one."""

Progress = Callable[[int], None]
"""Hears how many bytes were read or written since the last call."""


def blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """``size`` bytes of ``file``; fewer when it ends before."""
    while size > 0 and (block := file.read(min(BLOCK_BYTES, size))):
        size -= len(block)
        yield block


def create(path: Path) -> BinaryIO:
    """Open a file to be written, as servers make theirs: of a store it holds messages and passwords."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def make_directory(path: Path) -> None:
    """As ``create``; what is there stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


class Target(ABC):
    """One place of backups; ``place``: as it is told. ``problems``: what is wrong and was no reason to stop.
    All raise CannotBackUp, OSError."""

    def __init__(self, place: str, progress: Progress) -> None:
        self.place = place
        self.progress = progress
        self.problems: list[str] = []

    @abstractmethod
    def make(self) -> None:
        """Make the place; one with other things in it is left alone."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """One backup at a time: another one's parts are not named yet."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[None]:
        """Meanwhile no backup is removed here; who may not say so here reads all the same."""

    @abstractmethod
    def _unread(self) -> AbstractContextManager[bool]:
        """Whether nobody is ``reading``, or begins to meanwhile."""

    @abstractmethod
    def _has(self, sha256: str, size: int) -> bool: ...

    @abstractmethod
    def put(self, file: BinaryIO, size: int) -> tuple[str, bool]:
        """Keep ``size`` bytes of ``file``: their SHA-256, and whether they are new here."""

    @abstractmethod
    def _manifests(self) -> list[str] | None:
        """Names of files; None: there is no place for them."""

    @abstractmethod
    def _objects(self) -> Iterable[str]: ...

    @abstractmethod
    def _read(self, file: str) -> bytes:
        """A whole manifest."""

    @abstractmethod
    def _open(self, sha256: str) -> AbstractContextManager[BinaryIO]:
        """Raises FileNotFoundError."""

    @abstractmethod
    def _add(self, file: str, data: bytes) -> None:
        """A manifest whose parts are all here: it is there whole, or not at all."""

    @abstractmethod
    def _remove(self, kind: str, file: str) -> None: ...

    @abstractmethod
    def _mark(self, file: str) -> None:
        """Make an empty object."""

    @cached_property
    def _marked(self) -> set[str]:
        """The objects that are to be written anew."""
        return {file.removesuffix(DAMAGED) for file in self._objects() if file.endswith(DAMAGED)}

    def has(self, part: Part) -> bool:
        """Whether it is there, as far as its size says and nobody found it damaged."""
        return part.sha256 not in self._marked and self._has(part.sha256, part.size)

    def mark(self, part: Part) -> None:
        """It is damaged: the next backup whose store has it writes it anew."""
        self._mark(part.sha256 + DAMAGED)

    def _rewritten(self, sha256: str) -> None:
        """An object is there as it is to be."""
        if sha256 in self._marked:
            self._remove(OBJECTS, sha256 + DAMAGED)
            self._marked.discard(sha256)

    def names(self) -> list[str]:
        """Of all backups, oldest first."""
        found = self._manifests()
        if found is None:
            raise CannotBackUp(f"{self.place} holds no backups: it has no manifests")
        return sorted(name for file in found if ms_of(name := file.removesuffix(".json")) is not None)

    def chosen(self, name: str | None) -> str:
        """``name``, or the newest one's."""
        names = self.names()
        if not names:
            raise CannotBackUp(f"{self.place} holds no backup yet")
        if name is not None and name not in names:
            raise CannotBackUp(f"{self.place} has no backup {name}: keelmq backup list shows them")
        return name or names[-1]

    def manifest(self, name: str) -> Manifest:
        """One of ``names``."""
        file = f"{name}.json"
        return decode(self._read(file), f"{self.place}/{MANIFESTS}/{file}")

    def manifests(self, names: Iterable[str]) -> dict[str, Manifest | str]:
        """Those of ``names``; of one that cannot be read, why."""
        found: dict[str, Manifest | str] = {}
        for name in names:
            try:
                found[name] = self.manifest(name)
            except (CannotBackUp, OSError) as error:
                found[name] = str(error)
        return found

    def copy(self, part: Part, out: BinaryIO | None) -> None:
        """Read a part, compare its SHA-256, and write it to ``out`` if there is one."""
        digest, size = hashlib.sha256(), 0
        path = f"{self.place}/{OBJECTS}/{part.sha256}"
        for block in self._blocks(part, path):
            digest.update(block)
            size += len(block)
            if out is not None:
                out.write(block)
            self.progress(len(block))
        if digest.hexdigest() != part.sha256 or size != part.size:
            raise Damaged(f"{path} is damaged: this backup is not whole")

    def _blocks(self, part: Part, path: str) -> Iterator[bytes]:
        """Of an object, to one byte more than it is to have. Raises Damaged."""
        try:
            with self._open(part.sha256) as file:
                yield from blocks(file, part.size + 1)
        except FileNotFoundError:
            raise Damaged(f"{path} is missing: this backup is not whole") from None
        except OSError as error:
            if error.errno not in ROTTEN:
                raise
            raise Damaged(f"{path} cannot be read ({error.strerror}): this backup is not whole") from None

    def finish(self, manifest: Manifest, keep: int) -> str:
        """Add a backup whose parts are all here; of older ones ``keep - 1`` stay. Returns its name."""
        names = self.names()
        name = next_name(names, manifest.made_ms)
        data = encode(manifest)
        decode(data, f"what would be {name}")  # one that cannot be read is added nowhere, and replaces none
        self._add(f"{name}.json", data)
        try:
            with self._unread() as unread:
                if unread:
                    self._clear([*names, name], keep)
                elif len(names) >= keep:
                    self.problems.append("what is older was not removed: a backup is being read here")
        except (CannotBackUp, OSError) as error:
            self.problems.append(f"what is older was not removed: {error}")
        return name

    def _clear(self, names: list[str], keep: int) -> None:
        needed, unread, kept = set[str](), list[str](), 0
        for name in reversed(names):
            if kept == keep:
                self._remove(MANIFESTS, f"{name}.json")
                continue
            found = self.manifests([name])[name]
            if isinstance(found, str):
                unread.append(found)  # restores nothing, so it takes no good one's place
            else:
                kept += 1
                needed |= {part.sha256 for part in found.parts}
        self.problems += unread
        # What cannot be read may name any part, so none is taken away until it is too old itself.
        for file in () if unread else self._objects():
            if file.removesuffix(DAMAGED) not in needed:
                self._remove(OBJECTS, file)


class DirectoryTarget(Target):
    """One directory of backups."""

    def __init__(self, directory: Path, progress: Progress = lambda size: None) -> None:
        super().__init__(str(directory), progress)
        self.directory = directory

    def make(self) -> None:
        there = [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []
        others = sorted(set(there) - {OBJECTS, MANIFESTS, LOCK})
        if others:
            raise CannotBackUp(f"{self.directory} holds other things than backups: {others[0]}")
        for path in (self.directory, self.directory / OBJECTS, self.directory / MANIFESTS):
            make_directory(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with create(self.directory / LOCK) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotBackUp(f"another backup into {self.directory} is under way") from None
            for kind in (OBJECTS, MANIFESTS):
                for draft in (self.directory / kind).glob(f"{DRAFT}*"):
                    draft.unlink()  # of one that was killed
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        with ExitStack() as held:
            with suppress(OSError):
                file = held.enter_context((self.directory / MANIFESTS / READING).open("rb"))
                fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @contextmanager
    def _unread(self) -> Iterator[bool]:
        with create(self.directory / MANIFESTS / READING) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                unread = True
            except BlockingIOError:
                unread = False
            yield unread

    def _has(self, sha256: str, size: int) -> bool:
        path = self.directory / OBJECTS / sha256
        return path.is_file() and path.stat().st_size == size

    def put(self, file: BinaryIO, size: int) -> tuple[str, bool]:
        objects = self.directory / OBJECTS
        draft = objects / f"{DRAFT}{os.getpid()}"
        digest, taken = hashlib.sha256(), 0
        try:
            with create(draft) as out:
                for block in blocks(file, size):
                    digest.update(block)
                    taken += out.write(block)
                    self.progress(len(block))
                if taken != size:
                    raise CannotBackUp(f"{file.name} became shorter while it was read")
                out.flush()
                os.fsync(out.fileno())
            sha256 = digest.hexdigest()
            is_new = not self.has(Part(sha256, size))
            draft.replace(objects / sha256)  # also where it is there: that one may have rotted meanwhile
            self._rewritten(sha256)
            return sha256, is_new
        finally:
            draft.unlink(missing_ok=True)

    def _manifests(self) -> list[str] | None:
        directory = self.directory / MANIFESTS
        return [path.name for path in directory.iterdir()] if directory.is_dir() else None

    def _objects(self) -> Iterable[str]:
        return [path.name for path in (self.directory / OBJECTS).iterdir()]

    def _read(self, file: str) -> bytes:
        return (self.directory / MANIFESTS / file).read_bytes()

    def _open(self, sha256: str) -> AbstractContextManager[BinaryIO]:
        return (self.directory / OBJECTS / sha256).open("rb")

    def _add(self, file: str, data: bytes) -> None:
        _sync(self.directory / OBJECTS)
        manifests = self.directory / MANIFESTS
        draft = manifests / f"{DRAFT}{os.getpid()}"
        try:
            with create(draft) as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            draft.replace(manifests / file)
        finally:
            draft.unlink(missing_ok=True)
        _sync(manifests)

    def _remove(self, kind: str, file: str) -> None:
        (self.directory / kind / file).unlink()

    def _mark(self, file: str) -> None:
        create(self.directory / OBJECTS / file).close()


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
