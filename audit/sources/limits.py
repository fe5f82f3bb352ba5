"""How large may a file of a store be? What is larger was made by nobody who keeps a store: it is not read.

A kind of file is its folder. RocketMQ keeps the size of a mapped file, in bytes, as an int; keelmq has no
larger ones. Tables of ``config/`` are read as a whole, and so are timers and batch queues.
"""

from __future__ import annotations

from typing import Final

from audit.sources.storage import Storage, UnfitFileError

_MAPPED_BYTES_MAX: Final = (1 << 31) - 1
_WHOLE_BYTES_MAX: Final = 512 * 1024 * 1024
_TABLE_BYTES_MAX: Final = 256 * 1024 * 1024
_NOTE_BYTES_MAX: Final = 1024 * 1024
_ANY: Final = (1 << 63) - 1
_SEGMENT_DIGITS: Final = 20
_BYTES_MAX: Final = {
    "commitlog": _MAPPED_BYTES_MAX,
    "consumequeue": _MAPPED_BYTES_MAX,
    "index": _MAPPED_BYTES_MAX,
    "batchconsumequeue": _WHOLE_BYTES_MAX,
    "consumequeue_ext": _WHOLE_BYTES_MAX,
    "timerlog": _WHOLE_BYTES_MAX,
    "timerwheel": _WHOLE_BYTES_MAX,
    "config": _TABLE_BYTES_MAX,
}


def bytes_max(path: str) -> int:
    """Of a file, by its path below the store; one that lies beside the folders is a note of a few lines."""
    folder, slash, name = path.partition("/")
    if folder == "commitlog" and not (len(name) == _SEGMENT_DIGITS and name.isdigit()):
        return _ANY  # somebody's: several segments in one file, say. It is read as far as one is long
    return _BYTES_MAX.get(folder, _MAPPED_BYTES_MAX if slash else _NOTE_BYTES_MAX)


class Limited:
    """Any storage, which tells no size of a file that is too large; whoever reads a whole file asks first."""

    def __init__(self, files: Storage) -> None:
        self._files = files

    def listdir(self, path: str) -> list[str]:
        """Without names that are no UTF-8: no broker gives them, and no report could have them."""
        return [name for name in self._files.listdir(path) if _is_text(name)]

    def size(self, path: str) -> int:
        """Raises UnfitFileError."""
        found, most = self._files.size(path), bytes_max(path)
        if found > most:
            raise UnfitFileError(27, f"{found} bytes, no such file has more than {most}", path)
        return found

    def mtime_ns(self, path: str) -> int:
        return self._files.mtime_ns(path)

    def read(self, path: str, offset: int, size: int) -> bytes:
        return self._files.read(path, offset, size)

    def data_from(self, path: str, offset: int) -> int | None:
        return self._files.data_from(path, offset)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def close(self) -> None:
        self._files.close()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
