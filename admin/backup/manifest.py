"""What does one backup hold? A JSON file that names everything in it by its SHA-256. Pure.

    manifests/20261123T224500.123Z.json    one backup; written last, so what it names is there
    objects/<sha256>                       a segment of the CommitLog, or a table, as it was
    objects/<sha256>.damaged               empty: that object was found to be damaged: to be written anew

The same bytes are one object, so a backup of the same store adds what is new: the segments that were filled
since, the begun part of the last one, and the tables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Final

import msgspec

from model.errors import MqError

VERSION: Final = 1
_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z", re.ASCII)
_SHA: Final = re.compile(r"[0-9a-f]{64}")
_TABLE: Final = re.compile(r"(config/)?[A-Za-z0-9_-][A-Za-z0-9_.-]*")


class CannotBackUp(MqError):
    """A backup was not made, read or restored; the text says why."""


class Damaged(CannotBackUp):
    """A part of a backup is missing, or is not what it was."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it was. ``mtime_ns``: of the file, to know it again."""

    sha256: str
    size: int
    mtime_ns: int = 0


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``segments``: of the CommitLog by the offset they begin at, bytes; each has ``segment_bytes`` but the
    last, of which ``size`` are taken. ``tables``: by their paths below the store. ``source``: where the store
    was."""

    made_ms: int
    source: str
    segment_bytes: int
    segments: dict[int, Part]
    tables: dict[str, Part]
    version: int = VERSION
    checksum: str = ""
    """As it is written alone: the SHA-256 of the rest. Versions before 29 November 2026 wrote none."""

    @property
    def begin(self) -> int:
        """First byte of the CommitLog."""
        return min(self.segments, default=0)

    @property
    def end(self) -> int:
        """Where the CommitLog ends."""
        last = max(self.segments, default=None)
        return 0 if last is None else last + self.segments[last].size

    @property
    def parts(self) -> list[Part]:
        return [*self.segments.values(), *self.tables.values()]


def name_of(made_ms: int) -> str:
    """Names sort by time."""
    at = datetime.fromtimestamp(made_ms / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{made_ms % 1000:03}Z"


def ms_of(name: str) -> int | None:
    """When a backup of that name was made, by the clock then; None: none has that name."""
    if _NAME.fullmatch(name) is None:
        return None
    try:
        at = datetime.strptime(name, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return round(at.timestamp() * 1000)


def next_name(names: Sequence[str], made_ms: int) -> str:
    """The time it is made, or one later than all ``names``, oldest first: where the clock was ahead once, the
    last backup is the newest one all the same. Raises CannotBackUp."""
    last_ms = ms_of(names[-1]) if names else None
    try:
        return name_of(made_ms if last_ms is None else max(made_ms, last_ms + 1))
    except (ValueError, OverflowError):
        raise CannotBackUp(f"no backup can be newer than {names[-1]}: remove that one") from None


def encode(manifest: Manifest) -> bytes:
    sealed = msgspec.structs.replace(manifest, checksum=_checksum(manifest))
    return msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n"


def _checksum(manifest: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, checksum=""))).hexdigest()


def decode(data: bytes, name: str) -> Manifest:
    """Raises CannotBackUp: ``name`` is no manifest, or of a later version, or names what cannot be."""
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CannotBackUp(f"{name} is no manifest of a backup: {error}") from None
    if found.version != VERSION:
        raise CannotBackUp(f"{name} is of version {found.version}; this keelmq reads {VERSION}")
    wrong = why_wrong(found)
    if wrong is None and found.checksum not in ("", _checksum(found)):
        wrong = "its checksum is another one's"
    if wrong is not None:
        raise CannotBackUp(f"{name} is damaged: {wrong}")
    return msgspec.structs.replace(found, checksum="")


def is_table(name: str) -> bool:
    """Whether a file of that path below a store can be one of its tables; an editor's copy is none."""
    return _TABLE.fullmatch(name) is not None


def why_wrong(manifest: Manifest) -> str | None:
    """None when its parts make one log; names lead nowhere else."""
    for part in manifest.parts:
        if _SHA.fullmatch(part.sha256) is None or part.size < 0:
            return f"{part.sha256[:80]!r} is no SHA-256 of a part"
    for table in manifest.tables:
        if not is_table(table):
            return f"{table[:80]!r} is no table"
    starts, size = sorted(manifest.segments), manifest.segment_bytes
    if size <= 0:
        return f"segments of {size} bytes"
    for start, following in zip_longest(starts, starts[1:]):
        taken = manifest.segments[start].size
        if start < 0 or start % size or taken > size:
            return f"the segment at {start} does not fit"
        if following not in (None, start + size):
            return f"behind the segment at {start} one is missing"
        if following is not None and taken != size:
            return f"the segment at {start} is not whole"
    return None
