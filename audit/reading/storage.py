"""Where do a replica's bytes come from: a local directory, or a URL a file system library can read by range.

Nothing here writes. Paths below a root use ``/``. Errors are OSError.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from model.errors import ConfigError


class Storage(Protocol):
    """Read-only access to one store directory."""

    def listdir(self, path: str) -> list[str]:
        """Names in ``path``, sorted; empty when it does not exist."""

    def size(self, path: str) -> int:
        """Bytes of a file. FileNotFoundError when absent."""

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
            return sorted(os.listdir(self._full(path)))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return os.stat(self._full(path)).st_size

    def mtime_ns(self, path: str) -> int:
        return os.stat(self._full(path)).st_mtime_ns

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def _open(self, path: str) -> int:
        descriptor = self._files.get(path)
        if descriptor is None:
            descriptor = self._files[path] = os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC)
        return descriptor

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


class ArrowStorage:
    """A URL that ``pyarrow.fs`` understands (``s3://``, ``gs://``, ``hdfs://``, ``file://``): range reads."""

    def __init__(self, url: str) -> None:
        import pyarrow
        from pyarrow import fs

        try:
            self._fs, self._root = fs.FileSystem.from_uri(url)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, ValueError) as error:
            raise ConfigError(f"store {shown(url)}: {without_secrets(str(error), url)}") from None
        self._files: dict[str, Any] = {}

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def listdir(self, path: str) -> list[str]:
        from pyarrow import fs

        selector = fs.FileSelector(self._full(path), allow_not_found=True)
        return sorted(info.base_name for info in self._fs.get_file_info(selector))

    def _info(self, path: str) -> Any:
        from pyarrow import fs

        info = self._fs.get_file_info(self._full(path))
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(2, "no such file", self._full(path))
        return info

    def size(self, path: str) -> int:
        return int(self._info(path).size)

    def mtime_ns(self, path: str) -> int:
        return int(self._info(path).mtime_ns or 0)

    def exists(self, path: str) -> bool:
        try:
            self._info(path)
        except FileNotFoundError:
            return False
        return True

    def read(self, path: str, offset: int, size: int) -> bytes:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._fs.open_input_file(self._full(path))
        size = min(size, file.size() - offset)
        return bytes(file.read_at(size, offset)) if size > 0 else b""

    def data_from(self, path: str, offset: int) -> int | None:
        return offset

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def open_storage(location: str) -> Storage:
    """The storage behind a directory or URL. Raises ConfigError on a URL nobody can read."""
    return ArrowStorage(location) if "://" in location else LocalStorage(location)


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A replica as the command line names it."""

    name: str
    location: str


_NAMED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9_.-]*)=(.+)$")


def parse_stores(texts: list[str]) -> list[StoreSpec]:
    """``DIR``, ``name=DIR`` or ``name=URL`` each; a name not given is the last part of the path.

    Names that clash are lengthened by the part before (``before/b0`` and ``after/b0``). Raises ConfigError.
    """
    specs: list[StoreSpec] = []
    for text in texts:
        if (named := _NAMED.match(text)) and not os.path.exists(text):
            specs.append(StoreSpec(named[1], named[2]))
            continue
        location = text if "://" in text else os.path.abspath(text)
        specs.append(StoreSpec(_tail(location, 1), location))
    seen: dict[object, str] = {}
    for spec in specs:
        # A log compared with itself would be proved equal, and its copies counted as two.
        identity = _identity(spec.location)
        if identity in seen:
            raise ConfigError(
                f"the same store is given twice: {shown(seen[identity])} and {shown(spec.location)}"
            )
        seen[identity] = spec.location
    depth = 1
    while len({s.name for s in specs}) < len(specs):
        depth += 1
        if depth > 32:
            raise ConfigError("two stores have the same name: give them as name=DIR")
        names = [s.name for s in specs]
        specs = [
            StoreSpec(_tail(s.location, depth), s.location) if names.count(s.name) > 1 else s for s in specs
        ]
    return specs


def _identity(location: str) -> object:
    """The same for two ways to one store: the directory its log lies in, or the URL when it is not local."""
    path = unquote(location.removeprefix("file://")) if location.startswith("file://") else location
    if "://" in path:
        return path.rstrip("/")
    try:
        found = os.stat(os.path.join(path, "commitlog"))
    except OSError:  # no store, or not readable: said when it is looked at
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _tail(location: str, parts: int) -> str:
    if "://" in location:  # neither who may read it nor how is part of a name
        url = urlsplit(location)
        location = f"{url.netloc.rpartition('@')[2]}{url.path}"
    return "/".join([part for part in location.split("/") if part][-parts:]) or "store"


_OPEN_OPTIONS: Final = frozenset({"endpoint_override", "scheme", "region", "allow_bucket_creation"})


def shown(location: str) -> str:
    """A store's location as a report may name it: without the URL's user, password and unknown options."""
    if "://" not in location:
        return location
    url = urlsplit(location)
    user, at, host = url.netloc.rpartition("@")
    options = "&".join(
        f"{name}={value if name in _OPEN_OPTIONS else '***'}" for name, value in parse_qsl(url.query, True)
    )
    return f"{url.scheme}://{'***@' if at and user else ''}{host}{url.path}{'?' + options if options else ''}"


def without_secrets(text: str, location: str) -> str:
    """``text``, an error's words, without what ``shown`` leaves out."""
    text = text.replace(location, shown(location))
    if "://" not in location:
        return text
    url = urlsplit(location)
    user, password = url.username or "", url.password or ""
    options = [value for name, value in parse_qsl(url.query, True) if name not in _OPEN_OPTIONS]
    for secret in (user, unquote(user), password, unquote(password), *options):
        text = text.replace(secret, "***") if secret else text
    return text
