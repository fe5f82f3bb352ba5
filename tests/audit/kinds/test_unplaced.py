"""The promise of ledgers that tell no place in the log: what may have stood in what cannot be read is lost;
what no log reaches any more, by the places of its queue, is too old."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.audit.plants import make, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, cut, patch, record, write_checkpoint


def _ledger(root: Path, rows: list[dict[str, object]]) -> Path:
    """Without ``phys_offset``."""
    path = root / "unplaced.jsonl"
    told = ({name: value for name, value in row.items() if name != "phys_offset"} for row in rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in told))
    return path


def _at(log: LogWriter, n: int) -> int:
    return int(str(log.rows[n]["phys_offset"]))


def _expire(store: Path, until: int) -> None:
    for base in range(0, until, SEGMENT):
        (store / "commitlog" / f"{base:020d}").unlink()


def _group(root: Path) -> tuple[list[Path], LogWriter]:
    """The second log alone has its second segment, which the message 33 begins."""
    stores, log, _ = make(root)
    for store, begin in zip(stores, (2 * SEGMENT, SEGMENT, 2 * SEGMENT), strict=True):
        (store / "abort").touch()
        _expire(store, begin)
    assert _at(log, 33) == SEGMENT
    return stores, log


def test_what_is_sound_held_nothing_else(tmp_path: Path) -> None:
    stores, log = _group(tmp_path)
    report = run_local(stores, _ledger(tmp_path, log.rows[2:]))
    assert (report.lost, report.expired) == (0, 31)


@pytest.mark.parametrize("count", [1, 3])
def test_the_places_before_a_queues_first_may_be_under_damage(count: int, tmp_path: Path) -> None:
    """As many as have room there, of each queue; those before them have not."""
    stores, log = _group(tmp_path)
    patch(stores[1], SEGMENT, bytes(_at(log, 33 + count) - SEGMENT))
    report = run_local(stores, _ledger(tmp_path, log.rows))
    lost = {f.uniq_key for f in report.findings if f.kind == "acked_missing" and f.copies == 0}
    assert lost >= {f"m{n}" for n in range(33, 33 + count)}
    room = 2 * ((_at(log, 33 + count) - SEGMENT) // 92)
    assert (report.lost, report.expired) == (room, 33 + count - room)
    assert not report.none_lost


def test_damage_behind_a_queues_first_record_held_no_earlier_one(tmp_path: Path) -> None:
    stores, log = _group(tmp_path)
    patch(stores[1], _at(log, 40), bytes(_at(log, 41) - _at(log, 40)))
    report = run_local(stores, _ledger(tmp_path, log.rows[2:]))
    assert (report.lost, report.expired) == (1, 31)


def test_damage_that_another_log_has_sound_held_nothing(tmp_path: Path) -> None:
    stores, log, _ = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
        _expire(store, SEGMENT)
    patch(stores[1], SEGMENT, bytes(_at(log, 34) - SEGMENT))
    report = run_local(stores, _ledger(tmp_path, log.rows[2:]))
    assert (report.lost, report.expired) == (0, 31)


@pytest.mark.parametrize("how", ["gone", "short"])
def test_a_queue_may_have_begun_in_a_file_that_is_gone_or_short(how: str, tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "origin")
    log.fill(75)
    for n in range(60):
        log.add(f"u-{n}".encode() * 5, key=f"u{n}", topic="U", stamp=3000 + n)
    log.confirm(epochs=[(1, 0)])
    stores = copies(log.root)
    for store, begin in zip(stores, (3 * SEGMENT, SEGMENT, 3 * SEGMENT), strict=True):
        (store / "abort").touch()
        _expire(store, begin)
    rows = [row for row in log.rows if row["topic"] == "U"]
    assert run_local(stores, _ledger(tmp_path, rows)).lost == 0
    file = stores[1] / "commitlog" / f"{2 * SEGMENT:020d}"
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:1000])
    gone = [row for row in rows if int(str(row["phys_offset"])) < 3 * SEGMENT]
    report = run_local(stores, _ledger(tmp_path, rows))
    assert (report.lost, report.expired, report.none_lost) == (len(gone), 0, False)


def _down(root: Path, n: int) -> tuple[list[Path], LogWriter, int]:
    """The first log was down since the message ``n``; the others expired their first segments since, so that
    no log has what is between, which is so many messages."""
    stores, log, _ = make(root)
    for store in stores:
        (store / "abort").touch()
    cut(stores[0], _at(log, n))
    write_checkpoint(stores[0], _at(log, n))
    for store in stores[1:]:
        _expire(store, SEGMENT)
    return stores, log, 33 - n


def test_between_a_log_that_ended_and_those_that_go_on_messages_expired(tmp_path: Path) -> None:
    stores, log, between = _down(tmp_path, 20)
    report = run_local(stores, _ledger(tmp_path, log.rows))
    assert (report.lost, report.expired) == (0, between)


def test_but_not_where_one_of_these_is_damaged(tmp_path: Path) -> None:
    """The record of the message 18 had the last place of its queue there; the next one may have stood there,
    too, as 20 cannot, whose queue goes on behind the damage."""
    stores, log, between = _down(tmp_path, 20)
    patch(stores[0], _at(log, 18), bytes(_at(log, 19) - _at(log, 18)))
    report = run_local(stores, _ledger(tmp_path, log.rows))
    lost = {f.uniq_key for f in report.findings if f.kind == "acked_missing" and f.copies == 0}
    assert "m18" in lost
    assert (report.lost, report.expired) == (1, between)


def test_nor_where_the_log_lost_its_end(tmp_path: Path) -> None:
    stores, log, between = _down(tmp_path, 20)
    write_checkpoint(stores[0], SEGMENT)
    report = run_local(stores, _ledger(tmp_path, log.rows))
    assert (report.lost, report.expired) == (between, 0)


def test_nor_where_all_logs_have_what_is_between_and_not_the_message(tmp_path: Path) -> None:
    stores, log, _ = make(tmp_path)
    at, size = _at(log, 40), _at(log, 41) - _at(log, 40)
    own = record(at, 0, b"y" * (size - 91 - 1 - len("UNIQ_KEY\x01stranger\x02")), key="stranger", topic="X")
    for store in stores:
        (store / "abort").touch()
        _expire(store, SEGMENT)
        patch(store, at, own)
    report = run_local(stores, _ledger(tmp_path, log.rows[2:]))
    assert (report.lost, report.expired) == (1, 31)
