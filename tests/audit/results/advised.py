"""Groups with damage on any copies, and an operator who does what the page says, step by step."""

from __future__ import annotations

import random
import re
import shlex
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from audit.results.steps.repair import Step
from runtime.os_env import OsDisk
from store.offline.repair import repair
from tests.audit.plants import MESSAGES, ledger_at
from tests.audit.stores import SEGMENT, LogWriter, copies, look, patch, queue_file, record, write_epochs

_LAST = 20
"""So many records at the log's end may be another history's."""
Message = tuple[int, bytes]
"""Where a record stands, and its bytes."""


@dataclass
class Damaged:
    """A group. ``messages``: all that its replicas held before they were damaged; ``done``: by replica."""

    stores: list[Path]
    writer: LogWriter
    ledger: Path | None
    messages: set[Message]
    done: list[str] = field(default_factory=list)

    def right(self) -> set[Message]:
        """The messages that some replica holds, as they were written."""
        return {m for m in self.messages if any(_holds(store, m) for store in self.stores)}


def damaged(root: Path, seed: int) -> Damaged:
    """2 to 5 replicas, every other group with a ledger, and 1 to 4 faults on any of the copies."""
    chance = random.Random(seed)
    writer = LogWriter(root / "origin")
    for n in range(MESSAGES):
        writer.add(f"m-{n}".encode() * 5, key=f"m{n}", queue_id=n % 2, stamp=1000 + n, tags=f"tag{n % 3}")
    writer.confirm(epochs=[(1, 0), (3, _at(writer, 20))])
    writer.write_queues()
    stores = copies(writer.root, chance.randint(2, 5))
    ledger = ledger_at(root, writer.rows) if seed % 2 else None
    sizes = {at: struct.unpack(">i", look(writer.root, at, 4))[0] for at in _places(writer)}
    group = Damaged(stores, writer, ledger, {(at, look(writer.root, at, size)) for at, size in sizes.items()})
    for _ in range(chance.randint(1, 4)):
        fault = chance.choice(_FAULTS)
        n = chance.choice((10, 11, 40, 41, 60, chance.randrange(MESSAGES)))
        hit = chance.sample(range(len(stores)), chance.choice((1, 1, 2, chance.randint(1, len(stores)))))
        for at in hit:
            try:
                fault(group, at, n, chance)
            except (FileNotFoundError, IsADirectoryError):
                continue  # the file is gone by another fault
            group.done.append(f"{fault.__name__} of {n} on r{at}")
    return group


def carry_out(step: Step, group: Damaged, chance: random.Random) -> str:
    """Do what a step says; returns why it came to nothing, or an empty text. What only words say is not done,
    but for an empty store, which becomes a copy of any other replica's: nobody knows who leads."""
    if "with an empty store" in step.why:
        own = next(store for store in group.stores if store.name == step.replica)
        shutil.rmtree(own)
        shutil.copytree(chance.choice([store for store in group.stores if store != own]), own)
    return do(step)


def do(step: Step) -> str:
    """Run its command, if it has one; returns why it failed."""
    if step.command.startswith("keelmq store repair"):
        own_path, *sources = [part for part in shlex.split(step.command)[3:] if part != "--from"]
        outcome = repair(OsDisk(), own_path, sources)
        nothing = not outcome.repaired and not outcome.entries and outcome.indexed is None
        return f"left: {outcome.left}" if outcome.left and nothing else ""
    if step.command.startswith(("cp ", "dd ", "find ", "truncate ")):
        done = subprocess.run(step.command, shell=True, check=False, capture_output=True)
        return done.stderr.decode() if done.returncode else ""
    return ""


def reads(step: Step) -> list[tuple[str, int, int]]:
    """The replicas that a command reads from, each with the stretch it takes; of a repair with all."""
    if step.command.startswith("keelmq store repair"):
        return [(Path(name).name, 0, 1 << 62) for name in re.findall(r"--from (\S+)", step.command)]
    command = step.command.split(" && ")[-1]
    into = [part for part in shlex.split(command)[2:] if "/commitlog/" in part]
    if command.startswith("cp "):
        files = [(Path(part).parts[-3], int(Path(part).name)) for part in into[:-1]]
        return [(name, base, base + SEGMENT) for name, base in files]
    told = re.search(r" if=(\S+) of=\S+ skip=(\d+) .*count=(\d+)", f" {step.command[3:]}")
    if told is None:
        return []
    begin = int(Path(told[1]).name) + int(told[2])
    return [(Path(told[1]).parts[-3], begin, begin + int(told[3]))]


