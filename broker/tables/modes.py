"""How are the clients of a group told to consume a topic: do they pull, or pop?

``config/messageRequestMode.json``: ``{"messageRequestModeMap": {topic: {group: {"consumerGroup", "mode",
"popShareQueueNum", "topic"}}}}``, as the original keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from broker.tables.moved import Moved
from remoting.bodies import Members

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
        self._table: dict[str, dict[str, RequestMode]] = {}  # by topic; what is in it is never changed
        self._count = 0
        self._moved = Moved[tuple[str, str]]()
        self.on_change: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return self._count

    @property
    def revision(self) -> int:
        """Counts the changes; ``since`` takes one of its values."""
        return self._moved.mark

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._table.get(topic, {}).get(group)

    def put(self, topic: str, group: str, mode: RequestMode) -> None:
        groups = self._table.get(topic, {})
        self._count += group not in groups
        self._table[topic] = {**groups, group: mode}
        self._moved.add([(topic, group)])
        self._tell()

    def load(self, stored: dict[str, Any] | None) -> None:
        """Raises ValueError, TypeError, AttributeError for what is no such table."""
        if stored is not None:
            self._replace(_parse(stored))

    def adopt(self, wrapper: dict[str, Any]) -> bool:
        """Replace the table by a master's, or with ``part`` only the modes it names; True when that changed
        anything."""
        table = _parse(wrapper)
        if wrapper.get("part"):
            found = [(t, g, m) for t, groups in table.items() for g, m in groups.items()]
            changed = [(t, g, m) for t, g, m in found if self.get(t, g) != m]
            for topic, group, mode in changed:
                self.put(topic, group, mode)
            return bool(changed)
        if table == self._table:
            return False
        self._replace(table)
        self._moved.forget()
        self._tell()
        return True

    def since(self, mark: int) -> dict[str, Any] | None:
        """What ``adopt`` of a table as of ``mark`` needs to become this one; None when that cannot be
        told."""
        moved = self._moved.since(mark)
        if moved is None:
            return None
        changed: dict[str, dict[str, RequestMode]] = {}
        for topic, group in moved:
            changed.setdefault(topic, {})[group] = self._table[topic][group]
        return {"messageRequestModeMap": Members(_topics(changed)), "part": True}

    def _replace(self, table: dict[str, dict[str, RequestMode]]) -> None:
        self._table = table
        self._count = sum(map(len, table.values()))

    def to_json(self) -> dict[str, Any]:
        found = {
            topic: {group: _told(topic, group, mode) for group, mode in groups.items()}
            for topic, groups in self._table.items()
        }
        return {"messageRequestModeMap": found}

    def shown(self) -> dict[str, Any]:
        """``to_json`` as of this moment, each entry of which is made when it is written."""
        return {"messageRequestModeMap": Members(_topics(dict(self._table)))}

    def _tell(self) -> None:
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


def _told(topic: str, group: str, mode: RequestMode) -> dict[str, Any]:
    return {"consumerGroup": group, "mode": mode.mode, "popShareQueueNum": mode.share, "topic": topic}


def _topics(table: dict[str, dict[str, RequestMode]]) -> Iterator[tuple[str, Members]]:
    for topic, groups in table.items():
        yield topic, Members(_groups(topic, groups))


def _groups(topic: str, groups: dict[str, RequestMode]) -> Iterator[tuple[str, dict[str, Any]]]:
    for group, mode in groups.items():
        yield group, _told(topic, group, mode)


def _parse(wrapper: dict[str, Any]) -> dict[str, dict[str, RequestMode]]:
    return {
        str(topic): {str(group): parse_mode(raw) for group, raw in groups.items()}
        for topic, groups in (wrapper.get("messageRequestModeMap") or {}).items()
        if groups
    }
