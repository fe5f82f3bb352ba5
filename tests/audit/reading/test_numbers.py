"""The promise about numbers in files and their names: none ends an audit, and what has more than 64 bits is
no number that was written there."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from audit.findings import write
from tests.audit.plants import make, make_queued, run_local

LONG = "9" * 25
OFFSETS = "config/consumerOffset.json"
NUMBERS = {
    "logWasLonger of 19 digits": ("logWasLonger", "9" * 19),
    "logWasLonger of 30 digits": ("logWasLonger", "9" * 30),
    "logWasLonger of 5,000 digits": ("logWasLonger", "9" * 5000),
    "an epoch's start": ("epochFileCheckpoint", f"2\n0\n1-0\n3-{LONG}\n"),
    "an epoch": ("epochFileCheckpoint", f"2\n0\n1-0\n{LONG}-2440\n"),
    "an epoch in the second copy": ("epochFileCheckpoint.bak", f"2\n0\n1-0\n3-{LONG}\n"),
    "an offset": (OFFSETS, f'{{"offsetTable":{{"T@g":{{0:{LONG}}}}}}}'),
    "an offset in quotes": (OFFSETS, f'{{"offsetTable":{{"T@g":{{0:"{LONG}"}}}}}}'),
    "an offset as a float": (OFFSETS, '{"offsetTable":{"T@g":{0:1e300}}}'),
    "an endless offset": (OFFSETS, '{"offsetTable":{"T@g":{0:Infinity}}}'),
    "a queue of more than 32 bits": (OFFSETS, '{"offsetTable":{"T@g":{3000000000:5}}}'),
    "a number of queues": (
        "config/topics.json",
        f'{{"topicConfigTable":{{"T":{{"readQueueNums":{LONG}}}}}}}',
    ),
    "endless queues": ("config/topics.json", '{"topicConfigTable":{"T":{"readQueueNums":Infinity}}}'),
    "starts": ("bootId.json", f'{{"bootId":"a","doubtful":false,"starts":{LONG}}}'),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_a_number_of_more_than_64_bits_makes_its_file_a_corrupt_one(what: str, tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    file, text = NUMBERS[what]
    for store in stores:
        (store / file).parent.mkdir(exist_ok=True)
        (store / file).write_text(text)
    findings = run_local(stores, ledger).findings
    write(findings, tmp_path)
    kind = "epoch_file_corrupt" if file == "epochFileCheckpoint" else "file_corrupt"
    assert {f.replica for f in findings if f.kind == kind} == {"r0", "r1", "r2"}


@pytest.mark.parametrize(
    ("number", "offset"), [("1", LONG), (LONG, "5"), ("9" * 5000, "5")], ids=["offset", "number", "digits"]
)
def test_a_change_with_such_a_number_is_none(number: str, offset: str, tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    (stores[0] / "config").mkdir()
    (stores[0] / OFFSETS).write_text('{"keelmqChanges":0,"offsetTable":{}}')
    line = f' {number} {{"offsetTable":{{"T@g":{{"0":{offset}}}}}}}'.encode()
    (stores[0] / f"{OFFSETS}.changes").write_bytes(b"%08x%b\n" % (zlib.crc32(line), line))
    told = {(f.kind, f.segment) for f in run_local(stores, ledger).findings}
    assert ("file_corrupt", f"{OFFSETS}.changes") in told


@pytest.mark.parametrize(
    "name",
    [
        f"commitlog/{'9' * 20}",
        f"commitlog/{'²' * 20}",
        f"consumequeue/T/3000000000/{0:020d}",
        f"consumequeue/T/{LONG}/{0:020d}",
        f"batchconsumequeue/T/{LONG}/{0:020d}",
        f"consumequeue_ext/T/²/{0:020d}",
        f"timerlog/{'9' * 20}",
        f"timerlog/{'²' * 20}",
    ],
)
def test_a_file_of_a_name_that_no_broker_gives_ends_no_audit(name: str, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    path = stores[0] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((stores[0] / "commitlog" / f"{4096:020d}").read_bytes())
    report = run_local(stores, ledger)
    write(report.findings, tmp_path)
    assert report.verdict == "clean"
