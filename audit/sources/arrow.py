"""Object stores and HDFS: what ``pyarrow.fs`` reads by itself, and by fsspec's drivers all else they know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from audit.sources.location import shown, without_secrets
from audit.sources.storage import NOT_REGULAR, UnfitFileError
from model.errors import ConfigError

BY_FSSPEC: Final = "fsspec+"
"""Before a scheme that both know, for instance ``fsspec+s3://``: fsspec's driver and its configuration."""


class ArrowStorage:
    """A URL (``s3://``, ``gs://``, ``hdfs://``, ``abfs://``, ``file://``; by fsspec ``sftp://``, ``memory://``
    and others): range reads. The connection is this process's, for all storages of one URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, self._root = connected(url)
        self._files: dict[str, Any] = {}

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def listdir(self, path: str) -> list[str]:
        from pyarrow import fs

        selector = fs.FileSelector(self._full(path), allow_not_found=True)
        with self._named(path):
            return sorted(info.base_name for info in self._fs.get_file_info(selector))

    def _info(self, path: str) -> Any:
        from pyarrow import fs

        with self._named(path):
            info = self._fs.get_file_info(self._full(path))
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(2, "no such file", f"{shown(self._url)}: {path}")
        return info

    def size(self, path: str) -> int:
        from pyarrow import fs

        info = self._info(path)
        if info.type != fs.FileType.File:
            raise UnfitFileError(22, NOT_REGULAR, f"{shown(self._url)}: {path}")
        return int(info.size)

    def mtime_ns(self, path: str) -> int:
        return int(self._info(path).mtime_ns or 0)

    def exists(self, path: str) -> bool:
        try:
            self._info(path)
        except FileNotFoundError:
            return False
        return True

    def read(self, path: str, offset: int, size: int) -> bytes:
        if path not in self._files and self._fs.type_name == "local":
            self.size(path)  # a pipe would be waited for
        with self._named(path):
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

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Drivers raise what the libraries below them raise, and seldom say of which file."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(2, "no such file", f"{shown(self._url)}: {path}") from None
        except NotADirectoryError:
            raise NotADirectoryError(20, "not a directory", f"{shown(self._url)}: {path}") from None
        except Exception as error:
            why = without_secrets(str(error).strip() or type(error).__name__, self._url)
            number = error.errno if isinstance(error, OSError) and error.errno else 5
            raise OSError(number, why.splitlines()[0], f"{shown(self._url)}: {path}") from error


@lru_cache(maxsize=64)
def connected(url: str) -> tuple[Any, str]:
    """The file system and the store's path there. Raises ConfigError."""
    import pyarrow
    from pyarrow import fs

    if not url.startswith(BY_FSSPEC):
        try:
            made: tuple[Any, str] = fs.FileSystem.from_uri(url)
            return made
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, ValueError) as error:
            if "Unrecognized filesystem" not in str(error):
                raise ConfigError(f"store {shown(url)}: {without_secrets(str(error), url)}") from None
    try:
        import fsspec
    except ImportError:
        raise ConfigError(f"store {shown(url)} needs fsspec: pip install 'keelmq[backup]'") from None
    try:
        files, root = fsspec.core.url_to_fs(url.removeprefix(BY_FSSPEC))
    except Exception as error:  # noqa: BLE001 - a driver that is missing, or what it says of the URL
        raise ConfigError(f"store {shown(url)}: {without_secrets(str(error), url)}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(files)), str(root)
