"""How is a store mended that no broker runs on: from the directories of its replicas, in place?

First what no CRC covers is compared with the replicas (``store.offline.replicas``). Then damaged ranges of
the log are taken from the first replica whose bytes prove themselves (``store.offline.taking``); queue
entries, and an index that is wrong or gone, from the log's own records (``store.offline.rebuild``). This goes
on until ``store.offline.verify`` finds nothing, or nothing more can be done: the rest is left. A torn tail
is cut only when the caller says so: it may be all that is left of the newest messages. Damage of the log
that nobody can mend is written into the ledger, so that the broker knows of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from model.config import StoreConfig
from model.errors import DiskError
from model.queue_sizes import Told
from runtime.env import Disk, File
from store.files.consume_queues import OPEN_FILES_MAX
from store.files.damage import DamagedRange, DamageLedger
from store.files.record import BadRecord, DispatchParser, delay_levels_ms
from store.offline import verify
from store.offline.directory import SegmentInfo, StoreDirectory, must_be_store
from store.offline.index_check import Shape, shape_of
from store.offline.left import condensed
from store.offline.queues.mend import is_of_queues, mend_queues
from store.offline.queues.sizes import UNTOLD, size_of
from store.offline.rebuild import rebuild_index
from store.offline.replicas import Comparison, Span, goes_on_behind
from store.offline.taking import copy, gap_at, proven

ROUNDS_MAX: Final = 16
"""Each reads the whole log. One is enough unless what is mended shows what is damaged behind it."""
_ZEROS: Final = bytes(1 << 16)
_NOT_LOOKED_AT: Final = {"kind": "not_looked_at", "physicalOffset": 0, "until": 0}
_MORE: Final = _NOT_LOOKED_AT | {"why": "there may be more: repair again"}
_NOT_COMPARED: Final = _NOT_LOOKED_AT | {
    "why": "no replica has a whole record of this log, confirmed and in the same epoch: nothing was compared"
}
_UNSEEN: Final = {"not_looked_at", "file_unreadable", "missing_segment"}
"""Where one is left, not all of the log was judged."""
Row = dict[str, Any]


@dataclass
class Outcome:
    """What was done. ``repaired`` and ``left`` are rows ready for JSON; ``entries`` counts queue entries,
    ``resized`` files of queues that got their size, ``indexed`` the records an index was made of, None when
    it was left alone."""

    repaired: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)
    entries: int = 0
    resized: int = 0
    tail: dict[str, int] | None = None
    tail_cut: bool = False
    indexed: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": not self.left,
            "repaired": self.repaired,
            "left": self.left,
            "entries": self.entries,
            "resized": self.resized,
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
        return _Repair(disk, root, peers, config, now_ms).run(cut_tail, progress)
    except OSError as error:
        raise DiskError(f"repairing {root} failed: {error.strerror or error}") from error
    finally:
        lock.release()


def _touching(left: list[DamagedRange], segments: list[SegmentInfo]) -> Iterator[list[DamagedRange]]:
    """Damage of one segment side by side: where the first ends need be no record's end, if nothing but bytes
    that are no record told it."""
    row: list[DamagedRange] = []
    starts = {segment.start for segment in segments}
    for item in left:
        if row and (row[-1].until != item.begin or item.begin in starts):
            yield row
            row = []
        row.append(item)
    if row:
        yield row


def _others(disk: Disk, root: str, peers: Sequence[str]) -> list[str]:
    """Each store of ``peers`` by one name, as its bytes would count twice; a store is no replica of itself.
    Raises OSError."""
    found: dict[Hashable, str] = {}
    for path in (root, *(peer.rstrip("/") or "/" for peer in peers)):
        log = f"{path}/commitlog"
        found.setdefault(disk.identity(log if disk.exists(log) else path), path)
    return list(found.values())[1:]


def _within(ranges: Iterable[DamagedRange], mended: list[DamagedRange]) -> Iterator[DamagedRange]:
    """Those that lie in one of ``mended``, which do not overlap."""
    spans = sorted((item.begin, item.until) for item in mended)
    for item in ranges:
        place = bisect_right(spans, item.begin, key=lambda span: span[0]) - 1
        if place >= 0 and item.until <= spans[place][1]:
            yield item


def _lies_in(item: DamagedRange, spans: Iterable[Span]) -> bool:
    """Does a part of it?"""
    return any(begin < item.until and item.begin < until for begin, until in spans)


def _was_replaced(store: StoreDirectory, item: DamagedRange) -> bool:
    try:
        return item.were_replaced(store.log_bytes(item.begin, item.until)) and store.is_sound(item.begin)
    except DiskError:  # unreadable
        return False


class _Repair:
    def __init__(
        self, disk: Disk, root: str, peers: Sequence[str], config: StoreConfig | None, now_ms: int
    ) -> None:
        self._disk = disk
        self._root = root.rstrip("/")
        self._peers = _others(disk, self._root, peers)
        self._config = config or StoreConfig()
        self._configured = config.queue_file_bytes if config is not None else 0
        self._told = Told(0, False)
        self._stands: set[int] = set()  # records whose places the queues told: no replica is asked again
        self._now_ms = now_ms
        self._parser = DispatchParser(delay_levels_ms(self._config.delay_levels))
        self._files: dict[str, File] = {}
        self._whys: dict[tuple[int, int], str] = {}  # of damage of the log, why no replica mended it
        self._reach = 0  # the log goes on up to there, as replicas show
        self._alone: list[Span] = []  # of the log, where no replica was compared
        self._replaced: set[int] = set()  # doubted records that were replaced before: where they begin

    def run(self, cut_tail: bool, progress: verify.Progress | None) -> Outcome:
        outcome = Outcome()
        before: list[Row] | None = None
        with StoreDirectory(self._disk, self._root, lenient=True) as store:
            self._told = size_of(self._disk, store, self._peers, self._configured)
            doubted = self._ledger().ranges
            self._replaced = {item.begin for item in doubted if _was_replaced(store, item)}
        for _ in range(ROUNDS_MAX):
            outcome.left = self._compare(outcome)
            size = self._told.size if self._told.sure else 0
            verdict = verify.verify(self._disk, self._root, self._config, progress, self._reach, size)
            outcome.tail, damage = verdict["tail"], verdict["damage"]
            if (not damage or damage == before) and not self._reaches_on(verdict["maxOffset"]):
                break
            before = damage
            self._mend(damage, outcome, verdict["maxOffset"])
        else:
            damage, outcome.left = [], [*outcome.left, _MORE]
            outcome.tail = None  # it was one before what was mended last: there may be more behind it
        outcome.left += self._rows(damage)
        if not any(row["kind"] in _UNSEEN for row in outcome.left):
            self._forget_mended(outcome.left)
        if cut_tail and outcome.tail is not None:
            with StoreDirectory(self._disk, self._root, lenient=True) as store:
                self._erase(store.segments(), outcome.tail["physicalOffset"])
            outcome.tail_cut = True
            self._sync()
        return outcome

    def _forget_mended(self, left: list[Row]) -> None:
        """All was looked at, and ``left`` is damaged: what else the ledger of damage names was mended by hand
        since. Of what differs from replicas only they can tell, where they were compared, unless
        it was replaced."""
        ledger, gone = self._ledger(), []
        named = [(row["physicalOffset"], row.get("until", row["physicalOffset"] + 1)) for row in left]
        for item in ledger.ranges:
            untold = item.kind == "bytes_differ" and (not self._peers or _lies_in(item, self._alone))
            if not _lies_in(item, named) and not (untold and item.begin not in self._replaced):
                gone.append(item)
        ledger.clear(gone)

    def _ledger(self) -> DamageLedger:
        ledger = DamageLedger(self._disk, self._root)
        ledger.load()
        return ledger

    def _reaches_on(self, end: int) -> bool:
        """Is what looks like the log's end a hole? An older checkpoint than the log's, or one that is gone,
        does not say; a replica may."""
        reach = goes_on_behind(self._disk, self._root, self._peers, end) if self._peers else 0
        further = reach > self._reach
        self._reach = max(self._reach, reach)
        return further

    def _rows(self, damage: list[Row]) -> list[Row]:
        """What is left, and a last row when the list was cut short."""
        rows = condensed(
            (place, self._whys.get((place["physicalOffset"], place["until"])) or place["text"])
            for place in damage
        )
        if not self._told.sure and any(is_of_queues(place) for place in damage):
            rows.append(_NOT_LOOKED_AT | {"why": UNTOLD})
        return [*rows, _MORE] if len(damage) >= verify.DAMAGE_MAX else rows

    def _compare(self, outcome: Outcome) -> list[Row]:
        """Take over what most copies of a record have; returns what is not decided."""
        if not self._peers:
            return []
        with StoreDirectory(self._disk, self._root, lenient=True) as store:
            shape = self._shape(store)
            try:
                compared = Comparison(self._disk, self._root, self._peers, self._parser, shape)
            except DiskError as error:
                return [_NOT_LOOKED_AT | {"why": f"nothing was compared: {error}"}]
            left: list[Row] = []
            self._alone = compared.alone
            try:
                for item in compared.differences():
                    if item.begin in self._stands:
                        continue
                    row = {"kind": "bytes_differ", "physicalOffset": item.begin, "until": item.until}
                    if item.data:
                        segment = store.segment_at(item.begin)
                        assert segment is not None, "a record was read there"
                        self._open(segment.path).pwrite(item.data, item.begin - segment.start)
                        outcome.repaired.append(row | {"from": item.source})
                    elif len(left) < verify.DAMAGE_MAX:
                        left.append(row | {"why": item.why})
                    elif left[-1] != _MORE:
                        left.append(_MORE)
            finally:
                compared.close()
            self._sync()
            return left if compared.compared or not compared.records else [*left, _NOT_COMPARED]

    def _shape(self, store: StoreDirectory) -> Shape:
        """Of the index files here, else as at the replicas, else as configured."""
        shape = verify.shape_in(self._config)
        for peer in () if store.index_files() else self._peers:
            with StoreDirectory(self._disk, peer, lenient=True) as other:
                if other.index_files():
                    return shape_of(other, shape)
        return shape_of(store, shape)

    def _mend(self, damage: list[Row], outcome: Outcome, end: int) -> None:
        """``end``: of the log. What lies behind it a start drops: nothing is made of that."""
        with StoreDirectory(self._disk, self._root, lenient=True) as store:
            self._mend_log(store, store.segments(), damage, outcome)
            kinds = {place["kind"] for place in damage}
            if "file_unreadable" in kinds:
                return  # what is made of the log waits until all of it can be read
            if any(map(is_of_queues, damage)):
                ledger = self._ledger()
                mended = mend_queues(
                    self._disk, store, self._told, self._parser, damage, end, ledger.doubt_as_written
                )
                outcome.entries += mended.entries
                outcome.resized += mended.files
                for item in mended.records:
                    self._stands.add(item.offset)
                    row = {"kind": "bytes_differ", "physicalOffset": item.offset}
                    source = f"consumequeue/{item.topic}/{item.queue_id}"
                    outcome.repaired.append(row | {"until": item.offset + item.size, "from": source})
            if kinds & {"index_wrong", "index_missing"}:
                shape = self._shape(store)
                outcome.indexed = rebuild_index(self._disk, store, shape, self._parser, self._now_ms, end)
            self._sync()

    def _mend_log(
        self,
        store: StoreDirectory,
        segments: list[SegmentInfo],
        damage: list[Row],
        outcome: Outcome,
    ) -> None:
        """Put a replica's bytes in the place of damaged ones; note what none of them has."""
        ledger = self._ledger()
        places = [d for d in damage if d["file"].isdigit() and d["kind"] != "missing_segment"]
        places = [d for d in places if d["physicalOffset"] < d["until"]]
        ends = [int(d["physicalOffset"]) for d in (*places, *filter(None, [outcome.tail]))]
        items = [DamagedRange(d["physicalOffset"], d["until"], d["kind"], self._now_ms) for d in places]
        if len(damage) < verify.DAMAGE_MAX:  # all there is
            ledger.narrow((item.begin, item.until) for item in items)
        left: list[DamagedRange] = []
        lost: list[DamagedRange] = []
        mended: list[DamagedRange] = []
        for item in sorted(items, key=lambda d: d.begin):
            (mended if self._mended(store, segments, item, ends, outcome) else left).append(item)
        for row in _touching(left, segments):
            whole = DamagedRange(row[0].begin, row[-1].until, row[0].kind, self._now_ms)
            if len(row) > 1 and self._mended(store, segments, whole, ends, outcome):
                mended.append(whole)
            else:
                lost += row
        self._sync()  # before the ledger says so
        ledger.clear(_within(ledger.ranges, mended))
        ledger.note(lost)

    def _mended(
        self,
        store: StoreDirectory,
        segments: list[SegmentInfo],
        item: DamagedRange,
        ends: list[int],
        outcome: Outcome,
    ) -> bool:
        limit = min((at for at in ends if at >= item.until), default=1 << 63)
        source, why = self._take(store, segments, item, limit)
        if source is None:
            self._whys[item.begin, item.until] = why
            return False
        row = {"kind": item.kind, "physicalOffset": item.begin, "until": item.until}
        outcome.repaired.append(row | {"from": source})
        return True

    def _sync(self) -> None:
        for file in self._files.values():
            file.sync()
            file.close()
        self._files.clear()

    # -- the log ---------------------------------------------------------------------------------------

    def _take(
        self, store: StoreDirectory, segments: list[SegmentInfo], item: DamagedRange, limit: int
    ) -> tuple[str | None, str]:
        """From ``limit`` on nothing proves anything: other damage is there, or the torn tail."""
        segment = next((s for s in segments if s.start <= item.begin < s.end), None)
        if segment is None or item.until > segment.end:
            return None, "it crosses the end of a segment"
        gap = gap_at(store, segment, item.begin, item.until, limit)
        whys: list[str] = []
        for peer in self._peers:
            with StoreDirectory(self._disk, peer, lenient=True) as other:
                try:
                    until = proven(store, gap, other, prop_crc=self._config.append_prop_crc)
                except BadRecord as bad:
                    whys.append(f"{peer}: {bad}")
                    continue
                copy(other, gap, until, self._open(segment.path))
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

    def _open(self, path: str) -> File:
        file = self._files.get(path)
        if file is None:
            if len(self._files) >= OPEN_FILES_MAX:
                self._sync()
            file = self._files[path] = self._disk.open(path)
        return file
