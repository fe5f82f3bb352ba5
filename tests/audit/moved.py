"""Records over others of the same size, and groups in which one log goes back further than the others."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.audit.plants import ledger_at, make
from tests.audit.stores import LogWriter, look, patch, record

FIRST = f"{0:020d}"


def at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def running(stores: list[Path]) -> None:
    for store in stores:
        (store / "abort").touch()


def expired(*stores: Path) -> None:
    """The oldest file is gone, as retention takes it."""
    for store in stores:
        (store / "commitlog" / FIRST).unlink()


def misplaced(store: Path, begin: int, onto: int) -> bytes:
    """A message's bytes over another one's, as they are: they name the place where they stood."""
    raw = look(store, begin, struct.unpack(">i", look(store, begin, 4))[0])
    assert len(raw) == struct.unpack(">i", look(store, onto, 4))[0]
    patch(store, onto, raw)
    return raw


def moved(store: Path, begin: int, onto: int) -> None:
    """The same with its place in the log put right."""
    raw = bytearray(misplaced(store, begin, onto))
    raw[28:36] = struct.pack(">q", onto)
    patch(store, onto, bytes(raw))


def skipped_by_all(stores: list[Path], writer: LogWriter) -> None:
    """Another record stands in the place of a message, on all replicas."""
    place = at(writer, 40)
    size = struct.unpack(">i", look(stores[0], place, 4))[0]
    raw = record(
        place, 0, b"y" * (size - 91 - 1 - len("UNIQ_KEY\x01stranger\x02")), key="stranger", topic="X"
    )
    for store in stores:
        patch(store, place, raw)


def told(root: Path, writer: LogWriter, *, places: bool) -> Path:
    """A ledger of the messages of T, which may not say where they stand."""
    rows = [row for row in writer.rows if row["topic"] == "T"]
    kept = [row if places else {k: v for k, v in row.items() if k != "phys_offset"} for row in rows]
    return ledger_at(root, kept)


def in_many_ways(root: Path) -> tuple[list[Path], Path]:
    """r0 has a message twice, r1 one in another's place; a place is skipped by all."""
    stores, writer, _ = make(root)
    running(stores)
    skipped_by_all(stores, writer)
    expired(stores[0], stores[2])
    moved(stores[0], at(writer, 70), at(writer, 60))
    misplaced(stores[1], at(writer, 61), at(writer, 41))
    misplaced(stores[1], at(writer, 78), at(writer, 20))
    return stores, told(root, writer, places=False)
