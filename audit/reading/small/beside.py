"""What do the small files beside a log say, and are they as they were written?

    file                          what tells
    config/*.json, .bak           keelmq's: the last member, "keelmqCrc32", is the CRC-32 of all before it;
                                  RocketMQ's: they are JSON, whose numbers may be names without quotes
    config/*.json.changes         a CRC-32 in each line
    checkpoint                    at 64 "KQ02", at 68 the CRC-32 of bytes 0 to 39, 72 to 87; zeros:
                                  RocketMQ's. At 88 "KQS1", the CRC-32 of bytes 64 to 87 and of the
                                  last 8, the log's start
    config/timercheck             at 64 "KQT1", at 68 the CRC-32 of bytes 72 to 111; zeros: RocketMQ's
    brokerIdentity, .crc          CLUSTER#GROUP#ID; the second holds it three times, each behind its CRC-32
    epochFileCheckpoint.bak       a form and a CRC as the epoch file's
    epochFileCheckpoint.classic   the same, and one entry; so its .bak
    bootId.json                   JSON
    damagedRanges                 JSON, in which "crc" is the CRC-32 of "ranges"
    logWasLonger                  a number: where the log ended before its end was lost

This decoder is the audit's own, as that of records is. docs/formats/store.md has the layouts.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from audit.reading.layout import CHECKPOINT
from audit.reading.small.config_tables import (
    SUFFIX,
    changed_table,
    is_empty,
    is_sealed,
    offsets_of,
    offsets_problem,
    parsed,
    problem_of,
)
from audit.reading.small.epoch_lines import parse_epochs
from audit.reading.small.last_writer import BOOT, CONSUMER_OFFSETS, is_written_over
from audit.reading.small.seals import (
    CHECKPOINT_END,
    CHECKPOINT_MARK,
    CHECKPOINT_PARTS,
    is_sealed_by,
    seal_problem,
)
from audit.reading.storage import Storage, names_in, open_storage
from audit.rows.numbers import of_digits

_BOOT: Final[dict[str, tuple[type, ...]]] = {
    "bootId": (str,),
    "doubtful": (bool,),
    "synced": (bool, type(None)),
    "written": (bool, type(None)),
    "starts": (int,),
    "old": (bool,),
    "processes": (list,),
    "registered": (str,),
}
"""As ``broker/membership/reboot`` writes it; a test holds the two together."""
T = TypeVar("T")

TIMERCHECK: Final = "config/timercheck"
EPOCHS: Final = "epochFileCheckpoint"
IDENTITY: Final = "brokerIdentity"
WHEEL: Final = "timerwheel"
DAMAGED: Final = "damagedRanges"
WAS_LONGER: Final = "logWasLonger"
_CLASSIC: Final = f"{EPOCHS}.classic"
_ROOT: Final = (
    CHECKPOINT,
    EPOCHS,
    f"{EPOCHS}.bak",
    IDENTITY,
    f"{IDENTITY}.crc",
    BOOT,
    _CLASSIC,
    f"{_CLASSIC}.bak",
    DAMAGED,
    WAS_LONGER,
    WHEEL,
)


@dataclass(slots=True)
class Beside:
    """``problems``: by file, why it cannot be what was written; ``unread``: why it cannot be read.
    ``offsets``: how far each consumer group is, by topic, group and queue. ``timer``: what ``timercheck``
    says for RocketMQ, and for keelmq."""

    present: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)  # tables without a row, which nothing changed since
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    timer: tuple[bytes, bytes] = (b"", b"")
    settled: int = 0  # up to where, bytes, log and queues were whole and durable by the checkpoint
    indexed: int = -1  # up to where, bytes, the index was durable by the checkpoint; -1: it does not say
    log_start: int = -1  # where the log began by the checkpoint; -1: it does not say
    written_over: bool = False  # RocketMQ wrote its part of keelmq's checkpoint
    was_longer: int = 0  # where the log ended before it lost its end, bytes; 0: no note of that

    @property
    def ours(self) -> bool:
        """Did keelmq write this store last?"""
        return (BOOT in self.present and not self.written_over) or CHECKPOINT in self.sealed

    @property
    def written_by_others(self) -> bool:
        """Did RocketMQ run on it since? It writes the consumers' offsets again, without a CRC."""
        return CONSUMER_OFFSETS in self.present - self.sealed


def look_beside(location: str) -> Beside:
    """All that is said of a store beside its log. Raises OSError."""
    storage = open_storage(location)
    try:
        return _Look(storage, location).all()
    finally:
        storage.close()


