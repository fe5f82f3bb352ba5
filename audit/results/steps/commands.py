"""The commands of steps, for a shell where the stores are as here. Whether one is right is not asked here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from audit.findings import Finding
from audit.reading.layout import Replica
from audit.rows.intervals import Interval

REPAIR: Final = "keelmq store repair"


def repair(own: Replica, sources: Sequence[Replica]) -> str:
    return " ".join([REPAIR, _path(own), *(f"--from {_path(r)}" for r in sources)])


def copy(span: Interval, own: Replica, source: Replica, *, over_empty: bool) -> str:
    """The segments that begin there. ``over_empty``: in the place of a file without a byte."""
    bases = [s.base for s in source.segments if span[0] <= s.base < span[1]]
    files = [shlex.quote(f"{source.location}/{_segment(base)}") for base in bases]
    if not files:
        return ""
    into = own.location + "/commitlog/"
    command = f"cp --no-clobber {' '.join(files)} {shlex.quote(into)}"
    if not over_empty:
        return command
    return f"find {shlex.quote(f'{into}{span[0]:020d}')} -empty -delete && {command}"


def overwrite(span: Interval, own: Replica, source: Replica) -> str:
    base = span[0] // own.segment_bytes * own.segment_bytes
    file, at = _segment(base), span[0] - base
    files = [shlex.quote(f"{name}={r.location}/{file}") for name, r in (("if", source), ("of", own))]
    stretch = f"skip={at} seek={at} count={span[1] - span[0]}"
    in_bytes = "bs=1M iflag=skip_bytes,count_bytes oflag=seek_bytes"
    return f"dd {' '.join(files)} {stretch} {in_bytes} conv=notrunc,fsync"


def sized(own: Replica, offset: int) -> str:
    """The file of a place made a segment long: with zeros where it was shorter, or was not there."""
    path = shlex.quote(f"{own.location}/{_segment(offset // own.segment_bytes * own.segment_bytes)}")
    return f"truncate --size={own.segment_bytes} {path}"


def export(f: Finding, own: Replica) -> str:
    out = shlex.quote(f"{own.name}-suffix-{f.phys_offset}.jsonl")
    told = f"--from {f.phys_offset} --bodies --out {out}"
    return f"keelmq store export {_path(own)} {told}"


def is_of_empty_file(f: Finding, own: Replica) -> bool:
    """A repair takes a segment of 0 bytes for one that is gone."""
    empty = {s.base for s in own.segments if not s.size_bytes}
    return f.kind == "unreadable_region" and f.phys_offset in empty


def _segment(base: int) -> str:
    return f"commitlog/{base:020d}"


def _path(r: Replica) -> str:
    return shlex.quote(r.location)
