"""Do files that RocketMQ makes of its log, beside queues and index, name what the log has?

All integers are big-endian. Source: Apache RocketMQ 5.x, ``store/queue/BatchConsumeQueue``,
``store/ConsumeQueueExt``, ``store/timer``.

    batchconsumequeue/TOPIC/ID   46 bytes an entry: record 8, its size 4, tag code 8, store time 8, first
                                 place 8, places 2, 4 of compaction, 4 that nobody reads; zeros are no entry
    consumequeue_ext/TOPIC/ID    units of size 2, tag code 8, store time 8, n 2, n bytes of a filter; a queue
                                 entry whose tag code is below -2^31 names one: 2^63 less than its place
    timerlog                     52 bytes a unit: 52 4, place of the unit before it in its slot 8 (-1: none),
                                 kind 4 (below 16), when it was written 8, delay 4, record 8, its size 4, 12
                                 more; a unit of another kind, BLANK, ends a file
    timerwheel                   32 bytes a slot: time 8 (in units of the precision), places of its first
                                 and last unit 8 + 8, count 4, 4 more; slot time % slots

Records that retention removed are not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from audit.reading.derived.index_files import INDEX, Log, records
from audit.reading.derived.queue_files import ENTRY_BYTES, EXTENSION_BELOW, QueueFile, read_entries
from audit.reading.records.record import RECORD_BYTES_MAX, RECORD_BYTES_MIN, Record, parse
from audit.reading.storage import Storage, names_in, open_storage
from audit.rows.numbers import PLACE_LAST, QUEUE_LAST, of_digits
from model.message import INNER_BATCH, TIMER_TOPIC

BATCH_ENTRY: Final = np.dtype(
    [
        ("offset", ">i8"),
        ("size", ">i4"),
        ("tags", ">i8"),
        ("stored_ms", ">i8"),
        ("place", ">i8"),
        ("places", ">i2"),
        ("unread", ">i4", 2),
    ]
)
TIMER_UNIT: Final = np.dtype(
    [
        ("bytes", ">i4"),
        ("before", ">i8"),
        ("kind", ">u4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("offset", ">i8"),
        ("size", ">i4"),
        ("unread", ">u4", 3),
    ]
)
SLOT: Final = np.dtype(
    [("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("unread", ">i4")]
)
assert (BATCH_ENTRY.itemsize, TIMER_UNIT.itemsize, SLOT.itemsize) == (46, 52, 32)
BLANK: Final = 0xBBCCDDEE ^ (1880681586 + 8)
_KINDS: Final = 16
_UNIT_HEAD: Final = np.dtype([("size", ">i2"), ("tags", ">i8"), ("stored_ms", ">i8"), ("filter", ">i2")])
_ADDRESS_BASE: Final = 1 << 63

BATCH: Final = "batchconsumequeue"
EXTENSION: Final = "consumequeue_ext"
TIMER_LOG: Final = "timerlog"
TIMER_WHEEL: Final = "timerwheel"


@dataclass(frozen=True, slots=True)
class DerivedTask:
    """The files of one queue, or the timers, of one store. ``entries``: the queue's own files, for its
    extension; ``ended``: the store was stopped in order, so nothing is being written."""

    replica: int
    location: str
    what: str  # BATCH, EXTENSION, TIMER_LOG
    topic: str
    queue_id: int
    files: tuple[tuple[str, int], ...]  # path, bytes; by what they begin with
    entries: tuple[tuple[str, int], ...]
    log: Log
    ended: bool
    place_end: int = -1  # where the queue ends in the log; -1: it need not have entries up to there
    cut_from: int = 1 << 62  # entries of records from here on may be left over, of a log that was cut
    entered: int = -1  # so far each batch of the log was entered before the store stopped; -1: not known


def run_derived(task: DerivedTask) -> pa.RecordBatch:
    """INDEX rows of what is wrong. Raises OSError."""
    storage = open_storage(task.location)
    check = {BATCH: _Batch, EXTENSION: _Extension, TIMER_LOG: _Timers}[task.what]
    try:
        rows = check(storage, task).rows()
    finally:
        storage.close()
    return pa.RecordBatch.from_pylist(rows, schema=INDEX)


class _Check:
    def __init__(self, storage: Storage, task: DerivedTask) -> None:
        self._storage, self._task = storage, task
        self._found: list[dict[str, Any]] = []

    def rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _row(
        self,
        kind: str,
        file: str,
        expected: str,
        found: str,
        offset: int = -1,
        record: Record | None = None,
        place: int = -1,
    ) -> None:
        task = self._task
        if record is not None:
            topic, queue_id, place = record.topic, record.queue_id, record.queue_offset
        else:
            topic, queue_id = task.topic, task.queue_id
        self._found.append(
            {
                "replica": task.replica,
                "file": file,
                "kind": kind,
                "offset": offset,
                "until": offset + record.size if record is not None else offset + (offset >= 0),
                "topic": topic,
                "queue_id": queue_id,
                "queue_offset": place,
                "uniq_key": record.uniq_key if record is not None else "",
                "expected": expected,
                "found": found,
            }
        )

    def _asked(self, offset: int) -> bool:
        """Must the log have a record there? Retention takes what lies before it; behind it a broker may be
        writing."""
        log = self._task.log
        return offset < 0 or (offset >= log.start and (self._task.ended or offset < log.end))

    def _record(self, offset: int) -> Record | None:
        """The record at a physical offset; None where the log has none."""
        log = self._task.log
        if not log.start <= offset < log.end:
            return None
        base = offset // log.segment_bytes * log.segment_bytes
        file = next((file for at, file in log.segments if at == base), "")
        if not file:
            return None
        size = int.from_bytes(self._storage.read(file, offset - base, 4))
        if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            return None
        data = self._storage.read(file, offset - base, size)
        return parse(data, 0, offset, base + log.segment_bytes).record

    def _parts(self, unit: Any) -> Iterator[tuple[str, int, Any]]:
        """File, where it begins, and its units. One that is missing between others is told, and one of
        another size than the first."""
        expected = -1
        for file, size in self._task.files:
            begin = int(file.rpartition("/")[2])
            usual = self._task.files[0][1]
            if size != usual:
                self._row(self.wrong, file, f"a file of {usual} bytes", f"{size} bytes")
            if expected >= 0 and begin != expected:
                self._row(self.gone, file, f"a file that begins at {expected}", f"this begins at {begin}")
            expected = begin + usual
            raw = self._storage.read(file, 0, size)
            yield file, begin, np.frombuffer(raw, unit, len(raw) // unit.itemsize)

    wrong = "cq_wrong"
    gone = "cq_missing"


class _Batch(_Check):
    """Entries of inner batches."""

    def rows(self) -> list[dict[str, Any]]:
        self._next, self._behind = -1, self._task.log.start  # the place, and the record's end, of the last
        waiting: list[tuple[str, Any]] = []  # wrong ones, until one that is right follows
        for number, (file, _, entries) in enumerate(self._parts(BATCH_ENTRY)):
            if not number and len(entries) and not self._right(entries[0]):
                self._next = 0  # it was of a batch; which one, the log tells
            for entry in entries[entries["size"] != 0]:
                if self._task.log.start > int(entry["offset"]) >= 0:
                    self._next = int(entry["place"]) + int(entry["places"])
                elif self._right(entry):
                    for before in waiting:
                        self._wrong(*before)
                    waiting.clear()
                    self._between(file, entry)
                elif self._asked(int(entry["offset"])):
                    waiting.append((file, entry))
        for file, entry in waiting:
            if not self._left_over(int(entry["offset"])):
                self._wrong(file, entry)
        if max(self._next, 0) < self._task.place_end:
            folder = f"{BATCH}/{self._task.topic}/{self._task.queue_id}"
            expected, found = f"entries up to place {self._task.place_end}", f"they end at {self._next}"
            self._row("cq_missing", folder, expected, found, place=max(self._next, 0))
        return self._found

    def _left_over(self, offset: int) -> bool:
        """May an entry at the queue's end be of a record that was cut? Not where a batch of this queue stands
        that no other entry names, and that was entered."""
        task = self._task
        if offset < task.cut_from:
            return False
        record = self._record(offset) if self._behind <= offset < task.entered else None
        if record is None or offset + record.size > task.entered:
            return True
        own = (record.topic, record.queue_id) == (task.topic, task.queue_id)
        return not (own and record.sys_flag & INNER_BATCH)

    def _right(self, entry: Any) -> bool:
        record = self._record(int(entry["offset"]))
        told = [int(entry[name]) for name in ("size", "tags", "stored_ms", "place", "places")]
        return (
            record is not None
            and (record.topic, record.queue_id) == (self._task.topic, self._task.queue_id)
            and told == _said(record)
        )

    def _wrong(self, file: str, entry: Any) -> None:
        offset = int(entry["offset"])
        record = self._record(offset)
        own = record is not None and (record.topic, record.queue_id) == (
            self._task.topic,
            self._task.queue_id,
        )
        told = ", ".join(f"{name} {int(entry[name])}" for name in BATCH_ENTRY.names[:-1])  # type: ignore[index]
        expected = "no entry: the log has no batch of this queue there"
        if own and record is not None:
            names = ("size", "tags", "stored_ms", "place", "places")
            expected = ", ".join(f"{name} {value}" for name, value in zip(names, _said(record), strict=True))
        self._row("cq_wrong" if own else "cq_dangling", file, expected, told, offset, record if own else None)

    def _between(self, file: str, entry: Any) -> None:
        """Batches of the log between two entries that are right, or before the first when zeros are there."""
        offset, place = int(entry["offset"]), int(entry["place"])
        if place > self._next >= 0:
            for record, _ in records(self._storage, self._task.log, self._behind, offset):
                own = (record.topic, record.queue_id) == (self._task.topic, self._task.queue_id)
                if own and record.sys_flag & INNER_BATCH:
                    self._row("cq_missing", file, "an entry of the batch", "none", record.offset, record)
        self._next, self._behind = place + int(entry["places"]), offset + int(entry["size"])


def _said(record: Record) -> list[int]:
    """What a batch's entry says of it."""
    return [
        record.size,
        record.tags_code,
        record.store_timestamp_ms,
        record.queue_offset,
        record.advance,
    ]


