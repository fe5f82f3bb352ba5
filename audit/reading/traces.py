"""Does what stands beside a log tell that there were records? Then the store is no new one.

What is made of records tells it: an entry of a queue or of an index. So does a second epoch, which begins
where records of the first one end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from audit.reading.storage import Storage, names_in

_MADE_OF_RECORDS: Final = {"consumequeue": 2, "batchconsumequeue": 2, "index": 0}
"""How many folders lie between."""
_HEAD_BYTES: Final = 1 << 16


def had_records(storage: Storage, epochs: list[tuple[int, int]]) -> bool:
    """``epochs``: of its epoch file. Files that cannot be read tell nothing: that is said of each."""
    return len(epochs) > 1 or any(_says_anything(storage, file) for file in _files(storage))


def _files(storage: Storage) -> Iterator[str]:
    for folder, depth in _MADE_OF_RECORDS.items():
        yield from _under(storage, folder, depth)


def _under(storage: Storage, folder: str, depth: int) -> Iterator[str]:
    """One folder after the other: the first file that tells anything ends the search."""
    for path in (f"{folder}/{name}" for name in _names(storage, folder)):
        if depth:
            yield from _under(storage, path, depth - 1)
        else:
            yield path


def _names(storage: Storage, path: str) -> list[str]:
    try:
        return names_in(storage, path)
    except OSError:
        return []


def _says_anything(storage: Storage, file: str) -> bool:
    """A file may be there before its first entry: of zeros."""
    try:
        return any(storage.read(file, 0, _HEAD_BYTES))
    except OSError:
        return False
