"""The promise of a ledger that others may write: what was cut or changed meanwhile is never read on in
silence, and files of Parquet that differ in their columns give all their lines, or none."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.engines.lines import ranges, read_lines
from audit.ledgers import ledger as ledgers
from audit.ledgers.ledger import read_ledger
from audit.ledgers.watched import WatchedFile
from model.errors import ConfigError

ROWS = [
    {"uniq_key": f"K{n}", "topic": "T", "queue_id": 0, "queue_offset": n, "body_crc": n} for n in range(9)
]
EVENTS = [
    event
    for n in range(3)
    for event in (
        {"type": "invoke", "key": f"K{n}", "queue": ["T", "b", 0], "body_crc": n, "at_ms": n},
        {"type": "ok", "key": f"K{n}", "queue": ["T", "b", 0], "queue_offset": n, "physical_offset": n * 100}
        | {"at_ms": n + 0.5},
    )
]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def lines_file(root: Path) -> Path:
    path = root / "acked.jsonl"
    path.write_text(lines(ROWS))
    return path


def history_file(root: Path) -> Path:
    path = root / "history.jsonl"
    path.write_text(lines(EVENTS))
    return path


def parquet_file(root: Path) -> Path:
    path = root / "acked.parquet"
    path.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS[:5]), path / "1.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[5:]), path / "2.parquet")
    return path


def cut(path: Path) -> None:
    if path.is_dir():
        pq.write_table(pa.Table.from_pylist(ROWS[5:7]), path / "2.parquet")
    else:
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def blank(path: Path) -> None:
    """Fewer lines in a file of the same size."""
    if path.is_dir():
        path = path / "2.parquet"
        os.utime(path, ns=(1, 1))
        return
    raw = path.read_bytes()
    last = raw.splitlines(keepends=True)[-1]
    path.write_bytes(raw[: -len(last)] + b" " * (len(last) - 1) + b"\n")


def other(path: Path) -> None:
    """Longer, but of other lines."""
    if path.is_dir():
        (path / "2.parquet").unlink()
        return
    path.write_bytes(path.read_bytes().replace(b'"K0"', b'"another key"'))


def meanwhile(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Something is done once the lines were read."""
    given = ledgers.Ledger.__init__

    def made(self: ledgers.Ledger, *arguments: Any) -> None:
        given(self, *arguments)
        do()

    monkeypatch.setattr(ledgers.Ledger, "__init__", made)


@pytest.mark.parametrize("make", [lines_file, history_file, parquet_file])
@pytest.mark.parametrize("change", [cut, blank, other])
def test_a_ledger_that_changed_while_it_was_read_is_named(
    make: Callable[[Path], Path],
    change: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make(tmp_path)
    meanwhile(monkeypatch, lambda: change(path))
    with pytest.raises(OSError) as told:
        read_ledger(str(path))
    assert told.value.filename.startswith(str(path))


@pytest.mark.parametrize("make", [lines_file, history_file, parquet_file])
def test_a_ledger_may_grow_while_it_is_read(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there at the begin is asked for."""
    path = make(tmp_path)
    whole = len(read_ledger(str(path)))

    def grow() -> None:
        if path.is_dir():
            pq.write_table(pa.Table.from_pylist(ROWS[:1]), path / "3.parquet")
        else:
            path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[0])

    meanwhile(monkeypatch, grow)
    assert len(read_ledger(str(path))) == whole


@pytest.mark.parametrize("make", [lines_file, history_file, parquet_file])
def test_a_task_reads_no_file_that_is_shorter_than_it_was_planned(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path)
    parts = ranges(str(path), size=100)
    cut(path)
    with pytest.raises(OSError, match="it changed while it was read"):
        [table for part in parts for table in read_lines(part)]


def told_of(path: Path) -> list[tuple[str, int, float]]:
    found = read_ledger(str(path))
    try:
        rows = found.table().to_pylist()
    finally:
        found.close()
    return [(row["uniq_key"], row["phys_offset"], row["begun_ms"]) for row in rows]


def test_each_file_of_a_folder_has_its_own_columns(tmp_path: Path) -> None:
    """The first one's counted for all: what only a later one tells of places and times was not asked."""
    rows = [{**ROWS[0], "phys_offset": 7}, {**ROWS[1], "begun_ms": 1.5, "acked_ms": 2.0}, ROWS[2]]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        folder = tmp_path / "".join(map(str, order))
        folder.mkdir()
        for n, at in enumerate(order):
            pq.write_table(pa.Table.from_pylist([rows[at]]), folder / f"{n}.parquet")
        told = [("K0", 7, -1.0), ("K1", -1, 1.5), ("K2", -1, -1.0)]
        assert told_of(folder) == [told[at] for at in order]
        read = [table for part in ranges(str(folder)) for table in read_lines(part)]
        assert sorted(pa.concat_tables(read)["phys_offset"].to_pylist()) == [-1, -1, 7]


def files_with(bad: pa.Table, at: int, folder: Path) -> Iterator[Path]:
    folder.mkdir()
    for n in range(3):
        pq.write_table(bad if n == at else pa.Table.from_pylist(ROWS[n : n + 1]), folder / f"{n}.parquet")
        yield folder / f"{n}.parquet"


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (pa.Table.from_pylist(ROWS[8:]).drop_columns(["body_crc"]), "column body_crc is missing"),
        (pa.Table.from_pylist([{**ROWS[8], "topic": None}, ROWS[8]]), "column topic has empty values"),
        (pa.Table.from_pylist([{**ROWS[8], "queue_id": "two"}]), "column queue_id: "),
    ],
)
def test_a_file_of_a_folder_without_a_column_that_is_needed_is_named(
    bad: pa.Table, said: str, at: int, tmp_path: Path
) -> None:
    files = [*files_with(bad, at, tmp_path / "folder")]
    with pytest.raises(ConfigError, match=f"{files[at]}: {said}"):
        read_ledger(str(tmp_path / "folder"))


