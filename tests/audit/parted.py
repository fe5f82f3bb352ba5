"""Groups whose epochs parted, made of a seed, at most one copy damaged; and what an audit must say of them.

The oracle knows who wrote what: which history each replica has, where it left the group's, and which bytes of
which copy were changed. It knows no rule of the audit.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from audit.findings import Finding
from audit.run import Report
from model.ids import PhysicalOffset
from store.files.checkpoint import FILE_BYTES, Checkpoint
from tests.audit.plants import ledger_at, run_local
from tests.audit.stores import SEGMENT, LogWriter, cut, look, patch, write_checkpoint, write_epochs

SENT_AGAIN = 0.3
"""Of the messages behind a parting, how many come again to the next master, with the same key and body."""
BODY_AT = 88
Message = tuple[str, bytes, int, int]
"""Key, body, queue, time."""


@dataclass
class History:
    """What a master of ``epoch`` wrote behind the ``begin`` of its epoch, and what it had of others."""

    log: LogWriter
    messages: list[Message]
    epochs: list[tuple[int, int]]
    left: int = 1 << 62  # from where on the group went on without it

    def records(self) -> list[tuple[int, int]]:
        starts = [int(str(row["phys_offset"])) for row in self.log.rows]
        return [(at, at + int.from_bytes(look(self.log.root, at, 4))) for at in starts]


@dataclass
class Copy:
    store: Path
    history: History
    end: int

    @property
    def name(self) -> str:
        return self.store.name


@dataclass
class Damage:
    """``told``: it is of the group's history, and another copy, or its own CRC, says that it is wrong."""

    of: Copy
    what: str
    told: bool
    words: str


@dataclass
class Group:
    copies: list[Copy]
    last: History
    ledger: Path | None
    confirmed: int
    damage: Damage | None = None

    def run(self) -> Report:
        return run_local([copy.store for copy in self.copies], self.ledger)


def made(seed: int, root: Path) -> Group:
    """Sound, and lawful."""
    rng = random.Random(seed)
    histories = _histories(rng, root)
    last = histories[-1]
    count = rng.randint(2, 5)
    of = [last, *(rng.choice(histories) for _ in range(count - 1))]
    rng.shuffle(of)
    copies = [_copy(rng, root / f"r{n}", history) for n, history in enumerate(of)]
    confirmed = min(copy.end for copy in copies if copy.history is last)
    clean, noted = rng.random() < 0.5, rng.random() < 0.5
    for copy in copies:
        own = min(confirmed, copy.end) if copy.history is last else min(copy.history.left, copy.end)
        _beside(copy, own, clean=clean and copy.history is last, noted=noted)
    rows = [row for row in last.log.rows if int(str(row["phys_offset"])) < confirmed]
    return Group(copies, last, ledger_at(root, rows) if rng.random() < 0.5 else None, confirmed)


def _histories(rng: random.Random, root: Path) -> list[History]:
    """Two or three masters, each of which went on from a record that the one before it had."""
    found: list[History] = []
    messages = [(f"m{n}", f"m-{n}".encode() * 5, n % 2, 1000 + n) for n in range(rng.randint(5, 25))]
    kept, epochs, begins = len(messages), [(1, 0)], [0]
    for number in range(rng.choice([2, 2, 2, 3])):
        own = _own(rng, number, messages[kept:])
        messages = messages[:kept] + own
        log = _written(root / f"h{number}", messages)
        if number:
            begin = int(str(log.rows[kept]["phys_offset"])) if own else log.end
            begin = found[-1].records()[kept - 1][1]
            begins.append(begin)
            for before in found:
                before.left = min(before.left, begin)
            epochs = [entry for entry in epochs if entry[1] < begin] + [(number + 1, begin)]
        found.append(History(log, messages, epochs))
        kept = rng.randint(kept, max(kept, len(messages) - 1))
    return found


def _own(rng: random.Random, number: int, before: list[Message]) -> list[Message]:
    """A master's own messages; of those that the group went on without, some are sent again."""
    size = rng.choice([0, 0, 3])
    own: list[Message] = []
    for n in range(rng.choice([1, 2, 3, 20, 40])):
        stamp = 5000 * (number + 1) + n
        if n < len(before) and rng.random() < SENT_AGAIN:
            key, body, queue, _ = before[n]
            own.append((key, body, queue, stamp))
        else:
            body = f"{'abc'[number]}-{n}".encode() * 5 + b"x" * size * number
            own.append((f"{'abc'[number]}{n}", body, n % 2, stamp))
    return own


def _written(root: Path, messages: list[Message]) -> LogWriter:
    log = LogWriter(root)
    for key, body, queue, stamp in messages:
        log.add(body, key=key, queue_id=queue, stamp=stamp)
    return log


def _copy(rng: random.Random, store: Path, history: History) -> Copy:
    """Of the whole log, or of one that lags. All have something of their own epoch."""
    ends = [end for _, end in history.records()]
    own = [end for end in ends if end > max(history.epochs[-1][1], min(history.left, ends[-1] - 1))]
    end = rng.choice(own) if rng.random() < 0.3 else ends[-1]
    shutil.copytree(history.log.root, store)
    cut(store, end)
    return Copy(store, history, end)


def _beside(copy: Copy, confirmed: int, *, clean: bool, noted: bool) -> None:
    write_checkpoint(copy.store, confirmed)
    write_epochs(copy.store, [entry for entry in copy.history.epochs if entry[1] < copy.end])
    if noted:
        sealed(copy.store)
    if not clean:
        (copy.store / "abort").touch()


