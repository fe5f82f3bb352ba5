"""How are the clients of a group told to consume a topic: do they pull, or pop?

``config/messageRequestMode.json``: ``{"messageRequestModeMap": {topic: {group: {"consumerGroup", "mode",
"popShareQueueNum", "topic"}}}}``, as the original keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

PULL: Final = "PULL"
POP: Final = "POP"
MODES_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class RequestMode:
    """``share``: so many other clients share each client's queues when they pop; 0 or less: all."""

    mode: str
    share: int = 0


class RequestModes:
    """What operators have set, by topic and group."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], RequestMode] = {}
        self.revision = 0
        self.on_change: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._table)

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._table.get((topic, group))

    def put(self, topic: str, group: str, mode: RequestMode) -> None:
        self._table[topic, group] = mode
        self._changed()

    def load(self, stored: dict[str, Any] | None) -> None:
        """Raises ValueError, TypeError, AttributeError for what is no such table."""
        if stored is not None:
            self._table = _parse(stored)

    def adopt(self, wrapper: dict[str, Any]) -> bool:
        """Replace the table by a master's; True when it differed."""
        table = _parse(wrapper)
        if table == self._table:
            return False
        self._table = table
        self._changed()
        return True

    def to_json(self) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for (topic, group), mode in self._table.items():
            found.setdefault(topic, {})[group] = {
                "consumerGroup": group,
                "mode": mode.mode,
                "popShareQueueNum": mode.share,
                "topic": topic,
            }
        return {"messageRequestModeMap": found}

    def _changed(self) -> None:
        self.revision += 1
        for hook in self.on_change:
            hook()


def parse_mode(raw: dict[str, Any]) -> RequestMode:
    """Raises ValueError, TypeError."""
    mode = str(raw.get("mode") or PULL).upper()
    if mode not in (PULL, POP):
        raise ValueError(f"mode {mode[:20]!r} is neither PULL nor POP")
    share = int(raw.get("popShareQueueNum") or 0)
    if not -(2**31) <= share < 2**31:
        raise ValueError("popShareQueueNum is not a 32-bit number")
    return RequestMode(mode, share)


def _parse(wrapper: dict[str, Any]) -> dict[tuple[str, str], RequestMode]:
    return {
        (str(topic), str(group)): parse_mode(raw)
        for topic, groups in (wrapper.get("messageRequestModeMap") or {}).items()
        for group, raw in groups.items()
    }
