"""What is done to a group, and which findings must, and which others may, be told of it."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from typing import NamedTuple

from store.files.damage import DamagedRange, encode_ranges
from tests.audit.derived_files import (
    BATCH_FILE,
    BATCHES,
    ENTRY_BYTES,
    EXTENSION_FILE,
    SLOTS,
    TIMER_FILE,
    TIMERS,
    UNIT_BYTES,
    WHEEL,
    add_batches,
    add_timers,
    extend,
)
from tests.audit.recall.group import PER_FILE, QUEUES, Group, body
from tests.audit.stores import enter, patch, record, write_checkpoint, write_epochs


class Damage(NamedTuple):
    """``kinds``: one of them must be named, at the damaged replica or, if ``everywhere``, at any; no others
    may be, unless they follow from it. ``also``: kinds that may stand beside it."""

    do: Callable[[Group], None]
    kinds: frozenset[str]
    everywhere: bool = False
    also: frozenset[str] = frozenset()


DAMAGES: dict[str, Damage] = {}


def damage(
    *kinds: str, everywhere: bool = False, also: tuple[str, ...] = ()
) -> Callable[[Callable[[Group], None]], Callable[[Group], None]]:
    def keep(do: Callable[[Group], None]) -> Callable[[Group], None]:
        name = do.__name__.replace("_", " ").strip()
        DAMAGES[name] = Damage(do, frozenset(kinds), everywhere, frozenset(also))
        return do

    return keep


@damage("crc_mismatch")
def body_bit(g: Group) -> None:
    g.flip(g.offset(g.n) + 88 + g.chance.randrange(len(body(0))))


@damage("crc_mismatch")
def crc_field(g: Group) -> None:
    g.flip(g.offset(g.n) + 9 + g.chance.randrange(3))


@damage("bytes_differ")
def born_time(g: Group) -> None:
    g.flip(g.offset(g.n) + 40 + g.chance.randrange(8))


@damage("bytes_differ")
def store_time(g: Group) -> None:
    g.flip(g.offset(g.n) + 56 + g.chance.randrange(8))


@damage("bytes_differ")
def flag(g: Group) -> None:
    g.flip(g.offset(g.n) + 16 + g.chance.randrange(4))


@damage("bytes_differ")
def property_value(g: Group) -> None:
    g.patch(g.offset(g.n) + g.size(g.n) - 2, b"#")


@damage("bytes_differ")
def property_name(g: Group) -> None:
    g.patch(g.offset(g.n) + g.size(g.n) - 9, b"#")


@damage("bytes_differ")
def topic_name(g: Group) -> None:
    g.patch(g.offset(g.n) + 88 + len(body(0)) + 1, b"U")


@damage("bytes_differ")
def queue_id(g: Group) -> None:
    g.patch(g.offset(g.n) + 15, b"\x07")


@damage("bytes_differ")
def queue_offset(g: Group) -> None:
    g.flip(g.offset(g.n) + 20 + g.chance.randrange(8))


@damage("bytes_differ")
def another_body_with_a_right_crc(g: Group) -> None:
    g.rewrite(g.n, [g.store], body=body(g.n)[::-1])


@damage("unreadable_region")
def magic(g: Group) -> None:
    g.patch(g.offset(g.n) + 4, b"\0")


@damage("unreadable_region")
def total_size(g: Group) -> None:
    g.patch(g.offset(g.n), b"\x7f")


@damage("unreadable_region")
def body_length(g: Group) -> None:
    g.patch(g.offset(g.n) + 84, b"\x7f")


@damage("unreadable_region")
def properties_not_written_to_their_end(g: Group) -> None:
    size = g.chance.randrange(8, 13)
    g.patch(g.offset(g.n) + g.size(g.n) - size, bytes(size))


@damage("phys_offset_mismatch")
def physical_offset(g: Group) -> None:
    g.flip(g.offset(g.n) + 28 + g.chance.randrange(8))


@damage("unreadable_region")
def one_record_zeroed(g: Group) -> None:
    g.patch(g.offset(g.n), bytes(g.size(g.n)))


@damage("unreadable_region")
def some_records_zeroed(g: Group) -> None:
    for k in range(g.n, g.n + 3):
        g.patch(g.offset(k), bytes(g.size(k)))


@damage("bytes_differ", "unreadable_region", "crc_mismatch", "phys_offset_mismatch")
def a_record_over_its_neighbour(g: Group) -> None:
    raw = record(g.offset(g.n), g.n // 2, body(g.n), key=f"m{g.n:03d}", queue_id=g.n % 2)
    g.patch(g.offset(g.n) + 40, raw)


@damage("missing_segment")
def a_middle_segment_removed(g: Group) -> None:
    g.remove(g.segments()[g.segment])


@damage("short_tail")
def the_last_segment_removed(g: Group) -> None:
    g.remove(g.segments()[-1])


@damage("short_tail")
def the_log_emptied(g: Group) -> None:
    for segment in g.segments():
        g.remove(segment)


@damage("short_tail")
def the_end_zeroed(g: Group) -> None:
    at = g.offset(g.messages - 1 - g.chance.randrange(3))
    g.patch(at, bytes(4096 - at % 4096))


@damage("missing_segment", "unreadable_region", "short_tail", "file_unreadable")
def a_segment_cut(g: Group) -> None:
    segment = g.segments()[g.segment - g.chance.randrange(2)]
    raw = segment.read_bytes()[: 1000 + g.chance.randrange(2000)]
    g.remove(segment)
    segment.write_bytes(raw)


@damage("divergent_suffix")
def another_end(g: Group) -> None:
    for n in range(g.messages - 6, g.messages):
        g.rewrite(n, [g.store], body=body(n)[::-1], key=f"x{n:03d}", stamp=9000)


@damage("extra_tail")
def a_record_behind_the_end(g: Group) -> None:
    g.append([g.store], b"unseen", g.next_place, "unseen")


@damage("epoch_mismatch")
def an_epoch_of_another_number(g: Group) -> None:
    write_epochs(g.store, [g.epochs[0], (2, g.epochs[1][1]), g.epochs[2]])


@damage("epoch_mismatch")
def an_epoch_that_begins_elsewhere(g: Group) -> None:
    write_epochs(g.store, [g.epochs[0], (3, g.epochs[1][1] + 100 + g.chance.randrange(500)), g.epochs[2]])


@damage("epoch_mismatch")
def an_epoch_line_removed(g: Group) -> None:
    write_epochs(g.store, [g.epochs[0], g.epochs[2]])


@damage("epoch_file_corrupt")
def epoch_file_changed(g: Group) -> None:
    path = g.store / "epochFileCheckpoint"
    path.write_text(path.read_text().replace("3-", "5-"))


@damage("dup_message", everywhere=True)
def a_message_stored_again(g: Group) -> None:
    g.append(g.stores, body(g.n), g.next_place, f"m{g.n:03d}")


@damage("dup_queue_offset", everywhere=True)
def a_place_taken_again(g: Group) -> None:
    g.append(g.stores, b"new", g.n // 2, "taken")


@damage("queue_gap", everywhere=True)
def places_skipped(g: Group) -> None:
    g.append(g.stores, b"new", g.next_place + 1 + g.chance.randrange(5), "later")


@damage("queue_order", "acked_out_of_order", everywhere=True, also=("acked_mismatch", "cq_wrong"))
def neighbours_swapped(g: Group) -> None:
    n = g.n
    for here, there in ((n, n + 2), (n + 2, n)):
        g.rewrite(here, g.stores, place=there // 2, body=body(there), key=f"m{there:03d}")


@damage("acked_missing", everywhere=True)
def a_message_that_is_another(g: Group) -> None:
    g.rewrite(g.n, g.stores, key="lost")


@damage("acked_mismatch", everywhere=True)
def another_body_everywhere(g: Group) -> None:
    g.rewrite(g.n, g.stores, body=body(g.n)[::-1])


@damage("acked_missing", everywhere=True)
def an_acknowledgement_of_no_message(g: Group) -> None:
    g.touched.keys.add("never")
    g.rows.append({**g.rows[g.n], "uniq_key": "never", "phys_offset": None, "queue_offset": 4711})
    g.write_ledger()


@damage("cq_wrong")
def offset_of_an_entry(g: Group) -> None:
    at, size, tags = g.entry(g.n)
    g.set_entry(g.n, struct.pack(">qiq", at ^ 1 << g.chance.randrange(20), size, tags))


@damage("cq_wrong")
def size_of_an_entry(g: Group) -> None:
    at, size, tags = g.entry(g.n)
    g.set_entry(g.n, struct.pack(">qiq", at, size ^ 1 << g.chance.randrange(8), tags))


@damage("cq_wrong")
def tag_of_an_entry(g: Group) -> None:
    at, size, tags = g.entry(g.n)
    g.set_entry(g.n, struct.pack(">qiq", at, size, tags ^ 1 << g.chance.randrange(31)))


@damage("cq_wrong")
def entry_of_another_message(g: Group) -> None:
    g.set_entry(g.n, struct.pack(">qiq", *g.entry(g.n + 2)))


@damage("cq_missing")
def an_entry_zeroed(g: Group) -> None:
    g.set_entry(g.n, bytes(20))


@damage("cq_missing")
def a_file_of_entries_removed(g: Group) -> None:
    path = g.chance.choice(sorted((g.store / "consumequeue" / "T" / "0").iterdir()))
    first = int(path.name) // 20
    g.touched.places |= {(0, place) for place in range(first, first + PER_FILE)}
    path.unlink()


@damage("cq_missing")
def a_queue_removed(g: Group) -> None:
    queue_id = g.chance.randrange(QUEUES)
    g.touched.places |= {(queue_id, place) for place in range(g.messages)}
    shutil.rmtree(g.store / "consumequeue" / "T" / str(queue_id))


@damage("cq_missing")
def all_queues_removed(g: Group) -> None:
    shutil.rmtree(g.store / "consumequeue")


@damage("cq_dangling")
def an_entry_of_no_place(g: Group) -> None:
    entry = struct.pack(">qiq", *g.entry(3))
    g.set_entry(g.messages + 2 * g.chance.randrange(3), entry)


@damage("cq_wrong")
def a_file_of_entries_grown(g: Group) -> None:
    path = g.chance.choice(sorted((g.store / "consumequeue" / "T" / "1").iterdir()))
    g.touched.files.add(f"consumequeue/T/1/{path.name}")
    path.write_bytes(path.read_bytes() + bytes(20))


@damage("consumer_offset_beyond")
def a_consumer_beyond_the_end(g: Group) -> None:
    g.file("config/consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:3,1:4711}}}')


@damage("file_corrupt")
def a_table_cut(g: Group) -> None:
    path = g.file("config/topics.json")
    path.write_bytes(path.read_bytes()[: -1 - g.chance.randrange(20)])


@damage("file_missing")
def a_table_removed(g: Group) -> None:
    g.file("config/consumerOffset.json").unlink()


@damage("file_corrupt")
def a_change_beside_a_table(g: Group) -> None:
    for store in g.stores:
        g.write_changes(store)
    path = g.file("config/consumerOffset.json.changes")
    raw = bytearray(path.read_bytes())
    raw[g.chance.randrange(len(raw))] ^= 1 << g.chance.randrange(7)
    path.write_bytes(raw)


@damage("file_corrupt")
def a_note_of_known_damage(g: Group) -> None:
    raw = bytearray(encode_ranges([DamagedRange(100, 300, "crc_mismatch", 17)]))
    raw[g.chance.randrange(len(raw))] ^= 1 << g.chance.randrange(7)
    g.file("damagedRanges").write_bytes(raw)


def _derived(g: Group) -> None:
    if g.derived:
        return
    g.derived = True
    for store in g.stores:
        extend(store)
    g.writer.end = add_timers(g.stores, add_batches(g.stores, g.writer.end))
    for store in g.stores:
        write_checkpoint(store, g.writer.end)


@damage("cq_wrong", "cq_missing", "cq_dangling")
def an_entry_of_a_batch_queue(g: Group) -> None:
    _derived(g)
    at = ENTRY_BYTES * g.chance.randrange(BATCHES)
    g.flip_in(BATCH_FILE, range(at, at + 38))


@damage("cq_wrong")
def a_unit_of_an_extension(g: Group) -> None:
    _derived(g)
    at = 24 * g.chance.randrange(g.messages // QUEUES)
    g.flip_in(EXTENSION_FILE, range(at, at + 20))


@damage("timer_wrong")
def a_timers_record(g: Group) -> None:
    _derived(g)
    at = UNIT_BYTES * g.chance.randrange(TIMERS) + 28
    g.flip_in(TIMER_FILE, range(at, at + 12))


@damage("timer_wrong")
def a_slot_of_the_timer_wheel(g: Group) -> None:
    _derived(g)
    g.flip_in(WHEEL, range(100 % SLOTS * 32, 100 % SLOTS * 32 + 24))


BENIGN: dict[str, Callable[[Group], None]] = {}


def benign(do: Callable[[Group], None]) -> Callable[[Group], None]:
    BENIGN[do.__name__.replace("_", " ")] = do
    return do


@benign
def nothing(_: Group) -> None:
    """Equal stores."""


@benign
def bytes_behind_the_end(g: Group) -> None:
    g.patch(g.writer.end, g.chance.randbytes(4096 - g.writer.end % 4096).replace(b"\xda", b"\0"))


@benign
def an_empty_segment_ahead(g: Group) -> None:
    base = (g.writer.end // 4096 + 1) * 4096
    (g.store / "commitlog" / f"{base:020d}").write_bytes(bytes(4096))


@benign
def retention_on_one(g: Group) -> None:
    g.segments()[0].unlink()


@benign
def lag_of_a_running_replica(g: Group) -> None:
    for store in g.stores:
        (store / "abort").touch()
        (store / "checkpoint").unlink()
    at = g.offset(g.messages - 2)
    g.patch(at, bytes(4096 - at % 4096))
    g.rows = g.rows[:-2]
    g.write_ledger()


@benign
def a_topic_that_was_created_again(g: Group) -> None:
    """A queue begins at 0 again; its files went with the topic, and know the new messages only."""
    for store in g.stores:
        shutil.rmtree(store / "consumequeue" / "T" / "0")
        at = g.writer.end
        for place in range(4):
            raw = record(at, place, b"again", key=f"a{place}", queue_id=0, stamp=3000)
            patch(store, at, raw)
            enter(store, "T", 0, place, struct.pack(">qiq", at, len(raw), 0), 10)
            at += len(raw)


@benign
def a_note_of_damage_that_was_mended(g: Group) -> None:
    (g.store / "damagedRanges").write_bytes(encode_ranges([DamagedRange(0, 300, "crc_mismatch", 17)]))


@benign
def timers_batches_and_extensions(g: Group) -> None:
    _derived(g)


@benign
def changes_of_one_table_cut_short_by_a_crash(g: Group) -> None:
    for store in g.stores:
        (store / "abort").touch()
    g.write_changes(g.store)
    path = g.store / "config" / "consumerOffset.json.changes"
    path.write_bytes(path.read_bytes()[: -1 - g.chance.randrange(20)])
