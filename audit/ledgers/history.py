"""The history of a drill, or of who else notes each send and its end: what was sent, and what became of it.

Its lines are events, each with a ``type``: ``invoke``, then one of ``ok``, ``fail`` (refused) and ``unknown``
(``chaos.history``). A ledger has the messages that were acknowledged only.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from audit.reading.storage import open_file
from audit.sources.location import shown
from model.errors import ConfigError

OK: Final = 0
UNKNOWN: Final = 1
REFUSED: Final = 2
NO_SENDS: Final = ("read", "observed", "happened", "asked")
"""Events of a drill's history (``chaos.history``) that are no sends. One that is unknown might be."""

SENT: Final = pa.schema(
    [
        ("uniq_key", pa.string()),
        ("topic", pa.string()),
        ("sent_crc", pa.int64()),  # of the body, 31 bits
        ("outcome", pa.int8()),  # OK, UNKNOWN or REFUSED
    ]
)
CRC_MASK: Final = 0x7FFFFFFF  # a record keeps 31 bits
_READ_BYTES: Final = 1 << 20
Open = Callable[[str], tuple[Any, int]]
"""As ``open_file``."""
_BATCH: Final = 20_000


def lines_of(file: Any) -> Iterator[bytes]:
    """The lines of a binary file, each with its end, also of one that can only be read on."""
    rest = b""
    while data := file.read(_READ_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def is_blank(line: bytes) -> bool:
    """Is it empty, or the mark of UTF-8 alone, which an editor puts before all?"""
    return not line.strip().removeprefix(BOM_UTF8).strip()


def json_object(line: bytes, where: str) -> dict[str, Any]:
    """Raises ConfigError, which names ``where``; OSError for a last line that is cut: its file is being
    written, or is not whole."""
    try:
        row = json.loads(line)
    except RecursionError:
        raise ConfigError(f"{where}: not a JSON object: it is nested too deep") from None
    except ValueError as error:
        if line.lstrip().startswith(b"{") and not line.endswith(b"\n"):
            raise OSError(
                5, "its last line is cut: give it whole, or again when it was written", where
            ) from None
        raise ConfigError(f"{where}: not a JSON object: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: expected a JSON object, found {type(row).__name__}")
    return row


def objects(
    path: str, begin: int = 0, end: int = 1 << 62, opened: Open = open_file
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines that begin in a range of bytes, and where. Raises ConfigError, OSError."""
    file, _ = opened(path)
    name = shown(path)
    with file:
        if begin:
            file.seek(begin - 1)
        lines = lines_of(file)
        # In a range, what stands first is the rest of a line that begins before.
        at = begin - 1 + len(next(lines, b"")) if begin else 0
        for line in lines:
            if at >= end:
                return
            if not is_blank(line):
                yield f"{name} at byte {at}", json_object(line, f"{name} at byte {at}")
            at += len(line)


def is_history(path: str) -> bool:
    """Raises OSError."""
    try:
        return any(row.get("type") is not None for _, row in islice(objects(path), 1))
    except ConfigError:
        return False


def acknowledged(path: str, opened: Open = open_file) -> Iterator[tuple[str, dict[str, Any]]]:
    """Lines of a ledger: the sends that were acknowledged, in the order in which they were."""
    for where, invoke, end in _sends(path, opened):
        if end.get("type") == "ok":
            yield where, _line(where, invoke, end)


def sent(path: str, opened: Open = open_file) -> Iterator[pa.Table]:
    """SENT: a row a send."""
    outcomes = {"ok": OK, "fail": REFUSED}
    sends = _sends(path, opened)
    while some := list(islice(sends, _BATCH)):
        try:
            rows = [
                (
                    i["key"],
                    i["queue"][0],
                    i["body_crc"] & CRC_MASK,
                    outcomes.get(end.get("type", ""), UNKNOWN),
                )
                for _, i, end in some
            ]
            yield pa.table(list(map(list, zip(*rows, strict=True))), schema=SENT)
        except (KeyError, TypeError, IndexError, pa.ArrowInvalid) as error:
            raise ConfigError(f"{shown(path)}: not events of a history: {error!r}") from None


def _sends(path: str, opened: Open) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each send with its end; without one, with nothing."""
    begun: dict[str, dict[str, Any]] = {}
    where = shown(path)
    for where, event in objects(path, opened=opened):
        try:
            if event.get("type") == "invoke":
                begun[event["key"]] = event
            elif event.get("type") in ("ok", "fail", "unknown"):
                yield where, begun.pop(event["key"]), event
            elif event.get("type") not in NO_SENDS:
                raise ConfigError(f"{where}: not an event of a history: type {event.get('type')!r}")
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{where}: not an event of a history: {error!r}") from None
    for invoke in begun.values():
        yield where, invoke, {}


def _line(where: str, invoke: dict[str, Any], ok: dict[str, Any]) -> dict[str, Any]:
    try:
        topic, _, queue_id = ok["queue"]
        return {
            "uniq_key": ok["key"],
            "topic": topic,
            "queue_id": queue_id,
            "queue_offset": ok["queue_offset"],
            "phys_offset": ok["physical_offset"],
            "body_crc": invoke["body_crc"] & CRC_MASK,
            "begun_ms": invoke["at_ms"],
            "acked_ms": ok["at_ms"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: not an event of a history: {error!r}") from None
