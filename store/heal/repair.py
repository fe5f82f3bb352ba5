"""How does a damaged range become whole again, and what must the bytes of a replica prove first?

Bytes for a range are taken when they are whole records from its first byte to its last, each with magic, its
own physical offset and right CRCs, and when the replica's bytes before and behind the range are the same as
ours: a replica with another history does not mend this one. They are written in place and synced before the
ledger forgets the range: a crash in between leaves the range on the ledger, and recovery looks at it again.

A record is doubted that its queue entry or the index contradicts in what no CRC covers. It is read as ever,
and nothing is made from it: the entries are evidence. A replica that has the same bytes outvotes them; other
bytes that they name take its place, as ``store/heal/agreement`` has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from model.errors import DiskError
from model.message import LMQ_PREFIX, SCHEDULE_TOPIC, TRANSACTION_PREPARED
from runtime.env import Env
from store.files.consume_queue import PRE_BLANK_SIZE, TAGS_CODE_MIN, ConsumeQueue
from store.files.damage import RECORD_BYTES_MAX, DamagedRange, resync
from store.files.partial import PROVEN_BYTES, partial_behind
from store.files.record import BLANK_BYTES, HEAD, BadRecord, Dispatch, whole
from store.files.segment import Segment
from store.files.store_files import StoreFiles
from store.flow.dispatching.store_flow import StoreFlow
from store.recover.lost import note_damage

log = logging.getLogger(__name__)

NEIGHBOUR_BYTES: Final = 256
"""So much before and behind a range must be the same in the replica that mends it."""
PAGE_BYTES: Final = 4096
SEARCH_BYTES_MAX: Final = 4 << 20
DOUBTS_MAX: Final = 256
"""So many are asked about; the scrub finds the others again in its next pass."""
UNREADABLE_AGAIN_MS: Final = 5_000
"""What was not read is tried again after so long, then after twice as long, and so on: a moment's error must
not keep this log from being whole, and every try on a dead sector may take seconds, on the loop."""
UNREADABLE_AGAIN_MAX_MS: Final = 600_000
SYNCING: Final = "syncing a repaired range"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to ask a replica for: the bytes [``begin``, ``until``) with their neighbours."""

    begin: int
    until: int
    of: DamagedRange
    before: bytes
    behind: bytes


def check(wanted: Wanted, data: bytes, segment_bytes: int, *, prop_crc: bool) -> bytes:
    """The bytes that mend ``wanted.of``, out of what a replica gave for [begin, until).

    Raises BadRecord when they are not whole, or the neighbours differ.
    """
    if len(data) != wanted.until - wanted.begin:
        raise BadRecord("unreadable_region", f"{len(data)} bytes came, not {wanted.until - wanted.begin}")
    cut = len(wanted.before)
    stop = len(data) - len(wanted.behind)
    if data[:cut] != wanted.before or data[stop:] != wanted.behind:
        text = f"the bytes around [{wanted.of.begin}, {wanted.of.until}) are not ours"
        raise BadRecord("divergent_suffix", text)
    inner = data[cut:stop]
    whole_up_to(inner, wanted.of.begin, segment_bytes, prop_crc=prop_crc)
    return inner


def whole_up_to(data: bytes, offset: int, segment_bytes: int, *, prop_crc: bool) -> None:
    """Raise BadRecord unless ``data``, at physical ``offset``, is records (and a right blank) to its end."""
    at = 0
    while at < len(data):
        left = segment_bytes - (offset + at) % segment_bytes
        size = whole(data, at, offset + at, prop_crc=prop_crc)
        if size == 0 or (size < 0 and -size != left) or at + abs(size) > len(data):
            raise BadRecord("unreadable_region", f"no record ends where the one at {offset + at} should")
        at += abs(size)


def _sync(segments: list[Segment]) -> None:
    for segment in segments:
        segment.file.sync()