class _Extension(_Check):
    """Units that the entries of a queue name."""

    def rows(self) -> list[dict[str, Any]]:
        task = self._task
        usual = max((size for _, size in task.files), default=0)
        files = {int(file.rpartition("/")[2]): (file, size) for file, size in task.files}
        for file, _ in task.entries:
            first = int(file.rpartition("/")[2]) // ENTRY_BYTES
            for batch in read_entries(QueueFile(task.location, file, task.topic, task.queue_id, first)):
                tags = batch["entry_tags"].to_numpy()
                for at in np.nonzero(tags < EXTENSION_BELOW)[0].tolist():
                    offset = int(batch["entry_offset"][at].as_py())
                    if offset >= 0 and self._asked(offset):
                        address = int(tags[at]) + _ADDRESS_BASE
                        held = files.get(address // usual * usual if usual else 0)
                        self._judge(held, address % usual if usual else 0, offset)
        return self._found

    def _judge(self, held: tuple[str, int] | None, at: int, offset: int) -> None:
        record = self._record(offset)
        if record is None:
            return  # what the entry names is no record: that is said of the entry
        folder = f"{EXTENSION}/{self._task.topic}/{self._task.queue_id}"
        expected = f"a unit of tag {record.tags_code}, stored at {record.store_timestamp_ms} ms"
        if held is None:
            self._row("cq_missing", folder, expected, "no such file", offset, record)
            return
        file, size = held
        raw = self._storage.read(file, at, _UNIT_HEAD.itemsize)
        if len(raw) < _UNIT_HEAD.itemsize:
            self._row("cq_missing", file, expected, f"the file ends at {size}", offset, record)
            return
        unit = np.frombuffer(raw, _UNIT_HEAD, 1)[0]
        whole = int(unit["size"]) == _UNIT_HEAD.itemsize + int(unit["filter"]) and unit["filter"] >= 0
        if (int(unit["tags"]), int(unit["stored_ms"])) != (record.tags_code, record.store_timestamp_ms):
            found = f"tag {int(unit['tags'])}, stored at {int(unit['stored_ms'])} ms"
            self._row("cq_wrong", file, expected, found, offset, record)
        elif not whole:
            found = f"{int(unit['size'])} bytes with a filter of {int(unit['filter'])}"
            self._row("cq_wrong", file, expected, found, offset, record)


class _Timers(_Check):
    """Units of the timer log, and the slots of the wheel that name them."""

    wrong = gone = "timer_wrong"

    def rows(self) -> list[dict[str, Any]]:
        self._due: dict[int, Any] = {}  # ms, of the units of each file, by where it begins
        self._begin = self._end = 0
        self._usual = self._task.files[0][1] if self._task.files else 1
        safe = 1 << 62 if self._task.ended else self._flushed()
        for number, (file, begin, units) in enumerate(self._parts(TIMER_UNIT)):
            self._begin = begin if not number else self._begin
            written = (units["kind"] != BLANK) & ((units["bytes"] != 0) | (units["offset"] != 0))
            written &= begin + np.arange(len(units)) * TIMER_UNIT.itemsize < safe
            count = int(np.argmin(written)) if not written.all() else len(units)
            units = units[:count]
            self._due[begin] = units["written_ms"].astype(np.int64) + units["delay_ms"].astype(np.int64)
            self._end = begin + count * TIMER_UNIT.itemsize
            for at, unit in enumerate(units):
                self._unit(file, begin + at * TIMER_UNIT.itemsize, unit)
        if self._task.ended:
            self._wheel()
        return self._found

    def _flushed(self) -> int:
        """Up to where, bytes, the log was safe."""
        if not self._storage.exists("config/timercheck"):
            return 0
        return int.from_bytes(self._storage.read("config/timercheck", 8, 8), signed=True)

    def _due_ms(self, place: int) -> int:
        """When a unit is due; -1 where there is none."""
        begin = place // self._usual * self._usual
        due = self._due.get(begin)
        at, rest = divmod(place - begin, TIMER_UNIT.itemsize)
        return int(due[at]) if due is not None and rest == 0 and 0 <= at < len(due) else -1

    def _unit(self, file: str, place: int, unit: Any) -> None:
        before, offset, size = int(unit["before"]), int(unit["offset"]), int(unit["size"])
        if unit["bytes"] != TIMER_UNIT.itemsize or unit["kind"] >= _KINDS:
            expected = f"{TIMER_UNIT.itemsize} bytes, kind below {_KINDS}"
            self._row("timer_wrong", file, expected, f"{int(unit['bytes'])} bytes, kind {int(unit['kind'])}")
            return
        if self._asked(offset):
            record = self._record(offset)
            if record is None or record.topic != TIMER_TOPIC or record.size != size:
                bytes_ = record.size if record is not None and record.topic == TIMER_TOPIC else 0
                expected = f"a record of {TIMER_TOPIC}, {bytes_} bytes"
                found = f"the unit at {place} names {offset}, {size} bytes"
                self._row("timer_wrong", file, expected, found, offset)
        if before != -1 and not (before < place and self._same_slot(before, self._due_ms(place))):
            expected = f"-1, or the unit before {place} of its time"
            self._row("timer_wrong", file, expected, f"the unit at {place} names the one at {before}", offset)

    def _same_slot(self, before: int, due_ms: int) -> bool:
        """Is that a unit due in the same slot, a second at most, or one that is gone with its file?"""
        if 0 <= before < self._begin:
            return True
        known = self._due_ms(before)
        return known >= 0 and abs(known - due_ms) < 1000

    def _wheel(self) -> None:
        if not self._storage.exists(TIMER_WHEEL):
            self._row(
                "timer_wrong", TIMER_WHEEL, "slots that name the units of the timer log", "no such file"
            )
            return
        raw = self._storage.read(TIMER_WHEEL, 0, self._storage.size(TIMER_WHEEL))
        slots = np.frombuffer(raw, SLOT, len(raw) // SLOT.itemsize)
        used = np.nonzero(slots["time"] > 0)[0]
        if not self._due:
            if len(used):
                self._row("timer_wrong", TIMER_LOG, f"the units of {len(used)} slots of the wheel", "no file")
            return
        shared = [int(at) for at in used if self._begin <= slots["last"][at] < self._end]
        precision_ms = self._precision_ms(slots, shared)
        for at in used.tolist():
            time, first, last = (int(slots[name][at]) for name in ("time", "first", "last"))
            if 0 <= last < self._begin:
                continue  # a turn that is over; its file is gone
            due_ms = self._due_ms(last)
            right = (
                time % len(slots) == at
                and due_ms // precision_ms == time
                and first <= last
                and (0 <= first < self._begin or self._due_ms(first) // precision_ms == time)
            )
            if not right:
                expected = (
                    f"time {at} modulo {len(slots)}, units of this time within the log's {self._end} bytes"
                )
                found = f"slot {at}: time {time}, first {first}, last {last}"
                self._row("timer_wrong", TIMER_WHEEL, expected, found)
        self._unslotted(slots["time"], precision_ms)

    def _unslotted(self, held: Any, precision_ms: int) -> None:
        """Units whose slot is not used: not by them, nor in a later turn of the wheel."""
        lacking = [np.zeros(0, np.int64)]
        for due in self._due.values():
            time = due // precision_ms
            lacking.append(time[(time > 0) & (held[time % len(held)] <= 0)] if len(held) else time)
        if count := len(times := np.unique(np.concatenate(lacking))):
            expected = f"a slot of time {int(times[0])} or of a later turn, for units of the log"
            at = int(times[0]) % len(held) if len(held) else -1
            found = (
                f"slot {at} is not used" if count == 1 else f"slot {at} is not used, nor {count - 1} others"
            )
            self._row("timer_wrong", TIMER_WHEEL, expected, found)

    def _precision_ms(self, slots: Any, shared: list[int]) -> int:
        """What most slots' times are units of."""
        found: dict[int, int] = {}
        for at in shared:
            due_ms = self._due_ms(int(slots["last"][at]))
            if due_ms > 0:
                unit = round(due_ms / int(slots["time"][at]))
                found[unit] = found.get(unit, 0) + 1
        return max(found, key=lambda unit: found[unit], default=1000) or 1000


def derived_files(storage: Storage) -> Iterator[tuple[str, str, int, list[tuple[str, int]]]]:
    """What, topic, queue and files of each. Raises OSError."""
    for what in (BATCH, EXTENSION):
        for topic in names_in(storage, what):
            for queue in names_in(storage, f"{what}/{topic}"):
                if of_digits(queue, QUEUE_LAST) >= 0:
                    yield what, topic, int(queue), files_in(storage, f"{what}/{topic}/{queue}")
    timers = files_in(storage, TIMER_LOG)
    # RocketMQ may keep the wheel in files of other names: timerwheel.<how far the timer log was>.
    if storage.exists(TIMER_WHEEL) or (timers and not any(map(_is_wheel, storage.listdir("")))):
        yield TIMER_LOG, "", -1, timers


def _is_wheel(name: str) -> bool:
    return name.startswith(TIMER_WHEEL)


def files_in(storage: Storage, folder: str) -> list[tuple[str, int]]:
    """The files of 20 digits in a folder, with their bytes. Those that go meanwhile are left out."""
    found = []
    for name in names_in(storage, folder):
        if len(name) == 20 and of_digits(name, PLACE_LAST) >= 0:
            try:
                found.append((f"{folder}/{name}", storage.size(f"{folder}/{name}")))
            except FileNotFoundError:
                continue
    return found
