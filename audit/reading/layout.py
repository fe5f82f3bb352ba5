"""What does a replica's directory hold, and from where to where does its log reach?

Taken once, before anything else is read, so that a live store is judged as it was at that moment. Segment
size = file size; files are reserved at full size, so the end of the log is where records stop, not where
bytes do. ``checkpoint``: longs at 0, 8, 16, 24, 32; the one at 32 is the confirmOffset, synced each second.
``epochFileCheckpoint``: line 1 count, line 2 CRC of the rest (0 = unchecked), then ``epoch-startOffset``
lines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from audit.reading.records.record import parse
from audit.reading.records.search import WINDOW_BYTES, Read, window
from audit.reading.small.epoch_lines import parse_epochs
from audit.reading.small.last_writer import Writer, is_written_over, last_writer
from audit.reading.small.seals import CHECKPOINT_MARK, PAGE_BYTES, checkpoint_problem, is_sealed_by
from audit.reading.storage import Storage, StoreSpec, UnfitFileError, names_in, open_storage
from audit.reading.traces import had_records
from audit.rows.intervals import Interval
from audit.rows.numbers import PLACE_LAST, QUEUE_LAST, of_digits
from audit.sources.compressed import CannotUnpackError

MADE_OF_LOG: Final = {
    "consumequeue": 3,
    "batchconsumequeue": 3,
    "consumequeue_ext": 3,
    "index": 1,
    "timerlog": 1,
    "timerwheel": 0,
}
"""How deep the files lie."""
UNREADABLE: Final = "cannot be read: "
ALL: Final = 1 << 62
"""Behind every log's end."""
CHECKPOINT: Final = "checkpoint"
QUEUES: Final = "consumequeue"
_NO_FOLDER: Final = "it is no folder"
_DANGLING: Final = "its name is there, and no file: a link to nothing"
_CHECKPOINT_BYTES: Final = 512
"""All that brokers write stands before; a disk writes no less."""
BLANK_CHECKPOINT: Final = "no mark, no times and no offset"
GONE_CHECKPOINT: Final = "it is gone"
UNMARKED_CHECKPOINT: Final = "no mark, on a store that keelmq wrote last"


@dataclass(frozen=True, slots=True)
class Segment:
    base: int  # physical offset of its first byte
    file: str  # path below the root
    size_bytes: int  # of the file; a whole segment's size unless somebody cut it

    @property
    def name(self) -> str:
        return self.file.rpartition("/")[2]


