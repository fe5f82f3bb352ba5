"""The files that a repair writes, not too many of them open at once."""

from __future__ import annotations

from runtime.env import Disk, File
from store.files.consume_queues import OPEN_FILES_MAX


class Written:
    """Raises OSError; what was written is durable after ``sync``, which closes the files, too."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[str, File] = {}

    def open(self, path: str, *, create: bool = False) -> File:
        file = self._open.get(path)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self.sync()
            file = self._open[path] = self._disk.open(path, create=create)
        return file

    def put(self, place: tuple[str, int] | None, entry: bytes) -> None:
        """Write an entry at ``place``: a file's path, and the byte in it."""
        if place is not None:
            self.open(place[0]).pwrite(entry, place[1])

    def sync(self) -> None:
        for file in self._open.values():
            file.sync()
            file.close()
        self._open.clear()
