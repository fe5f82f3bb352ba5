"""Decoders of a store's files and of a Controller's: their bytes may be anybody's after a disk has rotted."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, cast

from audit.reading.records import record as audit_record
from audit.reading.small import epoch_lines
from broker.requests.batch import inner_messages
from broker.tables import change_file
from controller.raft.disk.journal import Journal
from model import message as m
from model.errors import DiskError, Refused
from model.ids import PhysicalOffset, QueueOffset
from model.message import encode_host
from store.files import damage, epoch_file, record
from store.files.checkpoint import Checkpoint
from store.files.compiled import compiled
from store.files.consume_queue import ENTRY, ConsumeQueue
from store.files.index_file import Header, IndexFile
from store.files.sealed import seal, unseal
from store.flow.dispatching.multi_dispatch import places
from tests.broker.helpers import batch_body
from tests.fuzz.targets import golden
from tests.fuzz.targets.target import Target, disk_with, pieces, stable

HOST: Final = encode_host("127.0.0.1:10911")
PARSER: Final = record.DispatchParser([0, 1000, 5000])
_MODULE: Final = compiled()
PARSERS: Final = [_MODULE.Parser(record.Dispatch, m.SCHEDULE_TOPIC)] if _MODULE is not None else []


def message(body: bytes = b"hello", topic: str = "T", properties: str = "KEYS\x01k\x02") -> record.NewMessage:
    return record.NewMessage(topic, 1, 0, 0, 1_700_000_000_000, HOST, HOST, 0, 0, body, properties)


def _record(data: bytes) -> None:
    """As it came, and with its body's checksum made right."""
    for raw in (data, _right_crc(data)):
        _measured(raw)
        try:
            found = record.decode(raw)
        except record.BadRecord:
            continue
        again = record.encode(
            found.message(),
            found.queue_offset,
            found.physical_offset,
            found.store_timestamp_ms,
            version=found.version,
        )
        assert record.decode(again) == found, "another record after it is written again"


def _measured(raw: bytes) -> None:
    """All ways to walk over records agree where they end."""
    for prop_crc in (False, True):
        try:
            record.whole(raw, 0, 0, prop_crc=prop_crc)
        except record.BadRecord:
            pass
    try:
        size = record.measure(raw, 0, 0)
    except record.BadRecord:
        return
    if size > 0:
        record.is_torn(raw[:size], 0)
        found = PARSER.one(raw, 0, size)
        assert found == PARSER.dispatch_of(record.decode(raw)), "two ways to what the queues need"
        first, end = PARSER.parse(raw[:size], 0, size)
        assert (first, end) == ([found], size), "the quick way reads another record"


class _Queue:
    """What entries are put into: it goes on at ``max_offset``."""

    def __init__(self, max_offset: int) -> None:
        self.buffer, self.max_offset, self.max_physical = bytearray(), max_offset, 0


def _compiled(data: bytes) -> None:
    """The compiled parser, where it is built, finds the records that Python's finds."""
    block, end = PARSERS[0].parse(data, 0, len(data)) if PARSERS else (None, len(data))
    if block is None:
        return
    assert 0 <= end <= len(data)
    assert (list(block), end) == PARSER.parse(data[:end], 0, len(data)), "the two parsers disagree"
    block.advance({})
    queues: dict[tuple[str, int], _Queue] = {}
    for item in block:
        queues.setdefault((item.topic, item.queue_id), _Queue(item.queue_offset))
    block.enter(0, len(block), queues, {}, [], 1)


def _log_seeds() -> Iterable[bytes]:
    out = b""
    for number in range(5):
        out += record.encode(message(b"x" * number, properties=f"TAGS\x01t{number}\x02"), number, len(out), 5)
    yield out
    yield out + record.blank(100)
    yield from _record_seeds()


def _right_crc(data: bytes) -> bytes:
    try:
        size = record.measure(data, 0, 0, check_crc=False)
    except record.BadRecord:
        return data
    if size <= 0:
        return data
    body_at = {0: 84, 1: 96, 2: 96, 3: 108}[data[39] >> 4 & 3]
    (body_bytes,) = struct.unpack_from(">i", data, body_at)
    crc = zlib.crc32(data[body_at + 4 : body_at + 4 + body_bytes]) & 0x7FFFFFFF
    return data[:8] + struct.pack(">i", crc) + data[12:]


def real_records(store: str, count: int) -> Iterable[bytes]:
    for raw in golden.store_files(store, "commitlog/", 8192):
        at = 0
        for found in islice(record.walk(raw, int.from_bytes(raw[28:36])), count):
            yield raw[at : at + found.size]
            at += found.size


def _record_seeds() -> Iterable[bytes]:
    yield record.encode(message(), 0, 0, 5)
    yield record.encode(message(b"", "t" * 200), 0, 0, 5)
    yield record.encode(
        message(properties="INNER_MULTI_DISPATCH\x01%LMQ%a\x02"), 3, 0, 5, append_prop_crc=True
    )
    yield record.blank(100)
    yield from real_records("plain-11", 3)
    yield from real_records("delay-31", 3)