class Repairer:
    """Mends one open store, on the event loop; only the sync runs off it."""

    def __init__(self, env: Env, files: StoreFiles, flow: StoreFlow) -> None:
        self.repaired = 0  # ranges mended since the start
        self._env = env
        self._files = files
        self._log = files.log
        self._queues = files.queues
        self._index = files.index
        self._damage = files.damage
        self._health = files.health
        self._indexer = flow.indexer
        self._dispatcher = flow.dispatcher
        self._parser = flow.parser
        # What is beside cannot be read: when to look again, and how long it was waited for, ms.
        self._later: dict[DamagedRange, tuple[float, float]] = {}
        self._mending: set[DamagedRange] = set()  # their bytes are written, but not synced yet
        self._doubts: dict[int, DamagedRange] = {}  # by where they begin
        # Bytes no good record follows yet: the log's generation and their begin; behind what to search.
        self._searched: tuple[tuple[int, int], int] = (-1, -1), -1

    def wanted(self) -> list[Wanted]:
        """What would mend the ranges there are. One longer than any record is left for ``store repair``."""
        found: list[Wanted] = []
        self._later = {item: later for item, later in self._later.items() if item in self._damage.ranges}
        for item in (*self._damage.ranges, *self.doubts()):
            if item.until - item.begin > RECORD_BYTES_MAX or item in self._mending:
                continue
            again_ms, waited_ms = self._later.get(item, (0.0, 0.0))
            if self._env.monotonic_ms() < again_ms:
                continue
            if not self._log.min_offset <= item.begin < item.until <= self._log.end:
                continue  # the log was cut or begins later by now; the ledger follows
            begin = max(item.begin - NEIGHBOUR_BYTES, self._segment_start(item.begin))
            while (near := self._damage.at(begin)) is not None and begin < item.begin:
                begin = near.until
            stop = min(item.until + NEIGHBOUR_BYTES, self._segment_start(item.until - 1) + self._segment)
            stop = self._damage.next_begin(item.begin, min(stop, self._log.end))
            try:
                before = self._log.read(begin, item.begin - begin)
                behind = self._log.read(item.until, stop - item.until) if stop > item.until else b""
                self._need_edges(item)
            except DiskError as error:
                log.error("[%d, %d) cannot be repaired now: %s", item.begin, item.until, error)
                wait_ms = min(max(2 * waited_ms, UNREADABLE_AGAIN_MS), UNREADABLE_AGAIN_MAX_MS)
                self._later[item] = self._env.monotonic_ms() + wait_ms, wait_ms
                continue
            found.append(Wanted(begin, max(stop, item.until), item, before, behind))
        return found

    def _need_edges(self, item: DamagedRange) -> None:
        """Raise DiskError when a page that lies in ``item`` only in part cannot be read: writing that part,
        the system would have to read the rest, fail, and a failed write is for ever."""
        for edge, inner in ((item.begin, item.begin), (item.until, item.until - 1)):
            if edge % self._segment % PAGE_BYTES:
                self._log.read(inner, 1)

    @property
    def _segment(self) -> int:
        return self._log.segment_bytes

    def _segment_start(self, offset: int) -> int:
        return offset - offset % self._segment

    async def mend(self, wanted: Wanted, data: bytes, *, decided: bool = False) -> int:
        """Put a replica's bytes in their place; returns how many records they hold. ``decided``: replicas
        agree about them, whatever our queues say.

        Raises BadRecord when they prove nothing (see ``check``), DiskError when they cannot be written.
        """
        item = wanted.of
        inner = check(wanted, data, self._segment, prop_crc=self._log.prop_crc)
        if self._doubts.get(item.begin) is item:
            return await self._settle(item, inner)
        if not decided:
            self._check_places(item, inner)
        if item not in self._damage.ranges or item in self._mending:
            return 0  # cut or mended while the answer was on its way: other bytes may stand there now
        generation = self._log.generation
        self._log.overwrite(item.begin, inner)
        segments = self._log.pinned(item.begin, item.until)
        self._mending.add(item)
        try:
            await self._env.offload(lambda: _sync(segments))
        except OSError as error:
            raise self._health.failed(error, SYNCING, sync=True) from error
        finally:
            self._mending.discard(item)
            for segment in segments:
                segment.unpin()
        if generation != self._log.generation or item not in self._damage.ranges:
            return 0  # the log was cut meanwhile: there is nothing to be whole
        found = self._parse(inner, item.begin)
        self._damage.clear([item])
        self._enter([one for one in found if one.offset + one.size <= self._dispatcher.dispatched])
        self.repaired += 1
        log.warning("repaired [%d, %d): %d records are back", item.begin, item.until, len(found))
        self._env.events.add("repaired", begin=item.begin, until=item.until, records=len(found))
        return len(found)

    def _check_places(self, item: DamagedRange, data: bytes) -> None:
        """Raise BadRecord when a record of ``data`` says that it has another place in the queues than the
        entry we have of it: no CRC covers that, and it may be the replica's that rotted."""
        # Behind a record come its places in light queues.
        found = {one.offset: one for one in reversed(self._parse(data, item.begin))}
        # Where these are whole here, and the same there, two logs outvote an entry.
        same = item.kind == "bytes_differ" and self._log.read(item.begin, len(data)) == data
        for lost in item.lost:
            queue, one = self._queues.get(lost.topic, lost.queue_id), found.get(lost.offset)
            entry = queue.entry(lost.queue_offset) if queue is not None else None
            if one is None or entry is None or entry[:2] != lost[:2] or one.sys_flag & TRANSACTION_PREPARED:
                continue
            if one[:5] != lost[:5]:
                raise BadRecord("bytes_differ", f"the record at {lost.offset} has another place there")
            if one.tags_code != entry[2] and self.tells_tags(entry[2], lost.topic) and not same:
                raise BadRecord("bytes_differ", f"the record at {lost.offset} has another tag there")

    @staticmethod
    def tells_tags(tags_code: int, topic: str) -> bool:
        """Does the tags code of an entry say what its record's tags were? When a delayed message is due, and
        where an extension lies, only the writer knew."""
        return topic != SCHEDULE_TOPIC and tags_code >= TAGS_CODE_MIN

    def doubt(self, item: Dispatch) -> None:
        """The record of ``item`` and what was made of it differ, and no CRC tells which is right: replicas
        are asked."""
        known = item.offset in self._doubts or self._damage.overlaps(item.offset, item.offset + item.size)
        if known or len(self._doubts) >= DOUBTS_MAX:
            return
        log.error("record at %d: its queue entry or the index has it otherwise", item.offset)
        self._doubts[item.offset] = DamagedRange(item.offset, item.offset + item.size, "bytes_differ")
        for hook in self._damage.on_change:
            hook()

    def doubts(self) -> list[DamagedRange]:
        """The records that are doubted, as ranges; none is in the ledger."""
        first, end, overlaps = self._log.min_offset, self._dispatcher.dispatched, self._damage.overlaps
        self._doubts = {
            begin: item
            for begin, item in self._doubts.items()
            if first <= begin and item.until <= end and not overlaps(begin, item.until)
        }
        return list(self._doubts.values())

    def believe_doubted(self) -> None:
        """No other broker has this log: make entries from what records say, a record is what is read. Raises
        DiskError."""
        for item in self.doubts():
            del self._doubts[item.begin]
            with suppress(BadRecord):  # cut, and written again
                data = self._log.read(item.begin, item.until - item.begin)
                if self._log.whole(data, 0, item.begin) == len(data):
                    self._enter(self._parse(data, item.begin))

    async def _settle(self, item: DamagedRange, inner: bytes) -> int:
        """``inner`` is what a replica has where a record is doubted here. Raises BadRecord when that decides
        nothing, DiskError."""
        ours = self._log.read(item.begin, len(inner))
        if self._log.whole(inner, 0, item.begin) != len(inner) or self._log.whole(ours, 0, item.begin) != len(
            ours
        ):
            raise BadRecord("bytes_differ", f"another record is at {item.begin}")
        if inner != ours and (not self.names(item.begin, inner) or self.names(item.begin, ours)):
            raise BadRecord("bytes_differ", f"no evidence says which record at {item.begin} is right")
        del self._doubts[item.begin]
        if inner != ours:
            return await self.replace(item.begin, inner)
        self._enter(self._parse(inner, item.begin))
        log.warning(
            "a replica has the same record at %d: its entries were wrong, and were made anew", item.begin
        )
        return 1

    def names(self, offset: int, data: bytes) -> bool:
        """Do queue and index say of the record at ``offset`` what ``data`` says? Of a blank: is it empty?

        ``data`` is a whole record or blank.
        """
        size = self._log.whole(data, 0, offset)
        if size < 0:
            return not any(data[BLANK_BYTES:])
        item = self._parser.one(data, 0, size)
        if not item.sys_flag & TRANSACTION_PREPARED:
            queue = self._queues.get(item.topic, item.queue_id)
            entry = queue.entry(item.queue_offset) if queue is not None and item.queue_offset >= 0 else None
            if entry != (item.offset, item.size, item.tags_code):
                return False
        return self._index is None or self._index.names(item)

    async def replace(self, offset: int, data: bytes) -> int:
        """Put other replicas' bytes in the place of a record that only seems whole; returns how many
        records were mended. Raises BadRecord, DiskError."""
        until = offset + len(data)
        former = self._log.read(offset, len(data))
        self._note(offset, until, BadRecord("bytes_differ", f"replicas have another record at {offset}"))
        for wanted in self.wanted():
            if wanted.of.begin == offset and wanted.of.until == until:
                mended = await self.mend(wanted, wanted.before + data + wanted.behind, decided=True)
                self._forget(offset, former, data)
                return mended
        return 0  # damage was known beside it: they are mended as one

    def _forget(self, offset: int, former: bytes, now: bytes) -> None:
        """Take back the queue entry a record had under the wrong name. Raises DiskError."""
        try:
            if any(self._log.whole(data, 0, offset) != len(data) for data in (former, now)):
                return
        except BadRecord:
            return
        wrong, right = self._parser.one(former, 0, len(former)), self._parser.one(now, 0, len(now))
        queue = self._queues.get(wrong.topic, wrong.queue_id)
        if wrong[2:5] == right[2:5] or queue is None or wrong.queue_offset < 0:
            return
        entry = queue.entry(wrong.queue_offset)
        if entry is None or entry[0] != offset:
            return
        try:
            queue.patch(wrong.queue_offset, 0, PRE_BLANK_SIZE, 0)
            self._queues.patched(queue)
            if all(size == PRE_BLANK_SIZE for _, _, size, _ in queue.entries(queue.first_offset)):
                self._queues.remove(queue)
        except OSError as error:
            raise DiskError(f"mending {queue.topic}/{queue.queue_id} failed: {error}") from error

    def _parse(self, data: bytes, offset: int) -> list[Dispatch]:
        found: list[Dispatch] = []
        at = 0
        while at + BLANK_BYTES <= len(data):
            batch, end = self._parser.parse(data[at:], offset + at, offset + len(data))
            found += batch
            if end == offset + at:
                break
            at = end - offset
        return found

    def _enter(self, found: list[Dispatch]) -> None:
        """Give records behind which dispatch has gone on their places in queues and index."""
        for item in found:
            if not item.sys_flag & TRANSACTION_PREPARED:
                queue = self._queues.open(item.topic, item.queue_id)
                self.enter(queue, item)
        late = [item for item in found if item.offset < self._indexer.at]  # the others it comes to yet
        if self._index is not None and late:
            try:
                self._index.add_late(late)
            except OSError as error:
                log.error("indexing what was repaired failed: %s", error)

    def enter(self, queue: ConsumeQueue, item: Dispatch) -> bool:
        """Make the queue entry of a record what it should be; was it another? Raises DiskError."""
        try:
            if item.queue_offset < queue.first_offset:
                return False
            if item.queue_offset < queue.max_offset:
                entry = queue.entry(item.queue_offset)
                if entry is not None and self._is_fine(entry, queue.queue_id, item):
                    return False
                changed = queue.patch(item.queue_offset, item.offset, item.size, item.tags_code)
                if changed:
                    self._queues.patched(queue)
                    if item.queue_offset < queue.min_offset:  # the queue had to begin behind it
                        queue.correct_min(self._log.min_offset)
                return changed
            if queue.put(item.queue_offset, item.offset, item.size, item.tags_code):
                self._queues.dirty[queue] = None
                return True
        except OSError as error:
            raise DiskError(f"mending {queue.topic}/{queue.queue_id} failed: {error}") from error
        return False

    def _is_fine(self, entry: tuple[int, int, int], queue_id: int, item: Dispatch) -> bool:
        """May ``entry`` stand as it is for ``item``? Of two records with one queue offset the first keeps it;
        when a delayed message is due, and where an extension lies, only the writer knew."""
        offset, size, tags_code = entry
        if (offset, size) == (item.offset, item.size):
            return tags_code == item.tags_code or not self.tells_tags(tags_code, item.topic)
        return self._is_at(offset, size, queue_id, item.queue_offset)

    def note(self, at: int, bad: BadRecord, read: Callable[[int, int], bytes] | None = None) -> int:
        """Write down the damage at ``at``; returns where good records go on. Raises DiskError.

        ``read(offset, size)``: what gives the log's bytes where the disk may not give all of them.
        """
        base = self._segment_start(at)
        stop = min(base + self._segment, self._dispatcher.dispatched)
        found = self._next_good(at, stop, read or self._log.read)
        return self._note(at, found if found is not None else stop, bad)

    def note_ahead(self, at: int, until: int, bad: BadRecord) -> bool:
        """Write down bytes at ``at`` that dispatch met, if it is known where they end before ``until``: a
        slave that copied a damaged log meets them. Raises DiskError.

        A good record, known damage or the next segment begins there. Asked again when there is more, this
        goes on searching where a record may begin that was not there as a whole.
        """
        base = self._segment_start(at)
        stop = min(base + self._segment, until)
        what = (self._log.generation, at)
        before, begin = self._searched
        if before != what:
            log.error("bytes at %d are no record, looking for one behind them: %s", at, bad)
            begin = at
        found = self._next_good(begin, stop, self._log.read)
        if found is None and (stop == base + self._segment or self._damage.at(stop) is not None):
            found = stop
        if found is None:
            partial = partial_behind(
                lambda size, p: self._log.read(base + p, size), begin - base, base, stop - base
            )
            begin = max(begin, stop - PROVEN_BYTES) if partial is None else base + partial - 1
            self._searched = what, begin
            return False
        self._note(at, found, bad)
        return True

    def _next_good(self, at: int, stop: int, read: Callable[[int, int], bytes]) -> int | None:
        base = self._segment_start(at)
        found = resync(lambda size, p: read(base + p, size), base, at - base, stop - base)
        return base + found if found is not None else None

    def _note(self, at: int, until: int, bad: BadRecord) -> int:
        log.error("rot at %d: %s", at, bad)
        note_damage(self._files, self._parser, [DamagedRange(at, until, bad.kind)], self._env.now_ms())
        return until

    def mend_entry(self, topic: str, queue_id: int, index: int) -> bool:
        """Look for the record of a queue entry that points nowhere, between those of its neighbours.

        True when the entry was wrong and is right now; else the record itself is damaged, and is noted.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= index < queue.max_offset or topic.startswith(LMQ_PREFIX):
            return False  # of a light queue, the record's own queue says whether it is damaged
        at: int = self._log.min_offset
        for before in range(index - 1, max(queue.min_offset, index - 64) - 1, -1):
            entry = queue.entry(before)
            if entry is not None and self._is_at(entry[0], entry[1], queue_id, before):
                at = entry[0]
                break
        stop = min(self._dispatcher.dispatched, at + SEARCH_BYTES_MAX)
        while at < stop:
            damaged = self._damage.at(at)
            if damaged is not None:
                at = damaged.until
                continue
            try:
                size = self._measure(at)
            except BadRecord as bad:
                at = self.note(at, bad)
                continue
            if size > 0:
                item = self._parser.one(self._log.read(at, size), 0, size)
                if item[2:5] == (topic, queue_id, index):
                    return self.enter(queue, item)
            at += abs(size)
        self._doubt(queue, index)
        return False

    def _doubt(self, queue: ConsumeQueue, index: int) -> None:
        """The record entry ``index`` names says it is another one, and the one it should be is nowhere.

        When no entry names it by what it says, its head is rotten: no CRC covers that by default.
        """
        entry = queue.entry(index)
        if entry is None or not self._log.min_offset <= entry[0] < self._dispatcher.dispatched:
            return
        offset, size, _ = entry
        try:
            if self._measure(offset) != size:
                return
        except BadRecord:
            return
        says = self._parser.one(self._log.read(offset, size), 0, size)
        other = self._queues.get(says.topic, says.queue_id)
        named = other.entry(says.queue_offset) if other is not None and says.queue_offset >= 0 else None
        if says[2:5] != (queue.topic, queue.queue_id, index) and (named is None or named[0] != offset):
            text = f"record at {offset} says it is {says.topic}/{says.queue_id} {says.queue_offset}"
            self._note(offset, offset + size, BadRecord("bytes_differ", text))

    def _measure(self, at: int) -> int:
        says = int.from_bytes(self._log.read(at, 4), "big", signed=True)
        size = self._log.whole(self._log.read(at, min(max(says, BLANK_BYTES), RECORD_BYTES_MAX)), 0, at)
        if size == 0:
            raise BadRecord("unreadable_region", f"the record at {at} says it has {says} bytes")
        return size

    def _is_at(self, offset: int, size: int, queue_id: int, index: int) -> bool:
        if not self._log.min_offset <= offset < self._log.end:
            return False
        head = self._log.read(offset, HEAD.size)
        if len(head) < HEAD.size:
            return False
        says, _, _, queue, _, at, physical, _, _ = HEAD.unpack(head)
        return (says, queue, at, physical) == (size, queue_id, index, offset)
