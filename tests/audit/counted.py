"""Stores with more lost, repeated and damaged messages than a report lists."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from audit.run import Report
from tests.audit.plants import make
from tests.audit.stores import LogWriter, copies, look, patch


def lost_and_repeated(root: Path) -> tuple[list[Path], Path]:
    """Forty messages of one queue that stand twice, with a gap between; a ledger of 80 others."""
    writer = LogWriter(root / "origin")
    for n in range(80):
        if n == 40:
            writer.skip(3)
        writer.add(b"body", key=f"k{n % 40}")
    writer.confirm(epochs=[(1, 0)])
    rows = [{**row, "uniq_key": f"lost{n}", "phys_offset": None} for n, row in enumerate(writer.rows)]
    (root / "lost.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return copies(writer.root, 2), root / "lost.jsonl"


def check_counted(report: Report) -> None:
    """Of each kind the first five are rows, one more says how many there are."""
    for kind, replica, total in (("acked_missing", "*", 80), ("dup_message", "*", 40)):
        found = [f for f in report.findings if f.kind == kind]
        listed = [f for f in found if f.uniq_key]
        (rest,) = [f for f in found if not f.uniq_key]
        assert {f.replica for f in found} == {replica}
        assert (len(listed), rest.records) == (5, total - 5)
        assert f"{total - 5} more" in rest.found
    assert {f.uniq_key for f in report.findings if f.kind == "acked_missing"} >= {"lost0", "lost4"}
    assert report.lost == 80
    assert [(f.queue_offset, f.records) for f in report.findings if f.kind == "queue_gap"] == [(40, 3)]
    assert report.verdict == "diverged"


def much_damaged(root: Path) -> tuple[list[Path], Path]:
    """Of every second message the body is damaged on r1, and of every second of these on all replicas; of the
    others a property is changed on r2."""
    stores, writer, ledger = make(root)
    for n, row in enumerate(writer.rows):
        at = int(str(row["phys_offset"]))
        if n % 2 == 0:
            for store in stores if n % 4 == 0 else stores[1:2]:
                patch(store, at + 90, bytes([look(store, at + 90, 1)[0] ^ 4]))
        else:
            patch(stores[2], at + int.from_bytes(look(stores[2], at, 4)) - 2, b"#")
    return stores, ledger


def check_damage(bounded: Report, whole: Report, rest: Path) -> None:
    """Of each kind and replica five are rows and one says how many there are; ``rest`` has them; what follows
    from any of them still does."""
    listed = [f for f in bounded.findings if not f.counted]
    (counted_of_r1,) = [f for f in bounded.findings if f.counted and f.kind == "bytes_differ"]
    assert (counted_of_r1.replica, counted_of_r1.records) == ("r2", 40 - 5)
    for replica, total in (("r0", 20), ("r1", 40), ("r2", 20)):
        damage = [f for f in bounded.findings if (f.kind, f.replica) == ("crc_mismatch", replica)]
        assert sum(not f.counted for f in damage) == 5
        assert sum(f.records for f in damage) == total
    kinds = ("crc_mismatch", "bytes_differ")
    more = pq.read_table(rest).to_pylist()
    found = [(f.kind, f.replica, f.phys_offset, f.copies) for f in listed if f.kind in kinds]
    found += [(r["kind"], r["replica"], r["phys_offset"], r["copies"]) for r in more if r["kind"] in kinds]
    every = [(f.kind, f.replica, f.phys_offset, f.copies) for f in whole.findings if f.kind in kinds]
    assert sorted(found) == sorted(every)
    roots = {f.kind for f in bounded.findings if not f.caused_by}
    assert roots == {f.kind for f in whole.findings if not f.caused_by} == set(kinds)
    causes = {f.id for f in bounded.findings if not f.caused_by}
    assert {f.caused_by for f in bounded.findings if f.caused_by} <= causes
    assert bounded.verdict == whole.verdict == "diverged"
