"""Batch queues, extensions of queues and timers, as RocketMQ makes them of a log; a wheel of 60 slots."""

from __future__ import annotations

import struct
from pathlib import Path

from audit.reading.derived.others import SLOT
from model.message import INNER_BATCH, TIMER_TOPIC, java_hash
from tests.audit.stores import look, patch, record

BATCH_FILE = "batchconsumequeue/B/0/" + "0" * 20
EXTENSION_FILE = "consumequeue_ext/T/0/" + "0" * 20
TIMER_FILE = "timerlog/" + "0" * 20
WHEEL = "timerwheel"
SLOTS = 60
BATCHES = 5
TIMERS = 6
UNIT_BYTES, ENTRY_BYTES = 52, 46
EXTENSION_BASE = -(1 << 63)


def _write(store: Path, file: str, raw: bytes) -> None:
    path = store / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)


def add_batches(stores: list[Path], at: int) -> int:
    """Inner batches of 3 messages each at the log's end ``at``, and their queue. Returns the new end."""
    entries = b""
    for n in range(BATCHES):
        own = f"UNIQ_KEY\x01batch{n}\x02TAGS\x01x\x02INNER_NUM\x013\x02".encode()
        raw = record(at, 3 * n, b"abc", topic="B", sys_flag=INNER_BATCH, stamp=4000 + n, properties=own)
        for store in stores:
            patch(store, at, raw)
        entries += struct.pack(">qiqqqhii", at, len(raw), java_hash("x"), 4000 + n, 3 * n, 3, -1, 0)
        at += len(raw)
    for store in stores:
        _write(store, BATCH_FILE, entries + bytes(ENTRY_BYTES * 3))
    return at


def extend(store: Path) -> None:
    """The entries of queue 0 of topic T name units, which have what the entries had."""
    units = b""
    for path in sorted((store / "consumequeue" / "T" / "0").iterdir()):
        raw = bytearray(path.read_bytes())
        for place in range(0, len(raw), 20):
            offset, size, tags = struct.unpack_from(">qiq", raw, place)
            if not size:
                continue
            (stored_ms,) = struct.unpack(">q", look(store, offset + 56, 8))
            struct.pack_into(">q", raw, place + 12, EXTENSION_BASE + len(units))
            units += struct.pack(">hqqh", 24, tags, stored_ms, 4) + b"abcd"
        path.write_bytes(raw)
    _write(store, EXTENSION_FILE, units + bytes(64))


def add_timers(stores: list[Path], at: int) -> int:
    """Messages that wait, two in each slot, behind the log's end ``at``. Returns the new end."""
    units = b""
    slots: dict[int, list[int]] = {}
    for n in range(TIMERS):
        raw = record(at, n, b"later", topic=TIMER_TOPIC, key=f"later{n}", stamp=4000)
        for store in stores:
            patch(store, at, raw)
        due_s = 100 + n // 2
        of = slots.setdefault(due_s, [])
        units += struct.pack(
            ">iqiqiqiiq", UNIT_BYTES, of[-1] if of else -1, 1, 4000, due_s * 1000 - 4000, at, len(raw), 7, 0
        )
        of.append(n * UNIT_BYTES)
        at += len(raw)
    wheel = bytearray(SLOTS * SLOT.itemsize)
    for due_s, of in slots.items():
        struct.pack_into(">qqqii", wheel, due_s % SLOTS * SLOT.itemsize, due_s, of[0], of[-1], len(of), 0)
    for store in stores:
        _write(store, TIMER_FILE, units + bytes(UNIT_BYTES * 4))
        _write(store, WHEEL, bytes(wheel))
    return at
