"""Which stores are meant, and which source reads each: a path, a URL, a compressed copy, another host.

``open_storage`` is cheap: connections, shells on other hosts and unpacked copies belong to the process and
are taken up again. Errors are OSError and name the source.
"""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote, unquote, urlsplit

from audit.sources.arrow import BY_FSSPEC, ArrowStorage
from audit.sources.compressed import Unpacking, archived
from audit.sources.http import HttpStorage
from audit.sources.limits import Limited
from audit.sources.location import CODECS, archive_of, in_folder, shown, without_secrets
from audit.sources.ssh import ssh_storage
from audit.sources.storage import LocalStorage, Storage, StoredFile, UnfitFileError, names_in
from audit.sources.unpacked import stream_of
from model.errors import ConfigError

__all__ = [
    "LocalStorage",
    "Storage",
    "StoreSpec",
    "UnfitFileError",
    "inode",
    "inside",
    "names_in",
    "open_file",
    "open_folder",
    "open_storage",
    "parse_stores",
    "shown",
    "without_secrets",
]


def open_storage(location: str) -> Storage:
    """The storage behind a directory, a URL or an archive. Raises ConfigError on a URL nobody can read."""
    archive = archive_of(location)
    if archive is not None:
        return Limited(archived(archive, open_folder))
    return Limited(Unpacking(open_folder(location), location, open_folder))


def open_folder(location: str) -> Storage:
    """A directory, or a URL's, that need be no store's: its files have any size. Raises ConfigError."""
    scheme = location.partition("://")[0] if "://" in location else ""
    if not scheme:
        return LocalStorage(location)
    if scheme in ("http", "https"):
        return HttpStorage(location)
    return ssh_storage(location) if scheme == "ssh" else ArrowStorage(location)


def open_file(location: str) -> tuple[BinaryIO, int]:
    """A single file for reading, unpacked on its way if its suffix tells so, and its stored size in bytes: a
    compressed one cannot be sought in. Raises OSError, ConfigError."""
    codec = codec_of(location)
    if "://" not in location and not codec:
        file = open(location, "rb")  # noqa: SIM115 - the caller closes it
        return file, os.fstat(file.fileno()).st_size
    folder, name = in_folder(location)
    storage = open_folder(folder)
    try:
        stored = StoredFile(storage, name)
        file = stream_of(stored, codec) if codec else io.BufferedReader(stored, 1 << 20)
        return file, stored.size_bytes
    except BaseException:
        storage.close()
        raise


def codec_of(location: str) -> str:
    """How a single file is compressed, by Arrow's name; empty: not."""
    path = location.partition("?")[0] if "://" in location else location
    return CODECS.get(path.rpartition(".")[2].lower(), "")


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A replica as the command line names it. ``named``: the user did, and not the last part of its path."""

    name: str
    location: str
    named: bool = False

    @property
    def identity(self) -> str:
        """The same whatever other stores there are."""
        return self.name if self.named else shown(self.location)


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NAMED: Final = re.compile(rf"^({_NAME.pattern})=(.+)$")


def parse_stores(texts: list[str]) -> list[StoreSpec]:
    """``DIR``, ``name=DIR``, ``name=URL`` or ``@MANIFEST`` each; without a name, the last part of the path.

    Names that clash are lengthened by the part before (``before/b0`` and ``after/b0``), but for those that
    were given. Raises ConfigError.
    """
    specs: list[StoreSpec] = []
    for text in texts:
        if text.startswith("@") and not os.path.exists(text):
            specs += read_manifest(text[1:])
            continue
        if (named := _NAMED.match(text)) and not os.path.exists(text):
            specs.append(StoreSpec(named[1], _absolute(named[2]), named=True))
            continue
        location = _absolute(text)
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
    return _told_apart(specs)


def _absolute(location: str) -> str:
    """A URL, or a path that is the same from anywhere; what stands behind an archive's ``#`` is inside it."""
    if "://" in location:
        return location
    path, mark, folder = location.partition("#") if archive_of(location) is not None else (location, "", "")
    return os.path.abspath(path) + mark + folder


