"""What do the tables of ``config/`` say, with what changed since they were written?

keelmq's last member of a table is ``"keelmqCrc32"``, the CRC-32 of all before it. RocketMQ's have none.

``NAME.json.changes``, keelmq's, tells what changed since, one line a change:

    8 hex digits   CRC-32 of all behind them, up to the line's end
    number         one more than that of the line before
    JSON object    what changed

``NAME.json`` says in ``keelmqChanges`` up to which number it has them; without that member no line is for it.
A last line that a crash cut short counts for nothing. docs/formats/store.md has the rules.

This decoder is the audit's own.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from audit.reading.storage import Storage
from audit.rows.numbers import QUEUE_LAST, of_digits, of_json

SUFFIX: Final = ".changes"
_UP_TO: Final = "keelmqChanges"
_BEFORE: Final = b',\n\t"keelmqCrc32":"'
_AFTER: Final = b'"\n}'
_SEAL_BYTES: Final = len(_BEFORE) + 8 + len(_AFTER)
_FLIPS_MAX: Final = 12
_NAMED_BY_NUMBER: Final = re.compile(rb"([{,]\s*)(-?\d+)(\s*:)")
_CRC_DIGITS: Final = 8
_BLOCK_BYTES: Final = 512


@dataclass(slots=True)
class Changes:
    """``later``: what the table does not have yet, in order, up to what cannot be read; ``problem``: why that
    is no write which a crash cut short."""

    later: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""


def parsed(raw: bytes) -> Any:
    """A JSON value, whose numbers may be names without quotes, and have 64 bits at most; None when it is
    none."""
    try:
        return _json(raw)
    except (ValueError, RecursionError):
        pass
    try:
        return _json(_NAMED_BY_NUMBER.sub(rb'\1"\2"\3', raw))
    except (ValueError, RecursionError):
        return None


def _json(raw: bytes) -> Any:
    return json.loads(raw, parse_int=of_json, parse_constant=_not_json)


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def is_sealed(raw: bytes) -> bool:
    """Does a table end in a CRC, or in what was one?"""
    trailer = raw[-_SEAL_BYTES:]
    if len(trailer) < _SEAL_BYTES:
        return False
    own = trailer[: len(_BEFORE)] + trailer[-len(_AFTER) :]
    return (int.from_bytes(own) ^ int.from_bytes(_BEFORE + _AFTER)).bit_count() <= _FLIPS_MAX


def problem_of(raw: bytes) -> str:
    """Why this is no table as it was written; empty if it is one."""
    if is_sealed(raw):
        trailer = raw[-_SEAL_BYTES:]
        crc = b"%08x" % zlib.crc32(raw[:-_SEAL_BYTES])
        if trailer != _BEFORE + crc + _AFTER:
            return f"its CRC is {crc.decode()}, it ends in {trailer!r}"
    elif b"keelmqCrc32" in raw:
        return "its CRC is not its last member"
    return "" if isinstance(parsed(raw), dict) else f"not a JSON object: {raw[:40]!r}"


def is_empty(raw: bytes) -> bool:
    """Is it a table without a row? A broker that never had one has no file."""
    table = parsed(raw)
    if not isinstance(table, dict):
        return False
    rows = {name: value for name, value in table.items() if isinstance(value, dict | list)}
    rows.pop("dataVersion", None)
    return any(name.endswith("Table") for name in rows) and not any(rows.values())


def changed_table(storage: Storage, file: str) -> tuple[dict[str, Any] | None, Changes]:
    """A table, from ``.bak`` if it is not as it was written, and what changed since. Raises OSError."""
    # The changes first: a table that is written meanwhile has them, and they are passed over.
    raw = _content(storage, file + SUFFIX)
    copies = (_content(storage, copy) for copy in (file, f"{file}.bak"))
    table = next((parsed(copy) for copy in copies if copy is not None and not problem_of(copy)), None)
    number = table.get(_UP_TO) if table is not None else None
    if raw is None or not isinstance(number, int):
        return table, Changes()
    return table, _read(raw, number)


def _content(storage: Storage, file: str) -> bytes | None:
    try:
        return storage.read(file, 0, storage.size(file))
    except OSError:  # none, or one that cannot be read, which its look says
        return None


def _read(raw: bytes, base: int) -> Changes:
    found, last, at = Changes(), 0, 0
    while at < len(raw):
        end = raw.find(b"\n", at)
        line = raw[at : end if end >= 0 else len(raw)]
        told = _line(line) if end >= 0 else None
        if told is None:
            if not _torn(raw, at):
                found.problem = f"at byte {at}: not a change: {line[:40]!r}"
            break
        number, change = told
        # A number without a line is that of a write that failed: the table written then counts it.
        if not last < number <= max(last, base) + 1:
            found.problem = f"at byte {at}: change {number} follows {last or base}"
            break
        last, at = number, end + 1
        if number > base:
            found.later.append(change)
    return found


def _line(line: bytes) -> tuple[int, dict[str, Any]] | None:
    content = line[_CRC_DIGITS:]
    _, number, text = [*content.split(b" ", 2), b"", b""][:3]
    told = of_digits(number)
    if line[:_CRC_DIGITS] != b"%08x" % zlib.crc32(content) or told < 0:
        return None
    change = parsed(text)
    return (told, change) if isinstance(change, dict) else None


def _torn(raw: bytes, at: int) -> bool:
    """Is what begins at ``at`` the last line, of which not all was written? Its end is not there, or all that
    a block of the disk holds of it are zeros. One whose end is another byte was written as a whole."""
    end = raw.find(b"\n", at)
    if end < 0:
        return _line(raw[at:-1]) is None
    blocks = [max(block, at) for block in range(at // _BLOCK_BYTES * _BLOCK_BYTES, end + 1, _BLOCK_BYTES)]
    ends = [*blocks[1:], end + 1]
    return end == len(raw) - 1 and any(not any(raw[a:b]) for a, b in zip(blocks, ends, strict=True))


def queues_of(storage: Storage) -> dict[str, int]:
    """How many queues ``config/topics.json`` and its changes give each topic; none if it cannot be read.
    Raises OSError."""
    table, changes = changed_table(storage, "config/topics.json")
    if table is None:
        return {}
    try:
        topics = dict(table["topicConfigTable"])
        for change in changes.later:
            for name in change["part"]:
                topics.pop(name, None)
            topics.update(change["topicConfigTable"])
        return {
            name: max(of_json(topic.get(of, 0), QUEUE_LAST) for of in ("readQueueNums", "writeQueueNums"))
            for name, topic in topics.items()
        }
    except (ValueError, KeyError, AttributeError, TypeError):
        return {}  # half written, or nobody's: then no topic is expected to have a queue


def offsets_of(storage: Storage, file: str) -> dict[tuple[str, str, int], int]:
    """How far each consumer group is, by topic, group and queue; none if that cannot be read. Raises
    OSError."""
    table, changes = changed_table(storage, file)
    if table is None:
        return {}
    try:
        by_name = dict(table.get("offsetTable") or {})
        for change in changes.later:
            by_name.update(change["offsetTable"])  # one that was dropped has no queues
        return _offsets(by_name)
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def offsets_problem(raw: bytes) -> str:
    """Why this table tells no offsets; empty if it does, or has none."""
    try:
        _offsets(parsed(raw).get("offsetTable") or {})
    except (AttributeError, TypeError, ValueError) as error:
        return f"not a table of offsets: {str(error)[:60]}"
    return ""


def _offsets(by_name: dict[str, Any]) -> dict[tuple[str, str, int], int]:
    """Raises AttributeError, TypeError, ValueError."""
    found = {}
    for name, queues in by_name.items():
        topic, _, group = name.partition("@")
        for queue, offset in queues.items():
            found[topic, group, of_json(queue, QUEUE_LAST)] = of_json(offset)
    return found