@dataclass(slots=True)
class Replica:
    """One store as found at the start. Offsets are physical, bytes."""

    name: str
    location: str
    segments: list[Segment] = field(default_factory=list)
    segment_bytes: int = 0
    start: int = 0
    end: int = 0
    confirmed: int = 0  # from the checkpoint; 0 = unknown, as by one that is not as it was written
    settled: int = -1  # up to where entries are on the disk, by keelmq's checkpoint; -1: unknown
    checkpoint_problem: str = ""
    sealed: bool | None = None  # is the checkpoint keelmq's; None: there is none, or nothing in it
    blank_checkpoint: bool = False  # it is a page with nothing in it
    had_records: bool = False  # what stands beside the log tells of records
    clean: bool = True  # no abort file: stopped in an orderly way
    epochs: list[tuple[int, int]] = field(default_factory=list)  # none where there is an ``epoch_problem``
    epoch_problem: str = ""
    torn: tuple[int, int] | None = None  # half a record behind the end, as a crash or a live writer leaves it
    skipped: list[tuple[int, int]] = field(default_factory=list)  # unreadable stretches the end lies behind
    holes: list[tuple[int, int]] = field(default_factory=list)  # ranges no file covers
    queues: bool = True  # there is a ``consumequeue``
    entered: int = 0  # up to where its queues name records; 0: they name none, or nobody asked
    unread: list[tuple[Segment, str]] = field(default_factory=list)  # files that cannot be read, and why
    # Files of a name that none of these segments has, and what they hold, by their records.
    stray: list[tuple[Segment, Interval | None]] = field(default_factory=list)
    unseen: bool = False  # there are more files of such names than were looked at
    elsewhere: list[Interval] = field(default_factory=list)  # what misplaced records name, and no log has
    reach: int = ALL  # a record that names another place says of none behind that the log reaches it
    closed: dict[str, str] = field(default_factory=dict)  # the same of files beside the log
    refused: tuple[int, int] | None = None  # a record behind the end that looks left over: offset, bytes
    left_over: tuple[int, int] | None = None  # what was taken for the rest of a log that was cut

    @property
    def misnamed(self) -> list[Interval]:
        return [span for _, span in self.stray if span is not None]

    @property
    def moved_files(self) -> list[tuple[Segment, Interval]]:
        """Of ``misnamed`` what is no copy that somebody keeps beside the log: it has a segment's name."""
        held = ((file, span) for file, span in self.stray if span is not None)
        return [(f, span) for f, span in held if is_segment_name(f.file.removeprefix("commitlog/"))]

    @property
    def moved(self) -> list[Interval]:
        return [span for _, span in self.moved_files]

    @property
    def empty(self) -> bool:
        return self.end <= self.start

    @property
    def new(self) -> bool:
        """Had its log no record yet, for all that the store tells?"""
        return not self.segments and not self.had_records

    @property
    def promised(self) -> int:
        """Up to where somebody may have been promised what the log has. A checkpoint that is not as it was
        written, cannot be read, or is gone takes no promise back: it may have said anything."""
        unknown = bool(self.checkpoint_problem) or CHECKPOINT in self.closed
        return ALL if unknown else self.confirmed

    @property
    def of_epochs(self) -> bool:
        """Has the store an epoch file, be it one that says nothing?"""
        return bool(self.epochs or self.epoch_problem)

    def segment_end(self, segment: Segment) -> int:
        return segment.base + self.segment_bytes

    def segment_at(self, offset: int) -> Segment | None:
        return next((s for s in self.segments if s.base <= offset < s.base + self.segment_bytes), None)

    def segment_name(self, offset: int) -> str:
        base = offset // self.segment_bytes * self.segment_bytes if self.segment_bytes else 0
        return f"{base:020d}"

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote ``offset``; -1 when the file does not say."""
        entry = self.entry_at(offset)
        return entry[0] if entry is not None else -1

    def entry_at(self, offset: int) -> tuple[int, int] | None:
        """The same with its start."""
        return next((entry for entry in reversed(self.epochs) if entry[1] <= offset), None)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """What no file holds between start and end: holes, and what a file lacks that is too short."""
        ends = ((s.base + s.size_bytes, min(self.segment_end(s), self.end)) for s in self.segments)
        return sorted([*self.holes, *(span for span in ends if span[0] < span[1])])

    def covers(self, begin: int, end: int) -> bool:
        inside = self.start <= begin and end <= self.end
        return inside and not any(a < end and begin < b for a, b in self.gaps)


class Readable(Protocol):
    """What can read files: a storage does."""

    def read(self, name: str, offset: int, size: int, /) -> bytes: ...


def segment_reader(storage: Readable, segment: Segment) -> Read:
    """Reads by physical offset inside one segment."""

    def read(offset: int, size: int) -> bytes:
        return storage.read(segment.file, offset - segment.base, size)

    return read


def load(spec: StoreSpec) -> Replica:
    """Look at one replica. Raises OSError when it cannot be read, ConfigError on a bad URL.

    A directory without a ``commitlog`` is not a store: FileNotFoundError.
    """
    storage = open_storage(spec.location)
    try:
        replica = Replica(spec.name, spec.location)
        if not storage.exists("commitlog"):
            raise FileNotFoundError(2, "no commitlog in this store", spec.location)
        for name in filter(is_segment_name, storage.listdir("commitlog")):
            file = f"commitlog/{name}"
            try:
                replica.segments.append(Segment(int(name), file, storage.size(file)))
            except FileNotFoundError:
                replica.unread += _unopened(storage, Segment(int(name), file, 0))
            except OSError as error:
                if "://" in spec.location and not isinstance(error, CannotUnpackError | UnfitFileError):
                    raise  # it says nothing of this file
                replica.unread.append((Segment(int(name), file, 0), error.strerror or str(error)))
        replica.clean = not storage.exists("abort")
        replica.queues = storage.exists("consumequeue")
        replica.closed |= _no_folders(storage)
        _read_checkpoint(storage, replica)
        read_epochs(storage, replica)
        replica.had_records = had_records(storage, replica.epochs)
        _miss_mark(storage, replica)
        if replica.segments:
            replica.segment_bytes = max(s.size_bytes for s in replica.segments)
            replica.start = replica.end = replica.segments[0].base
        return replica
    finally:
        storage.close()


def is_segment_name(name: str) -> bool:
    return len(name) == 20 and of_digits(name, PLACE_LAST) >= 0


def _unopened(storage: Storage, segment: Segment) -> list[tuple[Segment, str]]:
    """A file that is not found is gone, as retention removes it, unless its name is still there: a link to
    what is not, as where a disk is not mounted."""
    return [(segment, _DANGLING)] if segment.name in storage.listdir("commitlog") else []


def _no_folders(storage: Storage) -> dict[str, str]:
    """What should be a folder, and is none. keelmq does not start with a file among the folders of topics and
    queues."""
    found: dict[str, str] = {}

    def names(folder: str) -> list[str]:
        try:
            return storage.listdir(folder)
        except NotADirectoryError:
            found[folder] = _NO_FOLDER
            return []

    for folder in ("config", *(name for name, depth in MADE_OF_LOG.items() if depth)):
        told = names(folder)
        for topic in told if folder == QUEUES else ():
            for name in names(f"{folder}/{topic}"):
                if of_digits(name, QUEUE_LAST) >= 0:
                    names(f"{folder}/{topic}/{name}")
    return found


def _read_checkpoint(storage: Storage, replica: Replica) -> None:
    """Twice if it is not as it was written: a running broker may have been writing it. Then none of its
    numbers counts."""
    if not storage.exists(CHECKPOINT):
        return
    for _ in range(2):
        try:
            raw = storage.read(CHECKPOINT, 0, PAGE_BYTES + 1)
        except FileNotFoundError:
            return  # it was taken just now
        except OSError as error:
            replica.closed[CHECKPOINT] = error.strerror or str(error)
            return
        replica.checkpoint_problem = checkpoint_problem(raw) if raw else ""
        replica.blank_checkpoint = len(raw) == PAGE_BYTES and not any(raw[:_CHECKPOINT_BYTES])
        told = bool(raw) and not replica.blank_checkpoint
        replica.sealed = is_sealed_by(raw, CHECKPOINT_MARK) if told else None
        if replica.checkpoint_problem and is_written_over(storage, raw):
            replica.checkpoint_problem, replica.sealed = "", False
        if raw and not replica.checkpoint_problem:
            replica.confirmed = max(0, struct.unpack_from(">q", raw, 32)[0])
            replica.settled = struct.unpack_from(">q", raw, 72)[0] if replica.sealed else -1
            return


def _miss_mark(storage: Storage, replica: Replica) -> None:
    """A keelmq marks what it writes, and RocketMQ leaves the mark: where keelmq wrote last, a checkpoint
    without one is not as it was written. Its stop in order writes one; before that a new store may have
    none, or one with nothing in it."""
    if replica.sealed or replica.checkpoint_problem or CHECKPOINT in replica.closed or replica.new:
        return
    unmarked = replica.sealed is False
    if (unmarked or replica.clean) and last_writer(storage) is Writer.KEELMQ:
        blank = BLANK_CHECKPOINT if replica.blank_checkpoint else GONE_CHECKPOINT
        replica.checkpoint_problem = UNMARKED_CHECKPOINT if unmarked else blank
        replica.confirmed = 0


def read_epochs(storage: Storage, replica: Replica) -> None:
    if not storage.exists("epochFileCheckpoint"):
        return
    try:
        text = storage.read("epochFileCheckpoint", 0, 1 << 20)
    except FileNotFoundError:
        return  # it was taken just now
    except OSError as error:
        replica.epochs, replica.epoch_problem = [], f"{UNREADABLE}{error.strerror or error}"
        return
    epochs, replica.epoch_problem = parse_epochs(text)
    replica.epochs = [] if replica.epoch_problem else epochs


def leave_out_unreadable(replica: Replica) -> bool:
    """Read every file to its end; those that cannot be read are set aside, and those that were removed since
    the start left out. Whether there was any."""
    storage = open_storage(replica.location)
    out: list[Segment] = []
    try:
        for segment in replica.segments:
            try:
                for at in range(0, segment.size_bytes, WINDOW_BYTES):
                    storage.read(segment.file, at, WINDOW_BYTES)
            except FileNotFoundError:
                out.append(segment)
                replica.unread += _unopened(storage, segment)
            except OSError as error:
                out.append(segment)
                replica.unread.append((segment, error.strerror or str(error)))
        closed = dict(_closed(storage))
    finally:
        storage.close()
    more = closed.keys() - replica.closed.keys()
    replica.closed |= closed
    return _leave_out(replica, out) or bool(more)


def _closed(storage: Storage) -> Iterator[tuple[str, str]]:
    """The files made of the log that cannot be read, and why."""
    for folder, depth in MADE_OF_LOG.items():
        files = [folder]
        for _ in range(depth):
            files = [f"{path}/{name}" for path in files for name in names_in(storage, path)]
        for file in files:
            try:
                for at in range(0, storage.size(file), WINDOW_BYTES):
                    storage.read(file, at, WINDOW_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                yield file, error.strerror or str(error)


def leave_out_removed(replica: Replica) -> bool:
    """Leave out the files that were removed since the start, as if they had been before: the oldest by
    retention, in the middle by nobody who may. Whether there was any. Raises OSError."""
    storage = open_storage(replica.location)
    try:
        out = [s for s in replica.segments if not storage.exists(s.file)]
        replica.unread += [row for segment in out for row in _unopened(storage, segment)]
        return _leave_out(replica, out)
    finally:
        storage.close()


def set_aside(replica: Replica, stray: list[tuple[Segment, Interval | None]]) -> None:
    replica.stray += stray
    _leave_out(replica, [segment for segment, _ in stray])


def _leave_out(replica: Replica, out: list[Segment]) -> bool:
    if out:
        replica.segments = [segment for segment in replica.segments if segment not in out]
        replica.start = replica.end = replica.segments[0].base if replica.segments else 0
    return bool(out)


_NEAR_BYTES: Final = 16 * 1024
"""Most records are shorter."""


def record_at(replica: Replica, begin: int) -> bytes:
    """A sound record, or the head of a blank one, that stands there; nothing else. Raises OSError."""
    segment = replica.segment_at(begin)
    if segment is None:
        return b""
    storage = open_storage(replica.location)
    try:
        end = replica.segment_end(segment)
        read = segment_reader(storage, segment)
        data = read(begin, min(_NEAR_BYTES, end - begin))
        parsed = parse(data, 0, begin, end)
        if parsed.problem in ("incomplete", "fewer than 8 bytes"):
            data = window(read, begin, end - begin)
            parsed = parse(data, 0, begin, end)
    finally:
        storage.close()
    if parsed.problem == "blank":
        return data[:8]
    return data[: parsed.size] if parsed.record is not None and parsed.damage is None else b""


def bytes_at(replica: Replica, begin: int, size: int) -> bytes:
    """Bytes of one segment of a replica's log; none where it has no file. Raises OSError."""
    segment = replica.segment_at(begin)
    if segment is None:
        return b""
    storage = open_storage(replica.location)
    try:
        return segment_reader(storage, segment)(begin, size)
    finally:
        storage.close()