def _audit(data: bytes) -> None:
    """The auditor's own decoder takes what ours takes, and nothing breaks it."""
    parsed = audit_record.parse(data, 0, 0, 1 << 20)
    try:
        size = record.measure(data, 0, 0)
    except record.BadRecord:
        return
    if size > 0:
        assert parsed.record is not None, f"the auditor does not know this record: {parsed}"


def _batch(data: bytes) -> None:
    size = sum(len(body) + len(text.encode()) for _, body, text in inner_messages(data, 100))
    assert size <= len(data), "more came out than went in"


def _epochs(data: bytes) -> None:
    epoch_lines.parse_epochs(data)
    stable(epoch_file.decode(data), epoch_file.encode, epoch_file.decode)


def _epoch_seeds() -> Iterable[bytes]:
    entries = [
        epoch_file.EpochEntry(cast(Any, 1), cast(Any, 0)),
        epoch_file.EpochEntry(cast(Any, 4), cast(Any, 900)),
    ]
    yield epoch_file.encode(entries)
    yield epoch_file.encode([])
    yield from golden.store_files("ha-81", "epochFileCheckpoint")


def _checkpoint(data: bytes) -> None:
    found = Checkpoint.decode(data)
    again = Checkpoint.decode(found.encode())
    assert again.encode() == found.encode()
    assert not found.trusted or again == found


QUEUE_BYTES: Final = 20 * 16


def _queue(data: bytes) -> None:
    """A queue of small files; the first byte says how much of the log is settled."""
    settled = data[0] * 16 if data else 0
    content = data[1:]
    disk = disk_with("/q/T/0/00000000000000000000", b"")
    for number, part in enumerate(pieces(content, QUEUE_BYTES)[:3]):
        file = disk.open(f"/q/T/0/{number * QUEUE_BYTES:020d}", create=True)
        file.pwrite(part, 0)
    queue = ConsumeQueue(disk, "/q/T/0", "T", 0, QUEUE_BYTES)
    queue.load(settled)
    assert 0 <= queue.min_offset <= queue.max_offset <= len(content) // 20 + 16
    before = 0
    for _, offset, size, _ in queue.entries():
        if size != 0x7FFFFFFF and not settled:  # what is settled is believed
            assert size > 0, "an entry that cannot be one was kept"
            assert offset >= before, "the queue goes back in the log"
            before = offset + size
    if queue.max_physical < 1 << 62:
        assert queue.put(queue.max_offset, queue.max_physical, 100, 7)


def _queue_seeds() -> Iterable[bytes]:
    entries = b"".join(ENTRY.pack(n * 100, 100, n) for n in range(20))
    yield b"\x10" + entries
    yield b"\0" + ENTRY.pack(0, 0x7FFFFFFF, 0) * 3 + entries[:60]
    for raw in golden.store_files("plain-11", "consumequeue/", 400):
        yield b"\0" + raw


def _light_queues(data: bytes) -> None:
    """The queues a record names besides its own."""
    text = data.decode("utf-8", "surrogateescape")
    for name, offset in places("T", text):
        assert name in text
        assert 0 <= offset < 10**18


SLOTS: Final = 8
ENTRIES: Final = 20
INDEX_BYTES: Final = 40 + 4 * SLOTS + 20 * ENTRIES


def _index(data: bytes) -> None:
    disk = disk_with("/i/20261122000000000", data[:INDEX_BYTES].ljust(INDEX_BYTES, b"\0"))
    index = IndexFile(disk, "/i/20261122000000000", SLOTS, ENTRIES)
    index.load()
    for key in range(3):
        found = sum(1 for _ in index.find(key, 0, 1 << 50))
        assert found <= ENTRIES, "a chain without an end"
    index.truncate(1000)
    if not index.is_full:
        index.add([(5, cast(Any, 2000), index.head.end_timestamp_ms)])


def _index_seeds() -> Iterable[bytes]:
    head = Header(1_700_000_000_000, 1_700_000_001_000, cast(Any, 0), cast(Any, 300), 2, 4).encode()
    slots = struct.pack(">8i", 0, 3, 2, 0, 0, 0, 0, 0)
    entries = bytes(20) + b"".join(
        struct.pack(">iqii", n % 2 + 1, n * 100, n, max(0, n - 2)) for n in (1, 2, 3)
    )
    yield head + slots + entries
    yield bytes(40)


def _ranges(data: bytes) -> None:
    """As it came, and under a checksum that is right."""
    for content in (data, b'{"crc":%d,"ranges":%b}\n' % (zlib.crc32(data), data)):
        found = damage.load_ranges(disk_with("/s/damagedRanges", content), "/s/damagedRanges")
        for item in found:
            assert damage.encode_ranges([item])


def _range_seeds() -> Iterable[bytes]:
    lost = damage.Lost(PhysicalOffset(100), 100, "T", 0, QueueOffset(5), 0)
    item = damage.DamagedRange(PhysicalOffset(100), PhysicalOffset(200), "crc_mismatch", 5, (lost,))
    whole = damage.encode_ranges([item])
    yield whole
    yield whole[whole.index(b"[") : -2]


