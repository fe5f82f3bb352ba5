"""Groups whose epochs parted, with one to three faults on any copies, and an operator who does what the page
says. What goes wrong then is told in words; the oracle is that of ``tests.audit.parted``."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from audit.findings import INFO, Finding
from audit.results.steps.repair import Step, steps
from tests.audit.parted import BODY_AT, Copy, Group, made
from tests.audit.results.advised import do
from tests.audit.stores import SEGMENT, cut, look, patch

Message = tuple[int, bytes]
"""Where a record stands, and its bytes."""
_NEAR = 0.7
"""So many faults hit what the copy's last epoch wrote."""
_LEADS = re.compile(r"with an empty store while (\S+) leads")
_CUT = "What it alone has is cut then"


@dataclass
class Hurt:
    """``done``: the faults, in words; ``before``: what of the group's history some copy had right;
    ``strange``: of the group's copies, which records of histories that it left they had."""

    group: Group
    right: list[Message]
    left: set[Message]
    done: list[str] = field(default_factory=list)
    before: set[Message] = field(default_factory=set)
    strange: set[tuple[str, Message]] = field(default_factory=set)

    def held(self) -> set[Message]:
        return {m for m in self.right if any(_holds(copy, m) for copy in self.group.copies)}

    def strangers(self) -> set[tuple[str, Message]]:
        return {(copy.name, m) for copy in self.last() for m in self.left if _holds(copy, m)}

    def last(self) -> list[Copy]:
        return [copy for copy in self.group.copies if copy.history is self.group.last]

    def copy(self, name: str) -> Copy:
        return next(copy for copy in self.group.copies if copy.name == name)


def _holds(copy: Copy, message: Message) -> bool:
    at, raw = message
    try:
        return look(copy.store, at, len(raw)) == raw
    except OSError:
        return False


def hurt(seed: int, root: Path, faults: dict[str, Fault] | None = None) -> Hurt:
    faults = faults or _FAULTS
    group, chance = made(seed, root), random.Random(seed * 7 + 1)
    right = [(at, look(group.last.log.root, at, end - at)) for at, end in group.last.records()]
    left = set(_of_left(group)) - {*right}
    found = Hurt(group, right, left)
    for _ in range(chance.choice([1, 1, 2, 3])):
        copy, what = chance.choice(group.copies), chance.choice(list(faults))
        records = [record for record in copy.history.records() if record[1] <= copy.end]
        near = [record for record in records if record[0] >= copy.history.epochs[-1][1]] or records
        record = chance.choice(near if chance.random() < _NEAR else records)
        try:
            faults[what](copy.store, record, chance)
        except OSError:
            continue  # the file is gone by another fault
        found.done.append(f"{what} of {copy.name} at {record[0]}")
    found.before, found.strange = found.held(), found.strangers()
    return found


def _of_left(group: Group) -> Iterator[Message]:
    for copy in group.copies:
        if copy.history is not group.last:
            for at, end in copy.history.records():
                if copy.history.left <= at and end <= copy.end:
                    yield at, look(copy.history.log.root, at, end - at)


Record = tuple[int, int]


def _body(store: Path, record: Record, chance: random.Random) -> None:
    patch(store, record[0] + BODY_AT + 1, bytes([chance.randrange(256)]))


def _place(store: Path, record: Record, chance: random.Random) -> None:
    patch(store, record[0] + 28, b"\x11")


def _property(store: Path, record: Record, chance: random.Random) -> None:
    patch(store, record[1] - 2, bytes([chance.randrange(97, 123)]))


def _zeros(store: Path, record: Record, chance: random.Random) -> None:
    patch(store, record[0], bytes(record[1] - record[0]))


def _zeros_to_the_end(store: Path, record: Record, chance: random.Random) -> None:
    patch(store, record[0], bytes(SEGMENT - record[0] % SEGMENT))


def _gone(store: Path, record: Record, chance: random.Random) -> None:
    (store / "commitlog" / f"{record[0] // SEGMENT * SEGMENT:020d}").unlink()