def _holds(store: Path, message: Message) -> bool:
    at, raw = message
    path = store / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}"
    return path.is_file() and look(store, at, len(raw)) == raw


def _places(writer: LogWriter) -> list[int]:
    return [_at(writer, n) for n in range(MESSAGES)]


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _size(group: Damaged, n: int) -> int:
    return int(struct.unpack(">i", look(group.writer.root, _at(group.writer, n), 4))[0])


def _body(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    patch(group.stores[replica], _at(group.writer, n) + 88, bytes([64 + replica]))


def _altered(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    """Another body with its CRC: alike on several replicas only if a ledger tells who is right."""
    mark = "X" if group.ledger is not None and chance.random() < 0.7 else chr(ord("A") + replica)
    body = f"{mark}-{n}".encode() * 5
    row = group.writer.rows[n]
    props = f"UNIQ_KEY\x01m{n}\x02TAGS\x01tag{n % 3}\x02".encode()
    place, at = int(str(row["queue_offset"])), _at(group.writer, n)
    where = {"key": f"m{n}", "queue_id": n % 2, "stamp": 1000 + n, "properties": props}
    patch(group.stores[replica], at, record(at, place, body, **where))  # type: ignore[arg-type]


def _property(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    patch(group.stores[replica], _at(group.writer, n) + _size(group, n) - 2, bytes([48 + replica]))


def _magic(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    patch(group.stores[replica], _at(group.writer, n) + 4, b"\0")


def _own_place(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    patch(group.stores[replica], _at(group.writer, n) + 28, b"\x11")


def _queue_place(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    patch(group.stores[replica], _at(group.writer, n) + 27, bytes([100 + replica]))


def _zeros(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    patch(group.stores[replica], _at(group.writer, n), bytes(_size(group, n)))


def _gone(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    _file(group, replica, n).unlink()


def _unreadable(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    _gone(group, replica, n, chance)
    _file(group, replica, n).mkdir()


def _file(group: Damaged, replica: int, n: int) -> Path:
    return group.stores[replica] / "commitlog" / f"{_at(group.writer, n) // SEGMENT * SEGMENT:020d}"


def _table(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    """A small file cannot be read."""
    (group.stores[replica] / "config" / "topics.json").mkdir(parents=True, exist_ok=True)


def _epochs(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    write_epochs(group.stores[replica], [(1, 0), (2, _at(group.writer, 10)), (3, _at(group.writer, 20))])


def _cut(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    at = _at(group.writer, MESSAGES - 1 - n % 4)
    patch(group.stores[replica], at, bytes(SEGMENT - at % SEGMENT))


def _suffix(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    """Its end is another history's, whose messages only this replica has."""
    first = MESSAGES - 1 - n % 6
    at, end = _at(group.writer, first), 0
    patch(group.stores[replica], at, bytes(SEGMENT - at % SEGMENT))
    for k in range(first, MESSAGES):
        row = group.writer.rows[k]
        body = f"own-{replica}-{k}".encode() * chance.choice((1, 2))
        raw = record(
            at, int(str(row["queue_offset"])), body, key=f"own{replica}-{k}", queue_id=k % 2, stamp=9000
        )
        end = at + len(raw)
        if end % SEGMENT < at % SEGMENT:
            break
        patch(group.stores[replica], at, raw)
        group.messages.add((at, raw))
        at = end


def _queue(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    path = queue_file(group.stores[replica], "T", n % 2, n // 2)
    raw = bytearray(path.read_bytes())
    raw[n // 2 % 10 * 20 + 7] ^= 1 + replica
    path.write_bytes(raw)


def _no_queues(group: Damaged, replica: int, n: int, chance: random.Random) -> None:
    shutil.rmtree(group.stores[replica] / "consumequeue")
    (group.stores[replica] / "consumequeue").mkdir()


_FAULTS: list[Callable[[Damaged, int, int, random.Random], None]] = [
    _body,
    _body,
    _altered,
    _altered,
    _property,
    _magic,
    _own_place,
    _queue_place,
    _zeros,
    _gone,
    _unreadable,
    _table,
    _epochs,
    _cut,
    _suffix,
    _queue,
    _no_queues,
]
