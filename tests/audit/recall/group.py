"""A stopped group of equal stores, in which damage is done at places that chance chooses."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit.findings import Finding
from broker.tables import change_file
from tests.audit.stores import SEGMENT, LogWriter, copies, enter, look, patch, queue_file, record

MESSAGES = 90
QUEUES = 2
PER_FILE = 10


@dataclass(slots=True)
class Touched:
    """Where damage was done. Nothing: it has no place of its own, and is named anywhere on its replica."""

    spans: list[tuple[int, int]] = field(default_factory=list)  # of the log
    places: set[tuple[int, int]] = field(default_factory=set)  # queue and queue offset
    files: set[str] = field(default_factory=set)  # below the store
    keys: set[str] = field(default_factory=set)  # of messages

    def has(self, f: Finding) -> bool:
        if not (self.spans or self.places or self.files or self.keys):
            return True
        named = range(f.queue_offset, f.queue_offset + max(1, f.records))
        return (
            (f.phys_offset >= 0 and any(f.overlaps(begin, end) for begin, end in self.spans))
            or any(queue_id == f.queue_id and place in named for queue_id, place in self.places)
            or any(f.segment in (file, file.rpartition("/")[0]) for file in self.files)
            or f.uniq_key in self.keys
        )


class Group:
    """Segments of acknowledged messages in two queues of one topic, with entries and small files."""

    def __init__(self, root: Path, replicas: int, seed: int, messages: int = MESSAGES) -> None:
        self.chance = random.Random(f"{seed} {replicas}")
        self.messages = messages
        self.writer = LogWriter(root / "origin")
        for n in range(messages):
            self.writer.add(body(n), key=f"m{n:03d}", queue_id=n % QUEUES, stamp=1000 + n, tags=f"tag{n % 3}")
        self.epochs = [(1, 0), (3, self.offset(messages // 3)), (4, self.offset(messages * 2 // 3))]
        self.writer.confirm(epochs=self.epochs)
        self.writer.write_queues(PER_FILE)
        config = self.writer.root / "config"
        config.mkdir()
        topic = {"topicName": "T", "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6}
        (config / "topics.json").write_text(json.dumps({"topicConfigTable": {"T": topic}}))
        (config / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:3,1:5}}}')
        self.stores = copies(self.writer.root, replicas)
        self.ledger = root / "acked.jsonl"
        self.rows: list[dict[str, Any]] = [dict(row) for row in self.writer.rows]
        self.write_ledger()
        self.next_place = messages // QUEUES  # of queue 0
        self.derived = False
        self.segment = self.chance.randrange(1, len(self.segments_of(self.stores[0])) - 1)  # of those damaged
        self.aim(self.chance.randrange(replicas), self.chance.randrange(8, messages - 12))

    def aim(self, at: int, n: int) -> None:
        """What is done next is done to this replica and message."""
        self.at, self.n = at, n
        self.touched = Touched()

    def write_ledger(self) -> None:
        self.ledger.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    @property
    def store(self) -> Path:
        return self.stores[self.at]

    @property
    def name(self) -> str:
        return f"r{self.at}"

    def offset(self, n: int) -> int:
        return int(str(self.writer.rows[n]["phys_offset"]))

    def size(self, n: int) -> int:
        return int(struct.unpack(">i", look(self.writer.root, self.offset(n), 4))[0])

    def place(self, n: int) -> tuple[int, int]:
        """Queue and queue offset."""
        return n % QUEUES, n // QUEUES

    def patch(self, at: int, raw: bytes, stores: list[Path] | None = None) -> None:
        """Bytes at a physical offset."""
        self.touched.spans.append((at, at + len(raw)))
        for store in stores or [self.store]:
            patch(store, at, raw)

    def flip(self, at: int) -> None:
        """One bit of the byte at a physical offset."""
        self.patch(at, bytes([look(self.store, at, 1)[0] ^ 1 << self.chance.randrange(8)]))

    def flip_in(self, file: str, within: range) -> None:
        """One bit of a file below the store."""
        self.touched.files.add(file)
        raw = bytearray((self.store / file).read_bytes())
        raw[self.chance.choice(within)] ^= 1 << self.chance.randrange(8)
        (self.store / file).write_bytes(raw)

    def file(self, name: str) -> Path:
        """A file below the store, which is damaged."""
        self.touched.files.add(name)
        return self.store / name

    def rewrite(self, n: int, stores: list[Path], **other: Any) -> None:
        """The message anew, of the same size and with a right CRC."""
        queue_id, place = self.place(n)
        values: dict[str, Any] = {
            "place": place,
            "queue_id": queue_id,
            "body": body(n),
            "key": f"m{n:03d}",
            "stamp": 1000 + n,
            **other,
        }
        own = f"UNIQ_KEY\x01{values['key']}\x02TAGS\x01tag{n % 3}\x02".encode()
        raw = record(
            self.offset(n),
            values["place"],
            values["body"],
            queue_id=values["queue_id"],
            stamp=values["stamp"],
            properties=own,
        )
        assert len(raw) == self.size(n), "the next record would not follow"
        self.patch(self.offset(n), raw, stores)
        self.touched.places.add(self.place(n))
        self.touched.keys.add(f"m{n:03d}")

    def append(self, stores: list[Path], text: bytes, place: int, key: str) -> None:
        """One more message of queue 0 behind the end."""
        raw = record(self.writer.end, place, text, key=key, queue_id=0, stamp=3000)
        self.patch(self.writer.end, raw, stores)
        self.writer.end += len(raw)
        self.next_place = max(self.next_place, place + 1)

    def write_changes(self, store: Path) -> None:
        """Two changes beside the consumers' offsets."""
        table = store / "config" / "consumerOffset.json"
        table.write_text(table.read_text().replace("{", f'{{"{change_file.UP_TO}":7,', 1))
        told = ({"offsetTable": {"T@g": {0: 4 + n}}, "part": True} for n in range(2))
        lines = [change_file.encode(8 + n, change) for n, change in enumerate(told)]
        table.with_name(f"{table.name}.changes").write_bytes(b"".join(lines))

    def entry(self, n: int) -> tuple[int, int, int]:
        queue_id, place = self.place(n)
        raw = queue_file(self.store, "T", queue_id, place, PER_FILE).read_bytes()
        offset, size, tags = struct.unpack_from(">qiq", raw, place % PER_FILE * 20)
        return offset, size, tags

    def set_entry(self, n: int, entry: bytes) -> None:
        self.touched.places.add(self.place(n))
        enter(self.store, "T", *self.place(n), entry, PER_FILE)

    def segments(self) -> list[Path]:
        return self.segments_of(self.store)

    @staticmethod
    def segments_of(store: Path) -> list[Path]:
        return sorted((store / "commitlog").iterdir())

    def remove(self, segment: Path) -> None:
        self.touched.spans.append((int(segment.name), int(segment.name) + SEGMENT))
        segment.unlink()


def body(n: int) -> bytes:
    return f"m-{n:03d}".encode() * 5
