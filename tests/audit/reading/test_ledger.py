"""The promise of audit.ledgers.ledger: JSON lines and Parquet say the same, and a bad line is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.ledgers.history import NO_SENDS
from audit.ledgers.ledger import LEDGER, digest_of, from_rows, read_ledger
from chaos.history import HistoryEvent
from model.errors import ConfigError

ROW = {"uniq_key": "K", "topic": "T", "queue_id": 1, "queue_offset": 2, "body_crc": 3}


def test_json_lines_and_parquet_are_the_same_ledger(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "uniq_key": "L", "phys_offset": 9, "begun_ms": 1.5, "acked_ms": 2}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(r) for r in rows) + "\n\n")
    folder = tmp_path / "ledger"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows[1:] + rows[:1]).slice(1), folder / "1.parquet")
    pq.write_table(pa.Table.from_pylist(rows[1:]), folder / "2.parquet")
    a, b = (read_ledger(str(path)).table() for path in (tmp_path / "a.jsonl", folder))
    assert a.schema == b.schema == LEDGER
    assert a.to_pylist() == b.to_pylist()
    assert a["phys_offset"].to_pylist() == [-1, 9]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a JSON object"),
        ("[1]", "expected a JSON object"),
        ('{"uniq_key":"K"}', "topic is missing"),
        (json.dumps({**ROW, "queue_id": "x"}), "whole number"),
        (json.dumps({**ROW, "uniq_key": 5}), "expected text"),
        (json.dumps({**ROW, "queue_id": 1 << 40}), "bad.jsonl:2: queue_id: expected 0 to"),
    ],
)
def test_a_bad_line_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + text + "\n")
    with pytest.raises(ConfigError, match=said):
        read_ledger(str(path))


def test_a_parquet_file_without_a_column_says_which(tmp_path: Path) -> None:
    pq.write_table(pa.table({"uniq_key": ["K"]}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="topic is missing"):
        read_ledger(str(tmp_path / "x.parquet"))
    (tmp_path / "y.parquet").write_text("no")
    with pytest.raises(ConfigError, match=r"y\.parquet"):
        read_ledger(str(tmp_path / "y.parquet"))


def test_a_parquet_key_that_is_no_text_is_named(tmp_path: Path) -> None:
    bad = pa.array([b"K", b"\xff"], pa.binary()).view(pa.string())
    rows = pa.table(
        {"uniq_key": bad, **{name: [value] * 2 for name, value in ROW.items() if name != "uniq_key"}}
    )
    pq.write_table(rows, tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="column uniq_key"):
        read_ledger(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize("name", LEDGER.names[1:])
def test_a_ledger_that_differs_in_any_column_has_another_digest(name: str) -> None:
    rows = [
        ("x", {**ROW, "uniq_key": f"K{at}", "phys_offset": at, "begun_ms": at, "acked_ms": at + 0.5})
        for at in (1, 2)
    ]
    lines = from_rows(rows)
    assert digest_of(lines) == digest_of(lines.take([1, 0])), "in any order"
    at = LEDGER.names.index(name)
    changed = [*lines[name].to_pylist()[:1], "other" if name in ("uniq_key", "topic") else 77]
    other = lines.set_column(at, LEDGER.field(at), pa.array(changed, LEDGER.field(at).type))
    swapped = lines.set_column(at, LEDGER.field(at), lines[name].take([1, 0]))
    assert digest_of(other) != digest_of(lines)
    alike = name in ("topic", "queue_id", "queue_offset", "body_crc")
    assert (digest_of(swapped) == digest_of(lines)) == alike, "what is another row's is not this one's"


def test_half_of_a_surrogate_pair_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    row = {"uniq_key": "k", "topic": "T", "queue_id": 0, "queue_offset": 1, "body_crc": 5}
    path.write_text(json.dumps({**row, "uniq_key": "\ud800"}))
    with pytest.raises(ConfigError, match="surrogates"):
        read_ledger(str(path))


def test_a_parquet_ledger_may_have_all_bits_of_a_crc(tmp_path: Path) -> None:
    """A record keeps 31: the highest one made a message of such a ledger another one."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([{**ROW, "body_crc": 0x80000003}]), path)
    ledger = read_ledger(str(path))
    assert ledger.table()["body_crc"].to_pylist() == [3]
    assert ([line.body_crc for line in ledger.lines_of("K")], ledger.lines_of("other")) == ([3], [])
    ledger.close()


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """What a first look took of it would not be asked."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="which a pipe cannot be"):
        read_ledger(str(tmp_path / "pipe"))


@pytest.mark.parametrize("time", ["NaN", "Infinity", "-Infinity", "true", '"7"', "1" + "0" * 400])
def test_a_time_that_is_no_number_is_named(time: str, tmp_path: Path) -> None:
    """Engines compare such ones differently."""
    path = tmp_path / "acked.jsonl"
    path.write_text(f'{json.dumps(ROW)[:-1]}, "begun_ms": {time}}}\n')
    with pytest.raises(ConfigError, match=r"acked\.jsonl:1: "):
        read_ledger(str(path))


def test_a_parquet_time_that_is_no_number_is_named(tmp_path: Path) -> None:
    row = {"uniq_key": "K", "topic": "T", "queue_id": 0, "queue_offset": 0, "body_crc": 1}
    pq.write_table(pa.Table.from_pylist([row | {"acked_ms": float("nan")}]), tmp_path / "acked.parquet")
    with pytest.raises(ConfigError, match="column acked_ms has times that are no number"):
        read_ledger(str(tmp_path / "acked.parquet"))


INVOKE = {"type": "invoke", "key": "K", "queue": ["T", "b", 0], "body_crc": 1, "at_ms": 1}
OK = {"type": "ok", "key": "K", "queue": ["T", "b", 0], "queue_offset": 0, "physical_offset": 0, "at_ms": 2}


@pytest.mark.parametrize(
    "line",
    [
        OK | {"type": "OK"},
        OK | {"type": "acked"},
        OK | {"type": None},
        {"uniq_key": "K2", "topic": "T", "queue_id": 0, "queue_offset": 0, "body_crc": 1},
    ],
)
def test_a_line_of_a_history_that_is_no_known_event_is_named(line: dict[str, Any], tmp_path: Path) -> None:
    """It may be an acknowledgement by another name, which would not be asked for."""
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in (INVOKE, OK, line)))
    with pytest.raises(ConfigError, match="not an event of a history: type"):
        read_ledger(str(path))


def test_each_event_of_a_drill_is_a_send_or_known_to_be_none() -> None:
    assert {kind.type for kind in get_args(HistoryEvent)} == {"invoke", "ok", "fail", "unknown", *NO_SENDS}


@pytest.mark.parametrize(
    ("name", "value"), [("queue_offset", 2**70), ("queue_id", 2**31), ("phys_offset", 2**63)]
)
def test_a_number_that_no_column_holds_is_named_by_its_line(name: str, value: int, tmp_path: Path) -> None:
    path = tmp_path / "acked.jsonl"
    row = {"uniq_key": "k", "topic": "T", "queue_id": 0, "queue_offset": 0, "body_crc": 1}
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, name: value}) + "\n")
    with pytest.raises(ConfigError, match=rf"acked\.jsonl:2: {name}: expected -?\d+ to \d+"):
        read_ledger(str(path))


@pytest.mark.parametrize("begin", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
def test_the_mark_of_an_editor_before_all_is_no_line(begin: bytes, tmp_path: Path) -> None:
    path = tmp_path / "acked.jsonl"
    row = {"uniq_key": "k", "topic": "T", "queue_id": 0, "queue_offset": 0, "body_crc": 1}
    path.write_bytes(begin + json.dumps(row).encode() + b"\r\n")
    ledger = read_ledger(str(path))
    assert (len(ledger), ledger.lines_of("k")[0].body_crc) == (1, 1)
    ledger.close()
