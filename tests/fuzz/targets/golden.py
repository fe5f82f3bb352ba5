"""Seeds: real frames, bodies and files of ``tests/golden``."""

from __future__ import annotations

import functools
import io
import json
import tarfile

from remoting.codec import Command, decode
from tests import GOLDEN


@functools.cache
def frames() -> tuple[bytes, ...]:
    found: dict[bytes, None] = {}
    for path in sorted((GOLDEN / "remoting").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            found[bytes.fromhex(json.loads(line)["hex"])] = None
    return tuple(found)


@functools.cache
def commands() -> tuple[Command, ...]:
    return tuple(map(decode, frames()))


def headers(serialize: int) -> list[bytes]:
    """Header bytes of one dialect."""
    return [f[8 : 8 + (int.from_bytes(f[5:8], "big"))] for f in frames() if f[4] == serialize]


def bodies_of(*codes: int) -> list[bytes]:
    """The bodies of requests; of any code without one named."""
    return [c.body for c in commands() if c.body and (not codes or c.code in codes) and len(c.body) < 4000]


@functools.cache
def store_files(name: str, part: str, size: int = 4096) -> tuple[bytes, ...]:
    """The first bytes of files of a golden store whose path holds ``part``."""
    found = []
    with tarfile.open(GOLDEN / "store" / f"{name}.tar.gz") as archive:
        for member in archive:
            if member.isfile() and part in member.name:
                file = archive.extractfile(member)
                assert isinstance(file, io.BufferedReader | tarfile.ExFileObject)
                found.append(file.read(size))
    return tuple(found)
