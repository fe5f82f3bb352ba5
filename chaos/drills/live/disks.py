"""Whose disk lied and then lost power? After that nothing is promised of messages: its log may hold any."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.faults import LyingSync, PowerFail
from chaos.history import Happened, HistoryEvent


def lied(events: Iterable[HistoryEvent]) -> list[str]:
    """Servers that lost power while syncs returned without having been made, or after: what was not written
    then is not known to be written since."""
    lying: set[str] = set()
    found: dict[str, None] = {}
    struck = (event for event in events if isinstance(event, Happened))
    for event in sorted(struck, key=lambda one: one.at_ms):
        if event.name == LyingSync.name and event.fields.get("lying"):
            lying.add(event.node)
        elif event.name == PowerFail.name and event.node in lying:
            found[event.node] = None
    return list(found)