@pytest.mark.parametrize(("make", "cut_at_pass"), [(lines_file, 1), (history_file, 1), (history_file, 2)])
@pytest.mark.parametrize("grown", [False, True])
def test_a_file_that_is_cut_under_a_reading_and_whole_again_behind_it_is_named(
    make: Callable[[Path], Path],
    cut_at_pass: int,
    grown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make(tmp_path)
    raw, times = path.read_bytes(), path.stat()
    opened, checked = WatchedFile.open, WatchedFile.check
    passes = 0

    def opens(self: WatchedFile, name: str) -> tuple[Any, int]:
        nonlocal passes
        passes += 1
        path.write_bytes(b"".join(raw.splitlines(keepends=True)[:-2]) if passes == cut_at_pass else raw)
        return opened(self, name)

    def checks(self: WatchedFile) -> None:
        path.write_bytes(raw + raw.splitlines(keepends=True)[0] * grown)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        checked(self)

    monkeypatch.setattr(WatchedFile, "open", opens)
    monkeypatch.setattr(WatchedFile, "check", checks)
    with pytest.raises(OSError, match="it changed while it was read"):
        read_ledger(str(path))


@pytest.mark.parametrize("opened_first", [True, False])
@pytest.mark.parametrize("how", [gzip, bz2])
def test_a_compressed_file_that_lacks_a_part_under_a_reading_is_named(
    how: Any, opened_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first part alone is a whole file, too; it is whole again behind the reading, with its time."""
    path = tmp_path / f"acked.jsonl.{'gz' if how is gzip else 'bz2'}"
    first, second = (how.compress(lines(rows).encode()) for rows in (ROWS[:5], ROWS[5:]))
    path.write_bytes(first + second)
    times = path.stat()
    assert len(read_ledger(str(path))) == len(ROWS)
    opened, checked = WatchedFile.open, WatchedFile.check

    def opens(self: WatchedFile, name: str) -> tuple[Any, int]:
        if not opened_first:
            os.truncate(path, len(first))
        file = opened(self, name)
        os.truncate(path, len(first))
        return file

    def checks(self: WatchedFile) -> None:
        path.write_bytes(first + second)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        checked(self)

    monkeypatch.setattr(WatchedFile, "open", opens)
    monkeypatch.setattr(WatchedFile, "check", checks)
    with pytest.raises(OSError, match="it changed while it was read") as told:
        read_ledger(str(path))
    assert told.value.filename == str(path)


@pytest.mark.parametrize("make", [lines_file, history_file])
def test_what_is_appended_under_a_reading_is_not_asked_be_it_whole_or_not(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)
    whole = len(read_ledger(str(path)))
    opened = WatchedFile.open

    def opens(self: WatchedFile, name: str) -> tuple[Any, int]:
        with path.open("ab") as file:
            file.write(b'{"uniq_key": "half a li')
        return opened(self, name)

    monkeypatch.setattr(WatchedFile, "open", opens)
    assert len(read_ledger(str(path))) == whole


@pytest.mark.parametrize("make", [lines_file, history_file])
def test_a_last_line_that_is_cut_is_no_wrong_usage(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """Its file is being written: the same call may do a moment later."""
    path = make(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(OSError, match="its last line is cut"):
        read_ledger(str(path))
    path.write_bytes(make(tmp_path).read_bytes()[:-1])
    read_ledger(str(path))


def test_one_line_that_is_no_object_is_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "acked.jsonl"
    path.write_bytes(bytes(range(1, 256)))
    with pytest.raises(ConfigError, match="not a JSON object"):
        read_ledger(str(path))


def test_a_ledger_behind_a_url_may_be_larger_than_a_note_of_a_store(tmp_path: Path) -> None:
    path = lines_file(tmp_path)
    path.write_bytes(path.read_bytes() * 1_500)
    assert path.stat().st_size > 1 << 20
    assert len(read_ledger(f"file://{path}")) == 9 * 1_500
