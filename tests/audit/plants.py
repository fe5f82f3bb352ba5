"""Faults planted into one store (or ledger) of three equal ones, and what an audit must say about each."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from audit.engines.local import LocalEngine
from audit.reading.storage import parse_stores
from audit.run import Report, audit
from audit.tables import Engine
from tests.audit.stores import LogWriter, copies, look, patch, record, write_epochs

MESSAGES = 80


@dataclass(frozen=True)
class Plant:
    """``expected``: (kind, severity, replica) of every finding that is not a consequence."""

    name: str
    do: Callable[[list[Path], LogWriter], None]
    expected: frozenset[tuple[str, str, str]]


def make(root: Path, replicas: int = 3) -> tuple[list[Path], LogWriter, Path]:
    """Equal replicas of 80 acknowledged messages in three segments, and their ledger."""
    writer = LogWriter(root / "origin")
    writer.fill(MESSAGES)
    writer.confirm(epochs=[(1, 0), (3, int(str(writer.rows[20]["phys_offset"])))])
    ledger = root / "acked.jsonl"
    ledger.write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    return copies(writer.root, replicas), writer, ledger


def make_queued(root: Path, replicas: int = 3) -> tuple[list[Path], Path]:
    """The same with tags, and with queues in files of ten entries."""
    writer = LogWriter(root / "origin")
    for n in range(MESSAGES):
        writer.add(f"m-{n}".encode() * 5, key=f"m{n}", queue_id=n % 2, stamp=1000 + n, tags=f"tag{n % 3}")
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    return copies(writer.root, replicas), ledger_at(root, writer.rows)


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _nothing(stores: list[Path], writer: LogWriter) -> None:
    """Fillers behind blanks and behind the end may differ."""
    (stores[0] / "commitlog" / f"{4096 * 9:020d}").write_bytes(bytes(4096))
    left = 4096 - writer.end % 4096
    patch(stores[1], writer.end, bytes([7]) * left)


def _flipped_bit(stores: list[Path], writer: LogWriter) -> None:
    at = _at(writer, 12) + 88
    patch(stores[1], at, bytes([look(stores[1], at, 1)[0] ^ 4]))


def _flipped_property(stores: list[Path], writer: LogWriter) -> None:
    at = _at(writer, 12)
    size = struct.unpack(">i", look(stores[2], at, 4))[0]
    patch(stores[2], at + size - 2, b"#")


def _flipped_magic(stores: list[Path], writer: LogWriter) -> None:
    patch(stores[2], _at(writer, 30) + 4, b"\0")


def _flipped_physical_offset(stores: list[Path], writer: LogWriter) -> None:
    patch(stores[2], _at(writer, 30) + 28, b"\x11")


def _cut_tail(stores: list[Path], writer: LogWriter) -> None:
    at = _at(writer, 75)
    patch(stores[2], at, bytes(4096 - at % 4096))


def _divergent_suffix(stores: list[Path], writer: LogWriter) -> None:
    _other_history(stores[1], writer, b"longer bodies than the others have")


def _divergent_suffix_of_equal_sizes(stores: list[Path], writer: LogWriter) -> None:
    _other_history(stores[1], writer, b"o-99" * 5)


def _other_history(store: Path, writer: LogWriter, body: bytes) -> None:
    first = MESSAGES - 6
    at = _at(writer, first)
    patch(store, at, bytes(4096 - at % 4096))
    for n in range(first, MESSAGES):
        place = int(str(writer.rows[n]["queue_offset"]))
        own = record(at, place, body, key=f"n{n}", queue_id=n % 2, stamp=9000)
        patch(store, at, own)
        at += len(own)


def _missing_segment(stores: list[Path], writer: LogWriter) -> None:
    (stores[0] / "commitlog" / f"{4096:020d}").unlink()


def _duplicate(stores: list[Path], writer: LogWriter) -> None:
    """The message of place 10 once more at the end, on all replicas: a sender that tried again."""
    body = b"m-10" * 5
    for store in stores:
        patch(store, writer.end, record(writer.end, 40, body, key="m10", queue_id=0, stamp=2000))


def _same_place_twice(stores: list[Path], writer: LogWriter) -> None:
    for store in stores:
        patch(store, writer.end, record(writer.end, 5, b"new", key="new", queue_id=0, stamp=2000))


def _removed_message(stores: list[Path], writer: LogWriter) -> None:
    """Acknowledged, and on no replica: its bytes hold another message."""
    at = _at(writer, 40)
    size = struct.unpack(">i", look(stores[0], at, 4))[0]
    raw = record(at, 0, b"y" * (size - 91 - 1 - len("UNIQ_KEY\x01stranger\x02")), key="stranger", topic="X")
    for store in stores:
        patch(store, at, raw)


def _swapped(stores: list[Path], writer: LogWriter) -> None:
    """Two messages of one queue changed places on every replica."""
    a, b = _at(writer, 10), _at(writer, 12)
    one = record(a, 5, b"m-12" * 5, key="m12", stamp=1010)
    two = record(b, 6, b"m-10" * 5, key="m10", stamp=1012)
    for store in stores:
        patch(store, a, one)
        patch(store, b, two)


def _other_epoch(stores: list[Path], writer: LogWriter) -> None:
    write_epochs(stores[2], [(1, 0), (2, _at(writer, 10)), (3, _at(writer, 20))])


def _broken_epoch_file(stores: list[Path], writer: LogWriter) -> None:
    path = stores[0] / "epochFileCheckpoint"
    path.write_text(path.read_text().replace("3-", "4-"))


def _extra_tail(stores: list[Path], writer: LogWriter) -> None:
    patch(stores[0], writer.end, record(writer.end, 40, b"unseen", key="unseen", queue_id=0, stamp=3000))


def _same_body_damage_everywhere(stores: list[Path], writer: LogWriter) -> None:
    for store in stores:
        patch(store, _at(writer, 5) + 90, b"?")


def _lost_in_two_ways(stores: list[Path], writer: LogWriter) -> None:
    """No replica has it right: one altered it, the others lack it."""
    at = _at(writer, 5)
    patch(stores[0], at + 90, b"?")
    for store in stores[1:]:
        patch(store, at, bytes(struct.unpack(">i", look(store, at, 4))[0]))


def _p(name: str, do: Callable[[list[Path], LogWriter], None], *expected: tuple[str, str, str]) -> Plant:
    return Plant(name, do, frozenset(expected))


PLANTS = [
    _p("nothing", _nothing),
    _p("flipped bit", _flipped_bit, ("crc_mismatch", "error", "r1")),
    _p("flipped property", _flipped_property, ("bytes_differ", "error", "r2")),
    _p("flipped magic", _flipped_magic, ("unreadable_region", "error", "r2")),
    _p("flipped physical offset", _flipped_physical_offset, ("phys_offset_mismatch", "error", "r2")),
    _p("cut tail", _cut_tail, ("short_tail", "error", "r2")),
    _p("divergent suffix", _divergent_suffix, ("divergent_suffix", "error", "r1")),
    _p(
        "divergent suffix of equal sizes",
        _divergent_suffix_of_equal_sizes,
        ("divergent_suffix", "error", "r1"),
    ),
    _p("missing segment", _missing_segment, ("missing_segment", "error", "r0")),
    _p("duplicate", _duplicate, ("dup_message", "warn", "*")),
    _p("same place twice", _same_place_twice, ("dup_queue_offset", "error", "*")),
    _p("removed message", _removed_message, ("acked_missing", "error", "*")),
    _p("swapped", _swapped, ("acked_out_of_order", "error", "*")),
    _p("other epoch", _other_epoch, ("epoch_mismatch", "error", "r2")),
    _p("broken epoch file", _broken_epoch_file, ("epoch_file_corrupt", "warn", "r0")),
    _p("extra tail", _extra_tail, ("extra_tail", "warn", "r0")),
    _p(
        "same damage everywhere",
        _same_body_damage_everywhere,
        ("crc_mismatch", "error", "r0"),
        ("crc_mismatch", "error", "r1"),
        ("crc_mismatch", "error", "r2"),
    ),
    _p(
        "lost in two ways",
        _lost_in_two_ways,
        ("crc_mismatch", "error", "r0"),
        ("unreadable_region", "error", "r1"),
        ("unreadable_region", "error", "r2"),
    ),
]


def ledger_at(root: Path, rows: list[dict[str, object]]) -> Path:
    path = root / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def topic_created_again(root: Path, count: int, *, entered: bool = True) -> tuple[list[Path], Path]:
    """Ten messages, then ``count`` of a topic of the same name, whose queue begins at 0; all acknowledged.

    The queue's files know those only, as the old ones went with the topic; unless ``entered``, nothing does.
    """
    writer = LogWriter(root / "origin")
    writer.fill(10, queues=1)
    before = writer.rows
    writer.forget()
    writer.rows = []
    writer.fill(count, mark="n", queues=1, stamp=3000)
    if entered:
        writer.write_queues()
    writer.rows = before + writer.rows
    writer.confirm(epochs=[(1, 0)])
    return copies(writer.root), ledger_at(root, writer.rows)


def delayed_across_retention(root: Path, removed: tuple[int, ...]) -> tuple[list[Path], Path]:
    """A delayed message waits in the first segment and is delivered in the second; the first is ``removed``.

    Its sender was told the place where it waits. The first replica's log has one message more.
    """
    writer = LogWriter(root / "origin")
    writer.add(b"late", key="late", topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
    while writer.end < 4096:
        writer.add(b"z" * 50, key=f"z{writer.end}", queue_id=2)
    writer.add(b"late", key="late", queue_id=2)
    rows = [{**writer.rows[0], "topic": "T"}, *writer.rows[1:-1]]
    writer.add(b"next", queue_id=2)
    rows.append(writer.rows[-1])
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root)
    writer.add(b"more", queue_id=2)
    base = writer.end // 4096 * 4096
    newest = f"commitlog/{base:020d}"
    (stores[0] / newest).write_bytes((writer.root / newest).read_bytes())
    for store in stores:
        (store / "abort").touch()
    for n in removed:
        (stores[n] / "commitlog" / f"{0:020d}").unlink()
    return stores, ledger_at(root, rows)


def misplaced_across_retention(root: Path, *, back: bool = True) -> tuple[list[Path], LogWriter, Path]:
    """The first two logs begin behind their first segments. In the third one the bytes of the messages 20 and
    40, of two segments, changed places; not ``back``: 40 stands over 20, and 40 still where it stood."""
    stores, writer, ledger = make(root)
    for store in stores:
        (store / "abort").touch()
    for store in stores[:2]:
        (store / "commitlog" / f"{0:020d}").unlink()
    (size,) = struct.unpack(">i", look(writer.root, _at(writer, 20), 4))
    one, two = (look(writer.root, _at(writer, n), size) for n in (20, 40))
    patch(stores[2], _at(writer, 20), two)
    if back:
        patch(stores[2], _at(writer, 40), one)
    return stores, writer, ledger


def delayed(root: Path, delays_ms: list[int]) -> Path:
    """A store with delayed messages of one level, whose queue's entries are due after ``delays_ms``."""
    writer = LogWriter(root)
    for n, delay_ms in enumerate(delays_ms):
        stamp = 1_700_000_000_000 + 37 * n
        writer.add(
            b"late", key=f"k{n}", topic="SCHEDULE_TOPIC_XXXX", queue_id=2, stamp=stamp, more="DELAY\x013\x02"
        )
        writer.rows[-1]["tags_code"] = stamp + delay_ms
    writer.write_queues()
    writer.confirm(epochs=[(1, 0)])
    return root


def run_local(stores: list[Path], ledger: Path | None, state: Path | None = None) -> Report:
    engine = LocalEngine()
    try:
        return run_with(engine, stores, ledger, state)
    finally:
        engine.close()


def run_with(engine: Engine, stores: list[Path], ledger: Path | None, state: Path | None = None) -> Report:
    """``state``: what an incremental audit trusts, and leaves for the next one."""
    specs = parse_stores([str(s) for s in stores])
    return audit(specs, engine, ledger_path=str(ledger) if ledger else None, state=state)


def run_spark(engine: object, stores: list[Path], ledger: Path | None) -> Report:
    """As run_with, by the session that all tests share."""
    from audit.engines.spark import SparkEngine

    assert isinstance(engine, SparkEngine)
    return run_with(engine, stores, ledger)
