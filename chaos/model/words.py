"""How does a trace name brokers and records, so that whoever reads one alone understands it?"""

from __future__ import annotations

from collections.abc import Collection

from chaos.model.world import Record


def named(ids: Collection[int]) -> str:
    """Brokers by id: {1, 3}."""
    return f"{{{', '.join(map(str, sorted(ids)))}}}" if ids else "nobody"


def records(count: int) -> str:
    return "1 record" if count == 1 else f"{count or 'no'} records"


def gone(count: int) -> str:
    """The end of a log that went with the power."""
    return f"with it its last {records(count)}" if count else "no record"


def told(record: Record, at: int) -> str:
    """A record by its place in the log, which begins with 1, and the epoch of its writer."""
    return f"record {at + 1} of the log, written in epoch {record[0]},"
