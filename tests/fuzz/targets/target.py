"""What is a fuzz target, and how is it run once?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.fakes.disk.memory import FaultyDisk

BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``run`` decodes, and asserts what must hold of what it decoded. ``declared``: the errors that its
    decoder may raise for bytes that are not well. ``weight``: its share of a run, by how cheap it is."""

    name: str
    run: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    seeds: Callable[[], Iterable[bytes]]
    weight: int = 4
    bytes_max: int = BYTES_MAX


def execute(target: Target, data: bytes) -> bool:
    """Whether ``data`` was decoded; anything that is not declared passes through."""
    try:
        target.run(data)
    except target.declared:
        return False
    return True


def stable(value: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
    """decode(encode(x)) == x, and the second encoding is the first."""
    written = encode(value)
    again = decode(written)
    assert again == value, f"decode(encode(x)) is {again!r}, x is {value!r}"
    assert encode(again) == written, "the second encoding is another one"


def disk_with(path: str, data: bytes) -> FaultyDisk:
    """A disk in memory with one file."""
    disk = FaultyDisk()
    parts = path.strip("/").split("/")[:-1]
    disk.makedirs("/" + "/".join(parts))
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    return disk


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
