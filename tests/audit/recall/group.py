"""A stopped group of equal stores, in which damage is done at places that chance chooses."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

from broker.tables import change_file
from tests.audit.stores import LogWriter, copies, enter, look, patch, queue_file, record

MESSAGES = 90
QUEUES = 2
PER_FILE = 10


class Group:
    """Three segments of acknowledged messages in two queues of one topic, with entries and small files."""

    def __init__(self, root: Path, replicas: int, seed: int) -> None:
        self.chance = random.Random(f"{seed} {replicas}")
        self.writer = LogWriter(root / "origin")
        for n in range(MESSAGES):
            self.writer.add(body(n), key=f"m{n:03d}", queue_id=n % QUEUES, stamp=1000 + n, tags=f"tag{n % 3}")
        self.epochs = [(1, 0), (3, self.offset(MESSAGES // 3)), (4, self.offset(MESSAGES * 2 // 3))]
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
        self.at = self.chance.randrange(replicas)  # the replica that is damaged, and
        self.n = self.chance.randrange(8, MESSAGES - 12)  # the message

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

    def flip(self, at: int, stores: list[Path] | None = None) -> None:
        """One bit of the byte at a physical offset."""
        bit = 1 << self.chance.randrange(8)
        for store in stores or [self.store]:
            patch(store, at, bytes([look(store, at, 1)[0] ^ bit]))

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
        for store in stores:
            patch(store, self.offset(n), raw)

    def append(self, stores: list[Path], text: bytes, place: int, key: str) -> None:
        """One more message of queue 0 behind the end, in its queue as well."""
        raw = record(self.writer.end, place, text, key=key, queue_id=0, stamp=3000)
        for store in stores:
            patch(store, self.writer.end, raw)

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
        enter(self.store, "T", *self.place(n), entry, PER_FILE)

    def segments(self) -> list[Path]:
        return sorted((self.store / "commitlog").iterdir())


def body(n: int) -> bytes:
    return f"m-{n:03d}".encode() * 5