def _unreadable(store: Path, record: Record, chance: random.Random) -> None:
    _gone(store, record, chance)
    (store / "commitlog" / f"{record[0] // SEGMENT * SEGMENT:020d}").mkdir()


def _checkpoint(store: Path, record: Record, chance: random.Random) -> None:
    path = store / "checkpoint"
    raw = bytearray(path.read_bytes())
    if raw[64:68] == b"KQ02" and chance.random() < 0.5:  # RocketMQ's, which is gone, promised nothing
        path.unlink()
        return
    raw[35] ^= 4
    path.write_bytes(raw)


def _table(store: Path, record: Record, chance: random.Random) -> None:
    (store / "config" / "topics.json").mkdir(parents=True)


def _end(store: Path, record: Record, chance: random.Random) -> None:
    """Its checkpoint and epochs stay."""
    cut(store, record[0])


def _short_file(store: Path, record: Record, chance: random.Random) -> None:
    """As a copy that was interrupted, anywhere in a record."""
    base = record[0] // SEGMENT * SEGMENT
    os.truncate(store / "commitlog" / f"{base:020d}", record[0] - base + chance.choice([0, 10, 88]))


def _blank(store: Path, record: Record, chance: random.Random) -> None:
    path = store / "checkpoint"
    path.write_bytes(bytes(512) + path.read_bytes()[512:])


Fault = Callable[[Path, Record, random.Random], None]
_FAULTS: dict[str, Fault] = {
    "body": _body,
    "place": _place,
    "property": _property,
    "zeros": _zeros,
    "zeros to the end": _zeros_to_the_end,
    "segment gone": _gone,
    "segment unreadable": _unreadable,
    "checkpoint": _checkpoint,
    "table unreadable": _table,
}
ENDS: dict[str, Fault] = _FAULTS | {"end gone": _end, "file short": _short_file, "checkpoint blank": _blank}
"""With those of what ends early, or says nothing."""


def wrong_steps(seed: int, root: Path, faults: dict[str, Fault] | None = None) -> list[str]:
    """What the page's steps do, or say, and should not."""
    found = hurt(seed, root, faults)
    report = found.group.run()
    words: list[str] = []
    for step in steps(report.findings, report.replicas):
        words += [f"{step}: {text}" for text in _wrong(found, step, report.findings)]
        if words:
            break
    return [f"seed {seed} ({', '.join(found.done)}): {text}" for text in words]


def _wrong(found: Hurt, step: Step, findings: list[Finding]) -> Iterator[str]:
    leads = _LEADS.search(step.why)
    if leads is not None:
        yield from _wrong_leader(found, found.copy(step.replica), found.copy(leads[1]))
    if _CUT in step.why and found.copy(step.replica).history is found.group.last:
        yield from _wrong_cut(found.group, [f for f in findings if f.replica == step.replica])
    if not step.command:
        return
    failed = do(step)
    if failed:
        yield f"it failed: {failed}"
    lost = found.before - found.held()
    if lost:
        yield f"the last copies are gone at {sorted(at for at, _ in lost)}"
    strange = found.strangers() - found.strange
    if strange:
        yield f"what the group left was taken: {sorted((name, at) for name, (at, _) in strange)}"


def _wrong_leader(found: Hurt, own: Copy, leader: Copy) -> Iterator[str]:
    group = found.group
    if leader.history is not group.last:
        yield f"{leader.name} is of a history that the group left"
    others = [copy for copy in found.last() if copy is not own]
    if any(copy.end > leader.end for copy in others) and group.confirmed > leader.end:
        yield f"{leader.name} lacks what was confirmed"


def _wrong_cut(group: Group, findings: list[Finding]) -> Iterator[str]:
    for f in findings:
        if f.kind == "divergent_suffix" and f.severity != INFO:
            yield f"the group's history is cut at {f.phys_offset}"
        if f.kind == "extra_tail" and f.severity != INFO and f.phys_offset < group.confirmed:
            yield f"what was confirmed is cut at {f.phys_offset}"