def _sealed(data: bytes) -> None:
    content = unseal(data)
    if content != data:
        assert unseal(content) == content


def _changes(data: bytes) -> None:
    changes, last, end = change_file.read(data, 1)
    assert 0 <= end <= len(data)
    assert len(changes) <= data.count(b"\n")
    assert last >= 1


def _change(data: bytes) -> None:
    """One line, its checksum made right: the content is what is fuzzed."""
    content = b" " + data
    number, change = change_file.decode(b"%08x%b" % (zlib.crc32(content), content))
    try:
        line = change_file.encode(number, change)
    except (TypeError, ValueError):
        return  # a number that is read and not written
    assert change_file.decode(line.rstrip(b"\n"))[0] == number


def _change_seeds() -> Iterable[bytes]:
    yield change_file.encode(2, {"part": ["T"]})[9:-1]


def _journal(data: bytes) -> None:
    """As it came, and as the body of a batch whose head is right."""
    for content in (data, b"KMQRJNL1" + _journal_batch(1, data), _journal_start() + _journal_batch(2, data)):
        disk = disk_with("/raft/journal", content)
        try:
            journal = Journal(disk, "/raft/journal", "n0")
        except DiskError:
            continue
        entries = list(journal[0 : len(journal)])
        state = (journal.getCurrentTerm(), journal.getVotedForNodeId(), journal.admitted)
        journal.close()
        again = Journal(disk, "/raft/journal", "n0")
        assert list(again[0 : len(again)]) == entries
        assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.admitted) == state
        again.close()


def _journal_batch(number: int, body: bytes) -> bytes:
    rest = struct.pack(">QI", number, len(body))
    return b"KRB1" + struct.pack(">I", zlib.crc32(body, zlib.crc32(rest))) + rest + body


def _journal_start() -> bytes:
    disk = disk_with("/raft/x", b"")
    Journal(disk, "/raft/journal", "n0").close()
    return bytes(disk.nodes["/raft/journal"].cache)


def _journal_seeds() -> Iterable[bytes]:
    disk = disk_with("/raft/x", b"")
    journal = Journal(disk, "/raft/journal", "n0")
    journal.add(b"command", 1, 1)
    journal.add(b"other", 2, 1)
    journal.sync()
    journal.setCurrentTerm(2, "n1")
    journal.admit()
    journal.close()
    whole = bytes(disk.nodes["/raft/journal"].cache)
    yield whole
    for part in whole.split(b"KRB1")[1:]:
        yield part[16:]


for _name in ("store.files.damage", "controller.raft.disk.journal", "store.files.consume_queue"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

TARGETS: Final = (
    Target(name="record", run=_record, declared=(Refused,), seeds=_record_seeds, weight=6),
    Target(
        name="compiled_records",
        run=_compiled,
        declared=(record.BadRecord,),
        seeds=_log_seeds,
        weight=4,
        bytes_max=2000,
    ),
    Target(name="audit_record", run=_audit, declared=(), seeds=_record_seeds, weight=6),
    Target(
        name="batch",
        run=_batch,
        declared=(Refused,),
        seeds=lambda: [batch_body([(b"one", "TAGS\x01a\x02", 0), (b"", "", 3)]), b""],
        weight=8,
    ),
    Target(name="epoch_file", run=_epochs, declared=(DiskError,), seeds=_epoch_seeds, weight=8),
    Target(
        name="checkpoint",
        run=_checkpoint,
        declared=(),
        seeds=lambda: [Checkpoint(1, 2, 3).encode(), *golden.store_files("plain-11", "checkpoint", 100)],
        weight=10,
        bytes_max=120,
    ),
    Target(name="consume_queue", run=_queue, declared=(DiskError,), seeds=_queue_seeds, weight=2),
    Target(
        name="light_queues",
        run=_light_queues,
        declared=(),
        seeds=lambda: [b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x011,2\x02"],
        weight=8,
    ),
    Target(name="index_file", run=_index, declared=(DiskError,), seeds=_index_seeds, weight=2, bytes_max=600),
    Target(name="damaged_ranges", run=_ranges, declared=(), seeds=_range_seeds, weight=3),
    Target(
        name="sealed_table",
        run=_sealed,
        declared=(DiskError,),
        seeds=lambda: [seal(b'{"dataVersion":{"counter":1},"topicConfigTable":{}}'), b"{}"],
        weight=4,
    ),
    Target(
        name="change_file",
        run=_changes,
        declared=(DiskError,),
        seeds=lambda: [change_file.encode(1, {"a": 1}) + change_file.encode(2, {"part": ["T"]})],
        weight=4,
    ),
    Target(name="change", run=_change, declared=(DiskError,), seeds=_change_seeds, weight=4),
    Target(name="journal", run=_journal, declared=(), seeds=_journal_seeds, weight=1),
)
