"""Which options does the format ``commitlog`` know, and which of them can a table use? What it cannot use is
named: a misspelt option would read more than was asked for, in silence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from typing import Final

import pyarrow as pa

from audit.reading.storage import open_storage, parse_stores, shown
from model.errors import ConfigError

NAME: Final = "commitlog"
PLACES: Final = ("offsetFrom", "offsetUntil")
TIMES: Final = ("timeFrom", "timeUntil")
DIGITS_MAX: Final = 18
QUEUES: Final = {"topic": "topic", "queueId": "queue_id"}
OF_STREAMS: Final = ("upTo", "startingOffsets", "failOnDataLoss")
STREAMED: Final = ("records", "damage")
"""Tables that a stream has."""
OF_ALL: Final = ("path", "paths", "table", "columns")
PUSHED: Final = "pushFilters"
_SPELT: Final = {name.lower(): name for name in (*PLACES, *TIMES, *QUEUES, *OF_STREAMS, *OF_ALL, PUSHED)}
WANTED: Final = {
    "offsetFrom": "a physical offset, bytes",
    "offsetUntil": "a physical offset, bytes",
    "timeFrom": "ms since 1970",
    "timeUntil": "ms since 1970",
    "queueId": "the number of a queue",
}


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """Spark's options have names of any case."""
    return {name.lower(): value for name, value in options.items()}


def check(table: str, schema: pa.Schema, options: Mapping[str, str], *, stream: bool | None = None) -> None:
    """``stream``: whether the options are those of a stream; None: not known yet. Raises ConfigError."""
    own = {*of_table(table, schema), *((PUSHED,) if not stream else ()), *(OF_STREAMS if stream else ())}
    names = {name.lower() for name in (*own, *OF_ALL, *(OF_STREAMS if stream is None else ()))}
    for given in options:
        name = _SPELT.get(given.lower(), given)  # Spark makes the letters of names small
        if name.lower() in names:
            continue
        if name in OF_STREAMS:
            raise ConfigError(f"format {NAME}: {name} is an option of streams")
        if name == PUSHED:
            raise ConfigError(f"format {NAME}: {name} is no option of streams")
        why = f"table {table} cannot use option {name}" if name in _SPELT.values() else _unknown(name, own)
        listed = ", ".join([*sorted(own), *OF_ALL[2:]])
        also = (
            f"; a stream has {', '.join(OF_STREAMS)} besides" if stream is None and table in STREAMED else ""
        )
        raise ConfigError(f"format {NAME}: {why}; {table} has {listed}{also}")


def _unknown(name: str, own: AbstractSet[str]) -> str:
    near = get_close_matches(name.lower(), [one.lower() for one in (*own, *OF_ALL[2:])], 1)
    return f"there is no option {name}" + (f", but {_SPELT[near[0]]}" if near else "")


def of_table(table: str, schema: pa.Schema) -> tuple[str, ...]:
    """The options that leave rows out, by the columns that it has."""
    placed = "offset" in schema.names or table == "digests"
    timed = "stored_ms" in schema.names
    queues = [name for name, column in QUEUES.items() if column in schema.names]
    return (*(PLACES if placed else ()), *(TIMES if timed else ()), *queues)


def number(name: str, text: str) -> int:
    """Raises ConfigError."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else -1
    if value < 0:
        raise ConfigError(f"format {NAME}: {name}={text!r}: expected {WANTED[name]}")
    return value


def ascending(given: Mapping[str, int]) -> None:
    """Does each stretch end behind its begin? Raises ConfigError."""
    for begin, end in (PLACES, TIMES):
        if begin in given and end in given and given[begin] > given[end]:
            told = f"{begin}={given[begin]} lies behind {end}={given[end]}"
            raise ConfigError(f"format {NAME}: {told}: nothing would be read")


def flag(options: Mapping[str, str], name: str) -> bool:
    """Raises ConfigError on what is neither true nor false."""
    value = lowered(options).get(name.lower(), "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"format {NAME}: {name}={value!r} is neither true nor false")
    return value == "true"


def columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Those that are asked for; none: all. Raises ConfigError."""
    told = lowered(options).get("columns")
    names = tuple(name.strip() for name in (told or "").split(",") if name.strip())
    if told is not None and not names:
        raise ConfigError(f"format {NAME}: columns names no column")
    return names


def paths(options: Mapping[str, str]) -> list[str]:
    """Of ``load("a,b")`` and of ``load(["a", "b"])``. Raises ConfigError when there is none."""
    given = lowered(options)
    told = given.get("path", "").split(",")
    if "paths" in given:  # what Spark makes of a list
        told += json.loads(given["paths"])
    # A blank behind a comma is none of the path, unless it is.
    found = [path if os.path.exists(path) else path.strip() for path in told if path.strip()]
    if not found:
        raise ConfigError(f"format {NAME}: load() needs the path of a store, or a list of them")
    return found


def look(table: str, given: list[str]) -> None:
    """Is there something to read? Raises ConfigError, which is told where the query is planned."""
    if table == "ledger":
        for path in given:
            if "://" not in path and not os.path.exists(path):
                raise ConfigError(f"format {NAME}: {path}: no such ledger")
        return
    for spec in parse_stores(given):
        storage = open_storage(spec.location)
        try:
            there = storage.exists("commitlog")
        except OSError:
            there = True  # why it cannot be read is told where it is
        finally:
            storage.close()
        if not there:
            raise ConfigError(f"format {NAME}: {shown(spec.location)}: no commitlog, so this is no store")
