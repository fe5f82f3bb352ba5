"""How do backups lie in an object store, or another file system? By fsspec: ``s3://bucket/broker-a``.

The layout is a directory's (admin.backup.manifest). An object store renames nothing, so a part is read twice:
once for its name, which is its SHA-256, and once on its way. One that did not arrive whole has another size
and is sent again.

What a driver needs (keys, an endpoint) it takes from its own environment and files, and of fsspec's.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from admin.backup.manifest import CannotBackUp, Part
from admin.backup.target import LOCK, MANIFESTS, OBJECTS, READING, DirectoryTarget, Progress, Target, blocks
from model.errors import MqError

LOCK_MS: Final = 10 * 60_000
"""A backup that said nothing for so long is believed to have ended."""
TOLD_S: Final = 60.0
ENDS_S: Final = 10.0
"""So long a backup that is done waits for a word about the lock that is on its way."""


def target_of(place: Path | str, progress: Progress, now_ms: Callable[[], int]) -> Target:
    """``place``: a directory, or a URL. Raises CannotBackUp, also without fsspec or a driver for it."""
    if isinstance(place, Path):
        return DirectoryTarget(place, progress)
    if place.startswith("file://"):
        return DirectoryTarget(Path(place.removeprefix("file://")), progress)
    scheme = place.partition(":")[0]
    try:
        import fsspec
    except ImportError:
        raise CannotBackUp(f"{scheme}:// needs fsspec: pip install 'keelmq[backup]'") from None
    try:
        files, root = fsspec.core.url_to_fs(place)
    except Exception as error:  # noqa: BLE001 - a driver that is missing, or what it says of the URL
        raise CannotBackUp(f"{scheme}://: {_said(error)}") from None

    def connect() -> Any:
        return fsspec.core.url_to_fs(place, skip_instance_cache=True)[0]

    path = f"{root.rstrip('/')}/{LOCK}"
    return RemoteTarget(files, root, progress, RemoteLock(files, path, now_ms), connect)


class RemoteLock:
    """An object that says who makes, or reads, a backup there, and when that was told last. Raises what
    drivers do. ``own``: the name of this process."""

    def __init__(self, files: Any, path: str, now_ms: Callable[[], int]) -> None:
        self.own = f"{socket.gethostname()}:{os.getpid()}"
        self._files = files
        self._path = path
        self._now_ms = now_ms

    def over(self, files: Any) -> RemoteLock:
        """The same, over a connection of its own."""
        found = RemoteLock(files, self._path, self._now_ms)
        found.own = self.own
        return found

    def at(self, path: str) -> RemoteLock:
        """Another one of this process."""
        found = RemoteLock(self._files, path, self._now_ms)
        found.own = self.own
        return found

    def holder(self) -> str | None:
        """Who holds it now. One of a clock that is so wrong would hold as long as that clock is ahead."""
        found = self._word()
        return found[0] if found is not None and abs(self._now_ms() - found[1]) < LOCK_MS else None

    def is_ours(self) -> bool:
        found = self._word()
        return found is not None and found[0] == self.own

    def tell(self) -> None:
        word = json.dumps({"by": self.own, "atMs": self._now_ms()}).encode()
        self._files.pipe_file(self._path, word)

    def remove(self) -> None:
        self._files.rm_file(self._path)

    def _word(self) -> tuple[str, int] | None:
        """By whom, and when it was told last."""
        try:
            found = json.loads(self._files.cat_file(self._path))
            return str(found["by"]), int(found["atMs"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None  # half a word of one that ended


class RemoteTarget(Target):
    """``files``: of fsspec. ``root``: the path of the backups there. ``connect``: makes another connection;
    that of some drivers does one thing at a time."""

    def __init__(
        self, files: Any, root: str, progress: Progress, lock: RemoteLock, connect: Callable[[], Any]
    ) -> None:
        super().__init__(str(files.unstrip_protocol(root)).rstrip("/"), progress)
        self._files = files
        self._root = root.rstrip("/")
        self._lock = lock
        self._connect = connect

    def make(self) -> None:
        others = sorted(set(self._names()) - {OBJECTS, MANIFESTS, LOCK})
        if others:
            raise CannotBackUp(f"{self.place} holds other things than backups: {others[0]}")
        with self._asked():
            for name in (OBJECTS, MANIFESTS):
                self._files.makedirs(self._path(name), exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """By an object that is written again and again, whatever takes long. Of two that begin in the same
        moment both may go on; the one whose lock it is not does not ``finish``."""
        with self._asked():
            other = self._lock.holder()
            if other is not None:
                raise CannotBackUp(f"another backup into {self.place} is under way, by {other}")
        with self._held(self._lock):
            yield

    @contextmanager
    def _held(self, lock: RemoteLock) -> Iterator[None]:
        """It goes afterwards, unless it has become another's."""
        with self._asked():
            lock.tell()
        ended = threading.Event()
        telling = threading.Thread(target=self._tell_on, args=(ended, lock), name="backup lock", daemon=True)
        telling.start()
        try:
            yield
        finally:
            ended.set()
            telling.join(ENDS_S)
            try:
                with self._asked():
                    if lock.is_ours():
                        lock.remove()
            except (MqError, OSError) as error:
                self.problems.append(f"the lock stays for {LOCK_MS // 60_000} minutes: {error}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        with ExitStack() as held:
            with suppress(MqError, OSError):
                if self._manifests():
                    name = f"{READING}-{self._lock.own.replace(':', '-')}"
                    held.enter_context(self._held(self._lock.at(self._path(MANIFESTS, name))))
            yield

    @contextmanager
    def _unread(self) -> Iterator[bool]:
        """One that begins in the same moment is not seen: what it reads may go, and it says so."""
        held = False
        for name in self._names(MANIFESTS):
            if name.startswith(READING):
                with self._asked():
                    is_held = self._lock.at(self._path(MANIFESTS, name)).holder() is not None
                held = held or is_held
                if not is_held:
                    self._remove(MANIFESTS, name)
        yield not held

    def _has(self, sha256: str, size: int) -> bool:
        with self._asked():
            self._files.invalidate_cache()
            path = self._path(OBJECTS, sha256)
            return bool(self._files.isfile(path)) and self._files.size(path) == size

    def put(self, file: BinaryIO, size: int) -> tuple[str, bool]:
        at = file.tell()
        digest = hashlib.sha256()
        for block in blocks(file, size):
            digest.update(block)
        sha256 = digest.hexdigest()
        if file.tell() - at != size:
            raise CannotBackUp(f"{file.name} became shorter while it was read")
        if self.has(Part(sha256, size)):
            self.progress(size)
            return sha256, False
        file.seek(at)
        if self._send(file, size, self._path(OBJECTS, sha256)) != sha256:
            self._remove(OBJECTS, sha256)
            raise CannotBackUp(f"{file.name} changed while it was read: try again")
        self._rewritten(sha256)
        return sha256, True

    def _send(self, file: BinaryIO, size: int, path: str) -> str:
        digest = hashlib.sha256()
        with self._asked(), self._files.open(path, "wb") as out:
            for block in blocks(file, size):
                digest.update(block)
                out.write(block)
                self.progress(len(block))
        return digest.hexdigest()

    def finish(self, manifest: Any, keep: int) -> str:
        if not self._is_ours():
            raise CannotBackUp(f"another backup into {self.place} began meanwhile: try again")
        gone = next((part for part in manifest.parts if not self.has(part)), None)
        if gone is not None:
            raise CannotBackUp(f"{self.place}/{OBJECTS}/{gone.sha256} did not arrive: try again")
        return super().finish(manifest, keep)

    def _manifests(self) -> list[str] | None:
        # An object store has no directories: one of no backups yet looks like one that never was.
        return self._names(MANIFESTS) if MANIFESTS in self._names() else None

    def _objects(self) -> Iterable[str]:
        return self._names(OBJECTS)

    def _read(self, file: str) -> bytes:
        with self._asked():
            return bytes(self._files.cat_file(self._path(MANIFESTS, file)))

    def _open(self, sha256: str) -> AbstractContextManager[BinaryIO]:
        return self._opened(self._path(OBJECTS, sha256))

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        with self._asked(), closing(self._files.open(path, "rb")) as file:
            yield file

    def _add(self, file: str, data: bytes) -> None:
        with self._asked():
            self._files.pipe_file(self._path(MANIFESTS, file), data)

    def _remove(self, kind: str, file: str) -> None:
        with self._asked():
            self._files.rm_file(self._path(kind, file))

    def _mark(self, file: str) -> None:
        with self._asked():
            self._files.pipe_file(self._path(OBJECTS, file), b"")

    def _path(self, *names: str) -> str:
        return "/".join((self._root, *names))

    def _names(self, *below: str) -> list[str]:
        with self._asked():
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(*below), detail=False)
            except FileNotFoundError:
                return []
        return [name for path in found if (name := str(path).rstrip("/").rpartition("/")[2])]

    def _is_ours(self) -> bool:
        with self._asked():
            return self._lock.is_ours()

    def _tell_on(self, ended: threading.Event, own: RemoteLock) -> None:
        lock: RemoteLock | None = None
        while not ended.wait(TOLD_S):
            # Told again after the next wait; ``finish`` looks whose it is.
            with suppress(MqError, OSError), self._asked():
                lock = lock or own.over(self._connect())
                if lock.is_ours():
                    lock.tell()

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Drivers raise what the libraries below them raise."""
        try:
            yield
        except (MqError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - see above
            raise CannotBackUp(f"{self.place}: {_said(error)}") from None


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
