"""Is a store directory whole: its log, its queues, its index, its epochs?

The log ends at the first bytes that are no record, if nothing says that there was more: the checkpoint, or
after an unclean stop the queues. What lies behind such an end was cut, or was being written when the
process died; a recovery drops it and it is no damage. Bytes that are no record before that end are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from model.config import StoreConfig
from model.errors import DiskError
from model.message import KEYS, LMQ_PREFIX, TAGS, TRANSACTION_PREPARED, UNIQ_KEY, decode_properties
from runtime.env import Disk
from store.files.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from store.files.key_hash import KeyHash
from store.files.record import BadRecord, Dispatch, DispatchParser, Record, decode, delay_levels_ms, measure
from store.flow.multi_dispatch import places
from store.offline.directory import Damage, SegmentInfo, StoreDirectory

DAMAGE_MAX: Final = 1000
OFFSET_MAX: Final = 2**63 - 1


Progress = Callable[[int, int], None]
"""Hears bytes read since the last call, and bytes there are."""


def verify(
    disk: Disk, root: str, config: StoreConfig | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """``ok``, ``records``, ``minOffset``, ``maxOffset``, ``confirmOffset``, ``epochs`` and ``damage`` of the
    store at ``root``, JSON-ready; ``tail`` is what recovery will drop behind the end, or None.

    ``config`` gives the shape of the index files and the delay levels. Raises DiskError when the directory
    cannot be read at all.
    """
    with StoreDirectory(disk, root) as store:
        if progress is not None:
            total = sum(segment.size for segment in store.segments())
            store.progress = lambda size: progress(size, total)
        return _Verification(store, config or StoreConfig()).run()


class _Verification:
    def __init__(self, store: StoreDirectory, config: StoreConfig) -> None:
        self._store = store
        self._config = config
        self._parser = DispatchParser(delay_levels_ms(config.delay_levels))
        self._segments = store.segments()
        self._damage: list[Damage] = []
        self._records = 0
        self._end = 0
        self._queued_to = 0  # what was not confirmed at the stop is in no queue yet, and no damage
        self._tail: dict[str, int] | None = None
        self._last: Record | None = None
        self._next: dict[tuple[str, int], int] = {}  # queue offset after the last record of each queue

    def run(self) -> dict[str, Any]:
        store = self._store
        segments = self._segments
        checkpoint = store.checkpoint()
        self._queued_to = checkpoint.confirm_offset if checkpoint.trusted else OFFSET_MAX
        known_end: int = max(checkpoint.confirm_offset, checkpoint.master_flushed_offset)
        if not store.stopped_cleanly or not known_end:
            known_end = max(known_end, self._queues_end())
        known_end = max([known_end, *(item.until for item in store.damaged())])
        self._log(segments, known_end)
        self._queues(segments[0].start if segments else 0, self._end >= known_end)
        self._index(segments[0].start if segments else 0)
        try:
            epochs = [{"epoch": entry.epoch, "start": entry.start} for entry in store.epochs()]
        except DiskError as error:
            epochs = []
            self._note(Damage("epoch_file_corrupt", 0, 0, "epochFileCheckpoint", str(error)))
        return {
            "ok": not self._damage,
            "records": self._records,
            "minOffset": segments[0].start if segments else 0,
            "maxOffset": self._end,
            "confirmOffset": checkpoint.confirm_offset,
            "epochs": epochs,
            "damage": [item.to_json() for item in self._damage],
            "tail": self._tail,
        }

    def _note(self, damage: Damage) -> None:
        if len(self._damage) < DAMAGE_MAX:
            self._damage.append(damage)

    def _queues_end(self) -> int:
        return max(
            (
                offset + size
                for topic, queue_id in self._store.queues()
                for _, offset, size, _ in self._store.queue_entries(topic, queue_id)
            ),
            default=0,
        )

    # -- the log ---------------------------------------------------------------------------------------

    def _log(self, segments: list[SegmentInfo], known_end: int) -> None:
        self._end = segments[0].start if segments else 0
        expected = self._end
        for segment in segments:
            if segment.start != expected:
                self._note(Damage("missing_segment", expected, segment.start, f"{expected:020}"))
            expected = segment.end
            if not self._segment(segment, known_end):
                break
        last = self._last
        if last is not None and last.properties.endswith("\0") and not self._store.stopped_cleanly:
            text = "the last record's properties end in zeros: it is torn"
            self._note(
                Damage("unreadable_region", last.physical_offset, self._end, _name(segments, last), text)
            )
            self._end = last.physical_offset
        if self._end < known_end and not self._damage:
            text = f"queues or checkpoint know the log up to {known_end}"
            self._note(Damage("unreadable_region", self._end, known_end, _file_at(segments, self._end), text))

    def _segment(self, segment: SegmentInfo, known_end: int) -> bool:
        """Walk one segment; False where the log ends."""
        hole_until = 0
        for item in self._store.segment_records(segment):
            if isinstance(item, Record):
                self._record(item)
                continue
            if item.kind == "unreadable_region" and item.physical_offset >= known_end:
                self._tail = {"physicalOffset": item.physical_offset, "until": item.until}
                return False
            self._note(item)
            if item.kind == "unreadable_region":
                hole_until = item.until
            else:
                self._end = item.until
        if (
            self._blank_at(segment, self._end)
            or (hole_until and self._blank_at(segment, hole_until))
            or known_end > segment.end  # damage up to the segment's end, and there is more
        ):
            self._end = segment.end
        return self._end == segment.end

    def _blank_at(self, segment: SegmentInfo, offset: int) -> bool:
        head = self._store.read(segment.path, 8, offset - segment.start)
        if offset >= segment.end:
            return False
        try:
            return len(head) == 8 and measure(head, 0, offset) == offset - segment.end
        except BadRecord:
            return False

    def _record(self, record: Record) -> None:
        self._records += 1
        self._end = record.physical_offset + record.size
        self._last = record
        if not record.sys_flag & TRANSACTION_PREPARED and self._end <= self._queued_to:
            key = (record.topic, record.queue_id)
            self._next[key] = max(self._next.get(key, 0), record.queue_offset + 1)

    # -- what is made from it --------------------------------------------------------------------------

    def _at(self, offset: int, size: int) -> Dispatch | None:
        """What the record at ``offset`` says, None when no record of ``size`` bytes is there."""
        for segment in self._segments:
            if segment.start <= offset < segment.end:
                data = self._store.read(segment.path, size, offset - segment.start)
                try:
                    return (
                        self._parser.one(data, 0, size) if measure(data, 0, offset, False) == size else None
                    )
                except BadRecord:
                    return None
        return None

    def _queues(self, log_min: int, end_is_sure: bool) -> None:
        there: dict[tuple[str, int], int] = {}
        for topic, queue_id in self._store.queues():
            file = f"consumequeue/{topic}/{queue_id}"
            for index, offset, size, tags_code in self._store.queue_entries(topic, queue_id):
                if offset < log_min:
                    there[topic, queue_id] = index + 1
                    continue
                if offset + size > self._end:
                    if not end_is_sure:
                        self._note(Damage("cq_dangling", offset, offset + size, file, f"entry {index}"))
                    continue
                found = self._at(offset, size)
                if found is None:
                    self._note(Damage("cq_dangling", offset, offset + size, file, f"entry {index}"))
                elif topic.startswith(LMQ_PREFIX):
                    record = self._record_at(offset)
                    if record is None or (topic, index) not in places(record.topic, record.properties):
                        text = f"entry {index} points to {found.topic}/{found.queue_id} {found.queue_offset}"
                        self._note(Damage("cq_wrong", offset, offset + size, file, text))
                elif found[2:6] != (topic, queue_id, index, tags_code):
                    text = f"entry {index} points to {found.topic}/{found.queue_id} {found.queue_offset}"
                    self._note(Damage("cq_wrong", offset, offset + size, file, text))
                there[topic, queue_id] = index + 1
        if self._store.stopped_cleanly:
            for (topic, queue_id), following in self._next.items():
                if there.get((topic, queue_id), 0) < following:
                    text = (
                        f"ends at {there.get((topic, queue_id), 0)}, the log's last record is {following - 1}"
                    )
                    self._note(
                        Damage("cq_missing", self._end, self._end, f"consumequeue/{topic}/{queue_id}", text)
                    )

    def _index(self, log_min: int) -> None:
        slots, entries = self._config.index_slots, self._config.index_entries
        hash_of = KeyHash()
        for path in self._store.index_files():
            name = "index/" + path.rpartition("/")[2]
            if not self._has_shape(path, HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES):
                continue  # made with another shape than configured: nothing can be said about it
            for entry in self._store.index_entries(path, slots, entries):
                if not log_min <= entry.physical_offset < self._end:
                    continue
                found = self._record_at(entry.physical_offset)
                if found is None or entry.key_hash not in _hashes(hash_of, found):
                    at = entry.physical_offset
                    self._note(Damage("index_wrong", at, at, name, f"entry {entry.number}"))

    def _has_shape(self, path: str, size: int) -> bool:
        return bool(self._store.read(path, 1, size - 1)) and not self._store.read(path, 1, size)

    def _record_at(self, offset: int) -> Record | None:
        for segment in self._segments:
            if segment.start <= offset < segment.end:
                at = offset - segment.start
                size = int.from_bytes(self._store.read(segment.path, 4, at), "big")
                try:
                    return decode(self._store.read(segment.path, max(size, 0), at), check_crc=False)
                except BadRecord:
                    return None
        return None


def _hashes(hash_of: KeyHash, record: Record) -> set[int]:
    """What an index may hold of a record: its unique key, its keys; RocketMQ 5.4 and newer also its tags."""
    properties = decode_properties(record.properties)
    keys = [properties.get(UNIQ_KEY, ""), *properties.get(KEYS, "").split(" ")]
    if TAGS in properties:
        keys.append(f"T#{properties[TAGS]}")
    return {hash_of(record.topic, key) for key in keys if key}


def _file_at(segments: list[SegmentInfo], offset: int) -> str:
    return next((segment.name for segment in segments if segment.start <= offset < segment.end), "")


def _name(segments: list[SegmentInfo], record: Record) -> str:
    return _file_at(segments, record.physical_offset)