def sealed(store: Path, settled: int = 0) -> None:
    """A checkpoint as a stop of keelmq leaves it, and a second copy of the epochs."""
    (confirmed,) = struct.unpack_from(">q", (store / "checkpoint").read_bytes(), 32)
    found = Checkpoint(1, 1, 1, confirm_offset=PhysicalOffset(confirmed))
    found.settled_offset = PhysicalOffset(settled)
    found.log_start = PhysicalOffset(0)
    (store / "checkpoint").write_bytes(found.encode().ljust(FILE_BYTES, b"\0"))
    shutil.copy(store / "epochFileCheckpoint", store / "epochFileCheckpoint.bak")


def damage(seed: int, group: Group) -> None:
    """Change one file of one copy."""
    rng = random.Random(-seed)
    of = rng.choice(group.copies)
    what: Callable[[random.Random, Group, Copy], Damage] = rng.choice([_of_log, _of_log, _of_log, _of_small])
    group.damage = what(rng, group, of)


def _of_log(rng: random.Random, group: Group, of: Copy) -> Damage:
    begin = rng.randrange(of.end)
    near = min(of.history.left, of.end)
    if rng.random() < 0.4:
        begin = min(of.end - 1, max(0, near + rng.randint(-130, 130)))
    width = min(rng.choice([1, 1, 8, 100]), SEGMENT - begin % SEGMENT, of.end - begin)
    before = look(of.store, begin, width)
    flipped = bytes([before[0] ^ 1 << rng.randrange(8)]) + before[1:]
    data = rng.choice([flipped, bytes(width), rng.randbytes(width)])
    patch(of.store, begin, data)
    changed = [begin + n for n in range(width) if data[n] != before[n]]
    last = max(start for start, end in of.history.records() if end <= of.end)
    told = any(_is_told(group, of, at) for at in changed)
    # A last record that nobody confirmed may be half written.
    told = told and (changed[0] < group.confirmed or changed[-1] < last)
    return Damage(of, "log", told, f"{begin}+{width} {data[:1].hex()}")


def _is_told(group: Group, of: Copy, at: int) -> bool:
    """Of bytes behind a blank nobody speaks, nor of those that a rejoin cuts."""
    record = next((r for r in of.history.records() if r[0] <= at < r[1]), None)
    if at >= of.history.left or record is None:
        return False
    body = record[0] + BODY_AT <= at < record[0] + BODY_AT + _body_bytes(group, of, record[0])
    others = (c for c in group.copies if c is not of and record[1] <= min(c.end, c.history.left, of.end))
    return body or any(True for _ in others)


def _body_bytes(group: Group, of: Copy, begin: int) -> int:
    (size,) = struct.unpack(">i", look(of.history.log.root, begin + BODY_AT - 4, 4))
    return int(size)


def _of_small(rng: random.Random, group: Group, of: Copy) -> Damage:
    """One bit of its epoch file, or of a checkpoint."""
    name = rng.choice(["epochFileCheckpoint", "checkpoint"])
    path = of.store / name
    raw = bytearray(path.read_bytes())
    sealed = raw[64:68] == b"KQ02"
    at = rng.randrange(len(raw) if name != "checkpoint" else 40)
    raw[at] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    return Damage(of, name, name != "checkpoint" or sealed, f"byte {at}")


def faults(seed: int, root: Path) -> list[str]:
    """What an audit says of a group and should not, or does not say and should; in words."""
    group = made(seed, root)
    sound = group.run()
    found = [f"a lawful error: {_row(f)}" for f in sound.findings if f.severity == "error"]
    found += [f"a lawful copy is blamed: {_row(f)}" for f in _blamed(group, sound)]
    damage(seed, group)
    assert group.damage is not None, "one copy is damaged now"
    report = group.run()
    found += [f"a sound copy is blamed: {_row(f)}" for f in _blamed(group, report)]
    before = {_row(f) for f in sound.findings}
    new = [f for f in report.findings if f.severity != "info" and _row(f) not in before]
    if group.damage.told and not new:
        found.append("a damage is not told")
    return [f"{_words(seed, group)}: {words}" for words in found]


def _blamed(group: Group, report: Report) -> list[Finding]:
    """Rows that say a sound copy of the last epoch is wrong. That one is longer than another is no blame."""
    damaged = group.damage.of if group.damage is not None else None
    sound = [copy for copy in group.copies if copy.history is group.last and copy is not damaged]
    one_lags = len({copy.end for copy in group.copies if copy.history is group.last}) > 1
    return [
        f
        for f in report.findings
        if any(f.replica == copy.name or (f.replica == "*" and f.until <= copy.end) for copy in sound)
        and f.severity != "info"
        and not f.ambiguous
        and not (f.kind in ("short_tail", "extra_tail") and f.severity == "warn" and one_lags)
    ]


def _row(f: Finding) -> str:
    words = "ambiguous" if f.ambiguous else ""
    return f"{f.kind} {f.severity} {f.replica} {f.phys_offset}..{f.until} {words} {f.expected} | {f.found}"


def _words(seed: int, group: Group) -> str:
    of = [f"{c.name}:{c.history.epochs[-1][0]}@{min(c.history.left, c.end)}..{c.end}" for c in group.copies]
    hurt = group.damage
    told = f"{hurt.what} of {hurt.of.name}, {hurt.words}" if hurt is not None else "nothing"
    ledger = "with" if group.ledger else "without"
    return f"seed {seed} ({' '.join(of)} {ledger} a ledger; changed: {told})"