class _Look:
    def __init__(self, storage: Storage, location: str) -> None:
        self._storage = storage
        self._location = location
        self._found = Beside()

    def all(self) -> Beside:
        found = self._found
        names = [f"config/{name}" for name in names_in(self._storage, "config")]
        found.present = {file for file in _ROOT if self._storage.exists(file)} | set(names)
        for file in sorted(found.present):
            problem = self._problem(file)
            if problem:
                found.problems[file] = problem
        found.offsets = self._anew(lambda storage: offsets_of(storage, CONSUMER_OFFSETS))
        return found

    def _problem(self, file: str) -> str:
        """Twice: a running broker may have been writing it."""
        if file.endswith(SUFFIX):
            table = file.removesuffix(SUFFIX)
            self._judged(file, lambda file, raw: "")
            return self._changes(table) and self._changes(table)
        judge = self._judge_of(file)
        return self._judged(file, judge) and self._judged(file, judge) if judge is not None else ""

    def _changes(self, table: str) -> str:
        return self._anew(lambda storage: changed_table(storage, table)[1].problem)

    def _anew(self, read: Callable[[Storage], T]) -> T:
        """With files as they are now: a table is replaced by another file of its name."""
        storage = open_storage(self._location)
        try:
            return read(storage)
        finally:
            storage.close()

    def _judge_of(self, file: str) -> Callable[[str, bytes], str] | None:
        if file.startswith("config/") and file.removesuffix(".bak").endswith(".json"):
            return self._table
        return {
            CHECKPOINT: self._checkpoint,
            TIMERCHECK: self._timercheck,
            f"{EPOCHS}.bak": lambda file, raw: parse_epochs(raw)[1],
            IDENTITY: _identity,
            f"{IDENTITY}.crc": self._copies,
            BOOT: _boot,
            _CLASSIC: _classic,
            f"{_CLASSIC}.bak": _classic,
            DAMAGED: _damaged_ranges,
            WAS_LONGER: self._was_longer,
        }.get(file)

    def _judged(self, file: str, judge: Callable[[str, bytes], str]) -> str:
        try:
            return judge(file, self._storage.read(file, 0, self._storage.size(file)))
        except FileNotFoundError:
            self._found.present.discard(file)
            return ""
        except OSError as error:
            self._found.unread[file] = error.strerror or str(error)
            return ""

    def _table(self, file: str, raw: bytes) -> str:
        if is_sealed(raw):
            self._found.sealed.add(file)
        if f"{file.removesuffix('.bak')}{SUFFIX}" not in self._found.present and is_empty(raw):
            self._found.empty.add(file)
        return problem_of(raw) or (
            offsets_problem(raw) if file.removesuffix(".bak") == CONSUMER_OFFSETS else ""
        )

    def _checkpoint(self, file: str, raw: bytes) -> str:
        problem = self._sealed(file, raw, CHECKPOINT_MARK, CHECKPOINT_PARTS, CHECKPOINT_END)
        if problem and is_written_over(self._storage, raw):
            self._found.sealed.discard(file)
            self._found.written_over = True
            return ""
        if not problem and file in self._found.sealed:
            self._found.settled, self._found.indexed = struct.unpack_from(">2q", raw, 72)
            self._found.log_start = _log_start(raw)
        return problem

    def _timercheck(self, file: str, raw: bytes) -> str:
        problem = self._sealed(file, raw, b"KQT1", ((72, 112),), 112)
        if not problem and file in self._found.sealed:
            self._found.timer = raw[:64], raw[72:112]
        return problem

    def _sealed(
        self, file: str, raw: bytes, mark: bytes, parts: tuple[tuple[int, int], ...], end: int
    ) -> str:
        if is_sealed_by(raw, mark):
            self._found.sealed.add(file)
        return seal_problem(raw, mark, parts, end)

    def _was_longer(self, file: str, raw: bytes) -> str:
        text = raw.strip()
        number = of_digits(text)
        self._found.was_longer = max(number, 0)
        return "" if number >= 0 else f"not a number of 64 bits: {raw[:40]!r}"

    def _copies(self, file: str, raw: bytes) -> str:
        text = self._storage.read(IDENTITY, 0, 4096).strip() if IDENTITY in self._found.present else b""
        line = b"%08x %b\n" % (zlib.crc32(text), text)
        lines = raw.splitlines(keepends=True)
        if (
            len(lines) == 3
            and len(set(lines)) == 1
            and raw[:8] == b"%08x" % zlib.crc32(raw[9:].split(b"\n")[0])
        ):
            if text and lines[0] != line:
                self._found.problems[IDENTITY] = (
                    f"{text!r}, its copies say {raw[9:].split(chr(10).encode())[0]!r}"
                )
            return ""
        return "three lines that are equal, each behind its CRC, are expected"


def _log_start(raw: bytes) -> int:
    """What a sound checkpoint notes; -1 if an older keelmq, which knows no note, wrote the seal before it."""
    mark, crc, start = struct.unpack_from(">4sIq", raw, 88)
    own = (mark, crc) == (b"KQS1", zlib.crc32(raw[64:88] + raw[96:104]))
    return int(start) if own and start >= 0 else -1


def _identity(file: str, raw: bytes) -> str:
    parts = raw.strip().split(b"#")
    return (
        "" if len(parts) == 3 and parts[2].isdigit() and all(parts) else f"not CLUSTER#GROUP#ID: {raw[:60]!r}"
    )


def _classic(file: str, raw: bytes) -> str:
    entries, problem = parse_epochs(raw)
    return problem or ("" if len(entries) == 1 else f"{len(entries)} entries, expected 1")


def _damaged_ranges(file: str, raw: bytes) -> str:
    told = parsed(raw)
    if not isinstance(told, dict) or not isinstance(told.get("ranges"), list):
        return f"not a list of ranges: {raw[:40]!r}"
    crc = zlib.crc32(json.dumps(told["ranges"], separators=(",", ":")).encode())
    return "" if crc == told.get("crc") else f"CRC {told.get('crc')}, computed {crc}"


def _boot(file: str, raw: bytes) -> str:
    told = parsed(raw)
    if not isinstance(told, dict) or "bootId" not in told or "doubtful" not in told:
        return f"not a note of a boot: {raw[:60]!r}"
    wrong = [name for name, value in told.items() if not isinstance(value, _BOOT.get(name, ()))]
    return f"{wrong[0]!r} is not expected" if wrong else ""
