"""How is a store kept elsewhere while its broker goes on?

Tables first, then the log: what tables say of the log (offsets, progress) it has. A table that was made from
the log's later messages (a new topic) comes back by itself when the log is read. Queues, index and checkpoint
are not kept: the start of a broker makes them from the log. Epochs and the broker's identity belong to its
group, not to its messages, and are not kept either.

Nothing is locked. A segment that is filled does not change, unless a slave cuts its log; one whose time and
size are those of the last backup is not read again. The last segment is taken up to its last whole record.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from admin.backup.manifest import CannotBackUp, Manifest, Part, is_table
from admin.backup.target import Target, blocks
from runtime.os_env import OsDisk
from store.files.damage import FILE_NAME as DAMAGED
from store.files.record import Record
from store.offline.directory import SegmentInfo, StoreDirectory, must_be_store

TRIES: Final = 20
"""Tables are read so often until none changed meanwhile: offsets are written five times a second."""
_NO_TABLES: Final = (".tmp", ".new")


def save(store: Path, target: Target, now_ms: int, keep: int = 7) -> tuple[str, Manifest, int]:
    """Add a backup of ``store`` to ``target``: its name, what it holds, and the bytes that were new there.

    Raises CannotBackUp, DiskError, OSError; then no backup was added, and none was lost. What is wrong with
    older ones stands in ``target.problems``.
    """
    target.make()
    with target.locked():
        return _save(store, target, now_ms, keep)


def _save(store: Path, target: Target, now_ms: int, keep: int) -> tuple[str, Manifest, int]:
    must_be_store(OsDisk(), str(store))
    _need_one_log(store)
    keeping = _Keeping(target, _former(target))
    tables = keeping.tables(store)
    target.problems += [
        f"{str(store / name)!r} has no table's name: it is left out" for name in _others(store)
    ]
    with StoreDirectory(OsDisk(), str(store)) as directory:
        segments = _segments(directory)
        if not segments:
            raise CannotBackUp(f"{store} has no message yet")
        sizes = {segment.start: segment.size for segment in segments}
        segment_bytes = segments[0].size
        sizes[segments[-1].start] = _end_of(directory, segments[-1]) - segments[-1].start
        kept = {s.start: keeping.segment(Path(s.path), s.start, sizes[s.start]) for s in segments}
    keeping.check_last(Path(segments[-1].path), kept[segments[-1].start])
    manifest = Manifest(now_ms, str(store.resolve()), segment_bytes, kept, tables)
    return target.finish(manifest, keep), manifest, keeping.new_bytes


def _need_one_log(store: Path) -> None:
    """Before anything is copied: what was, no backup would name. Raises CannotBackUp."""
    with StoreDirectory(OsDisk(), str(store)) as directory:
        for one, following in pairwise(directory.segments()):
            if one.start + one.size != following.start:
                raise CannotBackUp(f"{store}: behind the segment at {one.start} one is missing")


def _former(target: Target) -> Manifest | None:
    """The last backup that can be read."""
    for name in reversed(target.names()):
        found = target.manifests([name])[name]
        if isinstance(found, Manifest):
            return found
    return None


def _segments(directory: StoreDirectory) -> list[SegmentInfo]:
    """Those with a record. The next one may have been made ahead."""
    found = directory.segments()
    while found and _end_of(directory, found[-1]) == found[-1].start:
        found.pop()
    return found


def _end_of(directory: StoreDirectory, segment: SegmentInfo) -> int:
    """Where its last whole record ends."""
    end = segment.start
    for item in directory.segment_records(segment):
        if isinstance(item, Record):
            end = item.physical_offset + item.size
    return end


class _Keeping:
    """``former``: the last backup there, whose parts need not be read again."""

    def __init__(self, target: Target, former: Manifest | None) -> None:
        self.new_bytes = 0
        self._target = target
        self._former = former

    def tables(self, store: Path) -> dict[str, Part]:
        """All of one moment. Raises CannotBackUp when there is none."""
        for _ in range(TRIES):
            before = _look(store)
            try:
                kept = {name: self._keep(store / name, size) for name, (size, _) in before.items()}
            except (FileNotFoundError, CannotBackUp):
                continue  # replaced or cut meanwhile
            if _look(store) == before:
                return kept
        raise CannotBackUp(f"the tables of {store} change faster than they are read: try again")

    def segment(self, path: Path, start: int, size: int) -> Part:
        try:
            before = path.stat()
            known = self._known(start, size, before)
            if known is not None:
                self._target.progress(size)
                return known
            part = self._keep(path, size)
            after = path.stat()
        except FileNotFoundError:
            raise CannotBackUp(f"{path} was deleted meanwhile (fileReservedTime): try again") from None
        if size == before.st_size and before.st_mtime_ns != after.st_mtime_ns:
            raise CannotBackUp(f"{path} changed while it was read: try again")
        return part

    def check_last(self, path: Path, part: Part) -> None:
        """What was read of the segment that is written is there still: a slave may have cut it."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            for block in blocks(file, part.size):
                digest.update(block)
        if digest.hexdigest() != part.sha256:
            raise CannotBackUp(f"{path} was cut while it was read: try again")

    def _known(self, start: int, size: int, now: os.stat_result) -> Part | None:
        found = self._former.segments.get(start) if self._former is not None else None
        same = found is not None and (found.size, found.mtime_ns) == (size, now.st_mtime_ns)
        return found if found is not None and same and self._target.has(found) else None

    def _keep(self, path: Path, size: int) -> Part:
        with path.open("rb") as file:
            sha256, is_new = self._target.put(file, size)
            changed_ns = os.fstat(file.fileno()).st_mtime_ns
        self.new_bytes += size if is_new else 0
        return Part(sha256, size, changed_ns)


def _look(store: Path) -> Mapping[str, tuple[int, int]]:
    """Size and time of each table."""
    found = {}
    for name in filter(is_table, _files(store)):
        now = (store / name).stat()
        found[name] = now.st_size, now.st_mtime_ns
    return found


def _others(store: Path) -> list[str]:
    """What lies with the tables and is none."""
    return [name for name in _files(store) if not is_table(name)]


def _files(store: Path) -> list[str]:
    """Where tables lie; what is being written is not looked at. Raises CannotBackUp where ``config`` is not
    there, or not to be read: without offsets and topics a backup is none."""
    config = store / "config"
    try:
        names = os.listdir(config)
    except OSError as error:
        raise CannotBackUp(f"the tables in {config} cannot be read: {error.strerror}") from None
    paths = sorted([*(config / name for name in names), store / DAMAGED])
    files = [path for path in paths if path.is_file() and not path.name.endswith(_NO_TABLES)]
    return [str(path.relative_to(store)) for path in files]
