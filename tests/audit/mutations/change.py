"""One change of one file: what it is, how it is drawn, what it makes of the file's bytes. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

KINDS: Final = ("byte", "zero", "cut", "truncate", "repeat", "copy", "swap", "remove")
"""``cut``: a range is gone, what follows moves up; ``truncate``: the file ends there; ``repeat``: a range
comes twice, what follows moves down; ``copy``: it is written over what follows; ``swap``: two ranges change
places."""

FILES: Final = {
    "commitlog": 24,
    "consumequeue": 20,
    "index": 20,
    "table": 15,
    "epochs": 6,
    "checkpoint": 6,
    "timercheck": 4,
    "identity": 4,
    "lock": 1,
}
"""Kinds of files, and how often each is drawn."""
RANGE_BYTES_MAX: Final = 8192
USED_SHARE: Final = 0.8
"""Of all places so many lie in the used part of a file: up to its last byte that is not zero, and 64 more."""


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes [``at``, ``at + size``) of ``file`` of ``replica``; ``other``: the value a byte becomes, or where
    the second range of a swap begins."""

    number: int
    replica: str
    file: str
    kind: str
    at: int = 0
    size: int = 0
    other: int = 0

    @property
    def until(self) -> int:
        """Where the changed bytes end, as far as they keep their places."""
        if self.kind == "swap":
            return max(self.at, self.other) + self.size
        return self.at + self.size * (2 if self.kind == "copy" else 1)

    @property
    def begin(self) -> int:
        return min(self.at, self.other) if self.kind == "swap" else self.at

    @property
    def moves(self) -> bool:
        """Whether everything behind it stands elsewhere, or is gone."""
        return self.kind in ("cut", "truncate", "repeat", "remove")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def of(self, data: bytes) -> bytes | None:
        """The file's bytes behind the change; None when it is removed."""
        at, end = self.at, self.at + self.size
        if self.kind == "remove":
            return None
        if self.kind == "byte":
            return data[:at] + bytes([self.other]) + data[at + 1 :]
        if self.kind == "zero":
            return data[:at] + bytes(self.size) + data[end:]
        if self.kind == "cut":
            return data[:at] + data[end:]
        if self.kind == "truncate":
            return data[:at]
        if self.kind == "repeat":
            return data[:end] + data[at:end] + data[end:]
        if self.kind == "copy":
            return (data[:end] + data[at:end] + data[end + self.size :])[: len(data)]
        assert self.kind == "swap", f"{self.kind} is no kind of change"
        one, two = sorted((at, self.other))
        size = self.size
        first, second = data[one : one + size], data[two : two + size]
        return data[:one] + second + data[one + size : two] + first + data[two + size :]


def kind_of(file: str) -> str:
    """Which of ``FILES`` a path below a store's root is."""
    folder, _, name = file.partition("/")
    if folder in ("commitlog", "consumequeue", "index", "checkpoint", "lock"):
        return folder
    if file == "config/timercheck":
        return "timercheck"
    if folder == "config":
        return "table"
    return "epochs" if name == "" and folder.startswith("epochFile") else "identity"


def draw(number: int, seed: int, stores: Mapping[str, Mapping[str, bytes]]) -> Change:
    """Change ``number`` of a campaign; it changes something. ``stores``: replica -> path -> bytes."""
    chance = random.Random(f"mutation:{seed}:{number}")
    while True:
        replica = chance.choice(sorted(stores))
        files: dict[str, list[str]] = {}
        for file in sorted(stores[replica]):
            files.setdefault(kind_of(file), []).append(file)
        of_kind = chance.choices(
            [k for k in FILES if k in files], [w for k, w in FILES.items() if k in files]
        )
        file = chance.choice(files[of_kind[0]])
        data = stores[replica][file]
        change = _draw(chance, number, replica, file, data)
        if change is not None and change.of(data) != data:
            return change


def _draw(chance: random.Random, number: int, replica: str, file: str, data: bytes) -> Change | None:
    weights = (8, 5, 3, 2, 3, 3, 4, 1)
    kind = chance.choices(KINDS, weights)[0] if data else "remove"
    if kind == "remove":
        return Change(number, replica, file, kind, 0, len(data))
    at = _place(chance, data)
    if kind == "byte":
        return Change(number, replica, file, kind, at, 1, (data[at] + chance.randrange(1, 256)) % 256)
    if kind == "truncate":
        return Change(number, replica, file, kind, at, len(data) - at)
    size = min(int(2 ** chance.uniform(0, RANGE_BYTES_MAX.bit_length())), len(data) - at)
    if kind != "swap":
        return Change(number, replica, file, kind, at, size)
    other = _place(chance, data)
    size = min(size, len(data) - other, abs(other - at))
    return Change(number, replica, file, kind, at, size, other) if size else None


def _place(chance: random.Random, data: bytes) -> int:
    used = min(len(data), len(data.rstrip(b"\0")) + 64)
    return chance.randrange(used if chance.random() < USED_SHARE else len(data))