def _told_apart(specs: list[StoreSpec]) -> list[StoreSpec]:
    """Raises ConfigError."""
    told = [spec.name for spec in specs if spec.named]
    if twice := sorted({name for name in told if told.count(name) > 1}):
        raise ConfigError(f"two stores are named {twice[0]}")
    depth = 1
    while len({s.name for s in specs}) < len(specs):
        depth += 1
        if depth > 32:
            raise ConfigError("two stores have the same name: give them as name=DIR")
        names = [s.name for s in specs]
        specs = [
            s if s.named or names.count(s.name) == 1 else StoreSpec(_tail(s.location, depth), s.location)
            for s in specs
        ]
    return specs


def read_manifest(path: str) -> list[StoreSpec]:
    """The replicas of a JSON file: ``{"replicas": [{"name", "store"}, {"name", "host", "store"}, ...]}``,
    with ``user`` and ``port`` if need be; with a ``host``, ``store`` is a path there. Raises ConfigError."""
    try:
        rows = json.loads(Path(path).read_text())["replicas"]
        specs = [_listed(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        raise ConfigError(f"manifest {path}: {why}") from None
    if not specs:
        raise ConfigError(f"manifest {path}: it lists no replica")
    return specs


def _listed(row: dict[str, Any]) -> StoreSpec:
    """Raises KeyError, ValueError, TypeError."""
    unknown = sorted(set(row) - {"name", "host", "user", "port", "store"})
    if unknown:
        raise ValueError(f"unknown name {unknown[0]!r}")
    name, store = str(row["name"]), str(row["store"])
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a replica")
    if "host" not in row:
        return StoreSpec(name, _absolute(store), named=True)
    if not store.startswith("/"):
        raise ValueError(f"{name}: an absolute path on {row['host']} is expected, found {store!r}")
    user = f"{quote(str(row['user']), safe='')}@" if row.get("user") else ""
    port = f":{int(row['port'])}" if row.get("port") else ""
    return StoreSpec(name, f"ssh://{user}{row['host']}{port}{quote(store)}", named=True)


def _identity(location: str) -> object:
    """The same for two ways to one store: the directory its log lies in, or the URL when it is not local."""
    path = _on_this_machine(location)
    if "://" in path:
        return path.rstrip("/")
    # No store, or not readable: said when it is looked at.
    return inode(location, "commitlog") or os.path.realpath(path)


def _on_this_machine(location: str) -> str:
    """The path of a store that lies here, whatever names it; else its URL."""
    path = location.removeprefix(BY_FSSPEC)
    path = unquote(path.removeprefix("file://")) if path.startswith("file://") else path
    if path.startswith("ssh://"):
        files = ssh_storage(path)
        path = files.root if isinstance(files, LocalStorage) else path
    return path


def inode(location: str, file: str) -> tuple[int, int] | None:
    """Device and number of a file of a store, the same for all its names; None where that cannot be told."""
    path = _on_this_machine(location)
    if "://" in path:
        return None
    try:
        found = os.stat(os.path.join(path, file))
    except OSError:
        return None
    return found.st_dev, found.st_ino


def inside(path: str, location: str) -> bool:
    """Does a path of this machine, which need not be there yet, lie in a store?"""
    store = _on_this_machine(location)
    if "://" in store or not os.path.isdir(store):
        return False
    whole, root = os.path.realpath(path), os.path.realpath(store)
    return os.path.commonpath([whole, root]) == root


def _tail(location: str, parts: int) -> str:
    if "://" in location:  # neither who may read it nor how is part of a name
        url = urlsplit(location)
        location = f"{url.netloc.rpartition('@')[2]}{url.path}{'#' if url.fragment else ''}{url.fragment}"
    if archive_of(location) is not None:
        location = location.replace("#", "/")
    return "/".join([part for part in location.split("/") if part][-parts:]) or "store"
