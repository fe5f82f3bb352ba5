"""The promise of what pieces of a log tell: it is what the records say, and what is proved is so."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.engines import pieces, slices, told
from tests.audit.border import PLACES, append, made
from tests.audit.engines.pieced import Pieced
from tests.audit.extremes import extreme
from tests.audit.plants import (
    PLANTS,
    delayed,
    delayed_across_retention,
    make,
    make_queued,
    run_local,
    run_with,
    topic_created_again,
)
from tests.audit.recall.together import BUNDLES, LAWFUL, planted
from tests.audit.stores import enter, queue_file, trio


@pytest.mark.parametrize("name", [*BUNDLES, *LAWFUL])
def test_pieces_say_what_the_records_say_whatever_is_damaged(name: str, tmp_path: Path) -> None:
    """Of each kind, as campaigns plant it."""
    group, _ = planted(tmp_path, (BUNDLES | LAWFUL)[name], 3, 1)
    engine = Pieced()
    report = run_with(engine, group.stores, group.ledger)
    assert report.findings == run_local(group.stores, group.ledger).findings
    assert engine.answered


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: str(plant.name))
def test_pieces_say_what_the_records_say_of_small_logs(plant: object, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    plant.do(stores, writer)  # type: ignore[attr-defined]
    engine = Pieced()
    assert run_with(engine, stores, ledger).findings == run_local(stores, ledger).findings
    assert (engine.answered > 0, engine.left) == (True, 0)


SMALL: dict[str, Callable[[Path], list[Path]]] = {
    "a topic created again": lambda root: topic_created_again(root, 5)[0],
    "expired places": lambda root: delayed_across_retention(root, (0,))[0],
    "delayed": lambda root: [delayed(root / "a", [-1, 1000, 1000, 1007, 1000, 5000])],
    "numbers at the ends": lambda root: [extreme(root)],
    "the real broker's": lambda root: trio("ha-81", "after", root),
}


@pytest.mark.parametrize("name", SMALL)
def test_pieces_say_what_the_records_say_of_lawful_logs(name: str, tmp_path: Path) -> None:
    stores, engine = SMALL[name](tmp_path), Pieced()
    assert run_with(engine, stores, None).findings == run_local(stores, None).findings
    assert engine.answered


def test_of_a_clean_store_all_is_proved(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    engine = Pieced()
    assert run_with(engine, stores, None).verdict == "clean"
    assert (engine.left, engine.proved, engine.unproved) == (0, 2 * len(stores), 0)


def test_in_pieces_of_single_places_all_is_proved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "STRETCH_PLACES", 4)
    monkeypatch.setattr("audit.reading.derived.queue_slices._WINDOW_BYTES", 60)
    monkeypatch.setattr("audit.plan.CHUNK_BYTES_MIN", 700)
    monkeypatch.setattr("audit.tables.BATCH_ROWS", 3)
    monkeypatch.setattr(pieces, "KEYS_AT_ONCE", 2)
    stores, _ = make_queued(tmp_path)
    engine = Pieced()
    assert run_with(engine, stores, None).verdict == "clean"
    assert (engine.left, engine.proved, engine.unproved) == (0, 2 * len(stores), 0)


def test_what_is_too_much_to_tell_is_asked_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, _ = make_queued(tmp_path)
    for module, name in ((told, "ROWS_MAX"), (pieces, "ROWS_MAX")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, 1)
            engine = Pieced()
            assert run_with(engine, stores, None).verdict == "clean"
            assert (engine.answered, engine.left > 0, engine.proved) == (0, True, 0)


def test_across_a_border_pieces_say_what_the_records_say(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state, engine = tmp_path / "state.parquet", Pieced()
    run_with(engine, stores, None, state)
    append(stores, writer, PLACES - 1, "q1")
    append(stores, writer, PLACES + 3, "m3")
    append(stores, writer, 2, "new", queue_id=9)
    report = run_with(engine, stores, None, state)
    assert {f.kind for f in report.findings} == {"dup_queue_offset", "queue_gap", "dup_message"}
    assert (report.trust.border > 0, engine.left) == (True, 0)


def entry(store: Path, place: int) -> tuple[int, int, int]:
    raw = queue_file(store, "T", 1, place).read_bytes()[place % 10 * 20 :][:20]
    offset, size, tags = struct.unpack(">qiq", raw)
    return offset, size, tags


def wrong_offset(store: Path) -> None:
    offset, size, tags = entry(store, 12)
    enter(store, "T", 1, 12, struct.pack(">qiq", offset + 1, size, tags))


def wrong_size(store: Path) -> None:
    offset, size, tags = entry(store, 12)
    enter(store, "T", 1, 12, struct.pack(">qiq", offset, size + 1, tags))


def wrong_tags(store: Path) -> None:
    offset, size, tags = entry(store, 12)
    enter(store, "T", 1, 12, struct.pack(">qiq", offset, size, tags ^ 1))


def swapped(store: Path) -> None:
    a, b = entry(store, 12), entry(store, 13)
    enter(store, "T", 1, 12, struct.pack(">qiq", *b))
    enter(store, "T", 1, 13, struct.pack(">qiq", *a))


def zeroed(store: Path) -> None:
    enter(store, "T", 1, 12, bytes(20))


def blank(store: Path) -> None:
    enter(store, "T", 1, 12, struct.pack(">qiq", 0, 0x7FFFFFFF, 0))


def last_zeroed(store: Path) -> None:
    enter(store, "T", 1, 39, bytes(20))


def first_zeroed(store: Path) -> None:
    enter(store, "T", 1, 0, bytes(20))


def one_behind(store: Path) -> None:
    enter(store, "T", 1, 40, struct.pack(">qiq", *entry(store, 39)))


def negative_behind(store: Path) -> None:
    enter(store, "T", 1, 45, struct.pack(">qiq", -1, 100, 0))


def without_file(store: Path) -> None:
    queue_file(store, "T", 1, 20).unlink()


def without_last_file(store: Path) -> None:
    queue_file(store, "T", 1, 30).unlink()


def cut_file(store: Path) -> None:
    os.truncate(queue_file(store, "T", 1, 20), 107)


def cut_last_file(store: Path) -> None:
    os.truncate(queue_file(store, "T", 1, 30), 100)


def longer_file(store: Path) -> None:
    """Its end stands where the next file begins, too."""
    with queue_file(store, "T", 1, 10).open("ab") as file:
        file.write(queue_file(store, "T", 1, 30).read_bytes()[:40])


def other_name(store: Path) -> None:
    queue_file(store, "T", 1, 20).rename(queue_file(store, "T", 1, 50))


def two_folders(store: Path) -> None:
    """007 is the number of a queue as 7 is."""
    folder = store / "consumequeue" / "T" / "01"
    folder.mkdir()
    (folder / queue_file(store, "T", 1, 20).name).write_bytes(queue_file(store, "T", 1, 20).read_bytes())


WRONG = [
    wrong_offset,
    wrong_size,
    wrong_tags,
    swapped,
    zeroed,
    blank,
    first_zeroed,
    last_zeroed,
    one_behind,
    negative_behind,
    without_file,
    without_last_file,
    cut_file,
    cut_last_file,
    longer_file,
    other_name,
    two_folders,
]


@pytest.mark.parametrize("places", [4, 3_000_000])
@pytest.mark.parametrize("damage", WRONG, ids=lambda damage: str(damage.__name__))
def test_no_queue_with_a_wrong_entry_is_proved(
    damage: Callable[[Path], None], places: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other queues are."""
    monkeypatch.setattr(slices, "STRETCH_PLACES", places)
    monkeypatch.setattr("audit.plan.CHUNK_BYTES_MIN", 700)
    stores, _ = make_queued(tmp_path)
    damage(stores[1])
    engine = Pieced()
    assert run_with(engine, stores, None).findings == run_local(stores, None).findings
    assert engine.proved == 2 * len(stores) - 1
