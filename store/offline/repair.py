"""How is a store mended that no broker runs on: from the directories of its replicas, in place?

Damaged ranges of the log are taken from the first replica whose bytes prove themselves
(``store.heal.repair.check``); queue entries, and an index that is wrong or gone, from the log's own records
(``store.offline.rebuild``). A torn tail is cut only when the caller says so: it may be all that is left of
the newest messages. What nobody can mend is written into the ledger, so that the broker knows of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from model.config import StoreConfig
from model.errors import DiskError
from model.message import SCHEDULE_TOPIC, TRANSACTION_PREPARED
from runtime.env import Disk, File
from store.files.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE
from store.files.damage import DamagedRange, DamageLedger
from store.files.record import BadRecord, DispatchParser, Record, delay_levels_ms, measure
from store.heal.repair import NEIGHBOUR_BYTES, Wanted, check
from store.offline import verify
from store.offline.directory import SegmentInfo, StoreDirectory, must_be_store
from store.offline.rebuild import NEW_INDEX, complete_queues, rebuild_index

_ZEROS: Final = bytes(1 << 16)
_MORE: Final = {
    "kind": "not_looked_at",
    "physicalOffset": 0,
    "until": 0,
    "why": "there may be more: repair again",
}


@dataclass
class Outcome:
    """What was done. ``repaired`` and ``left`` are rows ready for JSON; ``entries`` counts queue entries,
    ``indexed`` the records an index was made of, None when it was left alone."""

    repaired: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)
    entries: int = 0
    tail: dict[str, int] | None = None
    tail_cut: bool = False
    indexed: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": not self.left,
            "repaired": self.repaired,
            "left": self.left,
            "entries": self.entries,
            "tail": self.tail,
            "tailCut": self.tail_cut,
            "indexed": self.indexed,
        }


def repair(
    disk: Disk,
    root: str,
    peers: Sequence[str],
    *,
    cut_tail: bool = False,
    now_ms: int = 0,
    config: StoreConfig | None = None,
    progress: verify.Progress | None = None,
) -> Outcome:
    """Mend the store at ``root`` from the stores at ``peers``. Raises DiskError: in use, unreadable, or one
    of them is no store."""
    for path in (root, *peers):
        must_be_store(disk, path.rstrip("/") or "/")
    try:
        lock = disk.lock(f"{root}/lock")
    except BlockingIOError:
        raise DiskError(f"{root} is in use by another process") from None
    try:
        return _Repair(disk, root, peers, config or StoreConfig(), now_ms).run(cut_tail, progress)
    except OSError as error:
        raise DiskError(f"repairing {root} failed: {error.strerror or error}") from error
    finally:
        lock.release()


class _Repair:
    def __init__(self, disk: Disk, root: str, peers: Sequence[str], config: StoreConfig, now_ms: int) -> None:
        self._disk = disk
        self._root = root.rstrip("/")
        self._peers = peers
        self._config = config
        self._now_ms = now_ms
        self._parser = DispatchParser(delay_levels_ms(config.delay_levels))
        self._files: dict[str, File] = {}
        self._without_queue = False  # was there a record whose queue has no files?
        self._keyed = False  # or one that belongs into the index?

    def run(self, cut_tail: bool, progress: verify.Progress | None) -> Outcome:
        verdict = verify.verify(self._disk, self._root, self._config, progress)
        outcome = Outcome(tail=verdict["tail"])
        with StoreDirectory(self._disk, self._root) as store:
            segments = store.segments()
            self._mend_log(store, segments, verdict["damage"], outcome)
            outcome.left += _beyond_repair(verdict["damage"])
            kinds = {place["kind"] for place in verdict["damage"]}
            self._mend_queues(store, kinds, outcome)
            if "index_wrong" in kinds or self._keyed_without_index(store):
                outcome.indexed = rebuild_index(self._disk, store, self._config, self._parser, self._now_ms)
            if cut_tail and outcome.tail is not None:
                self._erase(segments, outcome.tail["physicalOffset"])
                outcome.tail_cut = True
            self._sync()
        return outcome

    def _mend_log(
        self,
        store: StoreDirectory,
        segments: list[SegmentInfo],
        damage: list[dict[str, Any]],
        outcome: Outcome,
    ) -> None:
        """Put a replica's bytes in the place of damaged ones; note what none of them has."""
        ledger = DamageLedger(self._disk, self._root)
        ledger.load()
        places = [d for d in damage if d["file"].isdigit() and d["kind"] != "missing_segment"]
        ends = [int(d["physicalOffset"]) for d in (*places, *filter(None, [outcome.tail]))]
        for place in sorted(places, key=lambda d: int(d["physicalOffset"])):
            item = DamagedRange(place["physicalOffset"], place["until"], place["kind"], self._now_ms)
            row = {"kind": item.kind, "physicalOffset": item.begin, "until": item.until}
            limit = min((at for at in ends if at >= item.until), default=1 << 63)
            source, why = self._mend(store, segments, item, limit)
            if source is None:
                outcome.left.append(row | {"why": why})
                ledger.note([item])
                continue
            outcome.repaired.append(row | {"from": source})
            for known in [r for r in ledger.ranges if item.begin <= r.begin and r.until <= item.until]:
                ledger.clear(known)

    def _mend_queues(self, store: StoreDirectory, kinds: set[str], outcome: Outcome) -> None:
        outcome.entries = sum(1 for _ in self._mend_entries(store))
        self._sync()  # before others open the same files
        if self._without_queue or kinds & {"cq_missing", "cq_wrong", "cq_dangling"}:
            outcome.entries += complete_queues(self._disk, store, self._config, self._parser)

    def _sync(self) -> None:
        for file in self._files.values():
            file.sync()
            file.close()
        self._files.clear()

    def _keyed_without_index(self, store: StoreDirectory) -> bool:
        if not (self._config.message_index_enable and self._keyed):
            return False
        return not store.index_files() or self._disk.is_dir(f"{self._root}/{NEW_INDEX}")

    # -- the log ---------------------------------------------------------------------------------------

    def _mend(
        self, store: StoreDirectory, segments: list[SegmentInfo], item: DamagedRange, limit: int
    ) -> tuple[str | None, str]:
        """From ``limit`` on nothing proves anything: other damage is there, or the torn tail."""
        segment = next((s for s in segments if s.start <= item.begin < s.end), None)
        if segment is None or item.until > segment.end:
            return None, "it crosses the end of a segment"
        begin = max(item.begin - NEIGHBOUR_BYTES, segment.start)
        until = min(item.until + NEIGHBOUR_BYTES, segment.end, limit)
        before = store.read(segment.path, item.begin - begin, begin - segment.start)
        behind = store.read(segment.path, until - item.until, item.until - segment.start)
        behind = behind.rstrip(b"\0")  # where the log ends here, it may go on there
        until = item.until + len(behind)
        whys: list[str] = []
        for peer in self._peers:
            with StoreDirectory(self._disk, peer) as other:
                data = _bytes_of(other, begin, until)
            try:
                inner = check(
                    Wanted(begin, until, item, before, behind),
                    data,
                    segment.size,
                    prop_crc=self._config.append_prop_crc,
                )
            except BadRecord as bad:
                whys.append(f"{peer}: {bad}")
                continue
            file = self._open(segment.path)
            file.pwrite(inner, item.begin - segment.start)
            file.sync()
            return peer, ""
        return None, "; ".join(whys) or "no replica was named"

    def _erase(self, segments: list[SegmentInfo], offset: int) -> None:
        for segment in segments:
            if segment.end <= offset:
                continue
            file = self._open(segment.path)
            for at in range(max(offset - segment.start, 0), segment.size, len(_ZEROS)):
                size = min(len(_ZEROS), segment.size - at)
                if any(file.pread(size, at)):
                    file.pwrite(_ZEROS[:size], at)
            file.sync()

    # -- the queues ------------------------------------------------------------------------------------

    def _mend_entries(self, store: StoreDirectory) -> Iterator[None]:
        """Make entries right that are there and name no record of their own."""
        shapes: dict[tuple[str, int], list[SegmentInfo]] = {}
        for record in store.records():
            if not isinstance(record, Record) or record.sys_flag & TRANSACTION_PREPARED:
                continue
            key = (record.topic, record.queue_id)
            self._keyed = self._keyed or "KEY" in record.properties
            if key not in shapes:
                shapes[key] = store.queue_files(*key)
                self._without_queue = self._without_queue or not shapes[key]
            at = record.queue_offset * ENTRY_BYTES
            file = next((f for f in shapes[key] if f.start <= at < f.end), None)
            if file is None:
                continue
            found = ENTRY.unpack(store.read(file.path, ENTRY_BYTES, at - file.start))
            tags_code = self._parser.tags_code(record.topic, record.properties, record.store_timestamp_ms)
            wanted = (record.physical_offset, record.size, tags_code)
            if found == wanted or self._may_stand(store, found, wanted, record):
                continue
            self._open(file.path).pwrite(ENTRY.pack(*wanted), at - file.start)
            yield

    def _may_stand(
        self, store: StoreDirectory, found: tuple[int, int, int], wanted: tuple[int, int, int], record: Record
    ) -> bool:
        offset, size, tags_code = found
        if found[:2] == wanted[:2]:
            return record.topic == SCHEDULE_TOPIC or tags_code < -(1 << 31)
        if not any(found):
            return True  # not written yet: the next start makes it
        if size == PRE_BLANK_SIZE or size <= 0:
            return False
        data = _bytes_of(store, offset, offset + size)
        try:
            if measure(data, 0, offset, False) != size:
                return False
        except BadRecord:
            return False
        other = self._parser.one(data, 0, size)
        return other[2:5] == (record.topic, record.queue_id, record.queue_offset)

    def _open(self, path: str) -> File:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._disk.open(path)
        return file


def _beyond_repair(damage: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What no replica's bytes mend, and a last row when the list was cut short."""
    rows = [
        {key: place[key] for key in ("kind", "physicalOffset", "until")} | {"why": place["text"]}
        for place in damage
        if place["kind"] in ("missing_segment", "epoch_file_corrupt")
    ]
    return [*rows, _MORE] if len(damage) >= verify.DAMAGE_MAX else rows


def _bytes_of(store: StoreDirectory, begin: int, until: int) -> bytes:
    for segment in store.segments():
        if segment.start <= begin < segment.end:
            return store.read(segment.path, max(min(until, segment.end) - begin, 0), begin - segment.start)
    return b""
