"""Which consumer groups does this broker know, and what may they do?

``config/subscriptionGroup.json``: ``{"dataVersion", "forbiddenTable", "subscriptionGroupTable"}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from broker.tables.modes import RequestModes
from broker.tables.moved import Moved, changed_since, differing, note_replaced
from broker.tables.quota import Quota
from broker.tables.table_text import TableText
from model.config import BrokerConfig
from model.topic import PERM_READ, DataVersion, SubscriptionGroupConfig, group_name_error
from runtime.turns import Slice

BOOT_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
_BROADCAST_GROUPS: Final = frozenset(
    {"CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"}
)


class Groups:
    """The group table; unknown groups come into being at their first use when the configuration allows."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._quota = Quota(config.auto_groups_rate, config.auto_groups_max, now_ms)
        self.table: dict[str, SubscriptionGroupConfig] = {}
        self.text = TableText(lambda: list(self.table), lambda name: self.table[name].to_json())
        self._moved = Moved[str]()
        self._forbidden: dict[str, dict[str, int]] = {}  # group -> topic -> bits
        self._forbidden_text = TableText(lambda: list(self._forbidden), lambda name: self._forbidden[name])
        self.version = DataVersion()
        self.modes = RequestModes()
        self.epoch = 0
        self.on_change: list[Callable[[], None]] = []

    def boot(self, stored: dict[str, Any] | None) -> bool:
        """Take the stored table and add the system groups; True when something was added."""
        if stored is not None:
            self.version = DataVersion.from_json(stored.get("dataVersion"))
            self.table = _parse(stored.get("subscriptionGroupTable") or {})
            self._forbidden = _parse_forbidden(stored)
        missing = [name for name in BOOT_GROUPS if name not in self.table]
        for name in missing:
            self.table[name] = SubscriptionGroupConfig(
                name, consume_broadcast_enable=name in _BROADCAST_GROUPS or name not in BOOT_GROUPS
            )
        self.text.clear()
        self._forbidden_text.clear()
        if missing:
            self.version = self.version.next(self._now_ms())
        return bool(missing)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, created when automatic creation is on, the name can be one, and there is room for it:
        then its clients ask again."""
        found = self.table.get(name)
        if found is not None or not self._config.auto_create_group or group_name_error(name):
            return found
        if self._quota.take(len(self.table)):
            found = SubscriptionGroupConfig(name)
            self.put(found)
        return found

    def may_read(self, name: str, topic: str) -> bool:
        """Whether nobody forbade the group to read the topic."""
        return not self._forbidden.get(name, {}).get(topic, 0) & PERM_READ

    def forbid(self, name: str, topic: str, *, forbidden: bool) -> None:
        """Say whether the group may not read the topic. Other bits of the table stay."""
        topics = self._forbidden.get(name, {})
        bits = topics.get(topic, 0)
        wanted = bits | PERM_READ if forbidden else bits & ~PERM_READ
        if wanted == bits:
            return
        topics = {**topics, topic: wanted}
        topics = {one: held for one, held in topics.items() if held > 0}
        self._forbidden = {**self._forbidden, name: topics}
        if not topics:
            del self._forbidden[name]
        self._changed(name)

    def put(self, *groups: SubscriptionGroupConfig) -> None:
        for group in groups:
            self.table[group.name] = group
        self._changed(*(group.name for group in groups))

    def delete(self, name: str) -> bool:
        if self.table.pop(name, None) is None:
            return False
        self._forbidden.pop(name, None)
        self._changed(name)
        return True

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._changed()

    def taken_over(self, life: str, epoch: int) -> None:
        """All that was answered before ``epoch`` is in it, and on the disk: see ``DataVersion``."""
        self.version = dataclasses.replace(self.version, life=life, taken_epoch=epoch)
        self.set_epoch(epoch)

    def adopt(self, wrapper: dict[str, Any]) -> bool:
        """Replace the table by a master's (answer of 201) if it differs; True when it did."""
        version = DataVersion.from_json(wrapper.get("dataVersion"))
        table = _parse(wrapper.get("subscriptionGroupTable") or {})
        forbidden = _parse_forbidden(wrapper)
        same = version.order() == self.version.order() and (table, forbidden) == (self.table, self._forbidden)
        if same and "part" not in wrapper:
            return False
        if "part" in wrapper:
            names = [str(name) for name in wrapper["part"]]
            for name in names:
                if name in table:
                    self.table[name] = table[name]
                else:
                    self.table.pop(name, None)
                self.text.changed(name, name in table)
            self._moved.add(names)
        else:
            names = sorted(differing(self.table, table))
            self.table = table
            note_replaced(names, table, self._moved, self.text)
        self._forbidden = forbidden
        self._forbidden_text.clear()
        self.version = version
        for hook in self.on_change:
            hook()
        return True

    def check_invariants(self) -> None:
        self.text.check_invariants()
        self._forbidden_text.check_invariants()

    async def prepare(self, slice_: Slice, indent: bool = False) -> None:
        """Write in slices what ``to_text`` would have to. Raises as ``slice_``."""
        await self.text.prepare(slice_, indent)
        await self._forbidden_text.prepare(slice_, indent)

    def to_json(self) -> dict[str, Any]:
        return self._wrapped(
            {name: group.to_json() for name, group in self.table.items()}, dict(self._forbidden)
        )

    def to_text(self, indent: bool = False) -> dict[str, Any]:
        """``to_json`` with its tables already written."""
        return self._wrapped(self.text.whole(indent), self._forbidden_text.whole(indent))

    def changed_since(self, mark: int | None) -> tuple[dict[str, Any], int]:
        """What ``adopt`` of a table as of ``mark`` needs to become this one (None: the whole table), and the
        mark of now."""
        return changed_since(mark, self._moved, self.text, self.table, self._wrapped)

    async def prepare_since(self, mark: int, slice_: Slice) -> None:
        """Write in slices what ``changed_since`` would have to. Raises as ``slice_``."""
        await self.text.prepare_part(self._moved.since(mark) or (), slice_)
        await self._forbidden_text.prepare(slice_)

    @property
    def mark(self) -> int:
        """Counts the changes; ``changed_since`` takes one of its values."""
        return self._moved.mark

    def _wrapped(self, table: Any, forbidden: Any = None) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "forbiddenTable": self._forbidden_text.whole() if forbidden is None else forbidden,
            "subscriptionGroupTable": table,
        }

    def _changed(self, *names: str) -> None:
        for name in names:
            self.text.changed(name, name in self.table)
            self._forbidden_text.changed(name, name in self._forbidden)
        self._moved.add(names)
        self.version = self.version.next(self._now_ms(), max(self.epoch, self.version.state_version))
        for hook in self.on_change:
            hook()


def parse_group(name: str, raw: Any) -> SubscriptionGroupConfig:
    """One entry; one that was parsed before stays. Raises KeyError, TypeError, ValueError."""
    if isinstance(raw, SubscriptionGroupConfig):
        return raw
    return SubscriptionGroupConfig.from_json({"groupName": name, **raw})


def _parse(table: dict[str, Any]) -> dict[str, SubscriptionGroupConfig]:
    return {name: parse_group(name, raw) for name, raw in table.items()}


def _parse_forbidden(stored: dict[str, Any]) -> dict[str, dict[str, int]]:
    table = stored.get("forbiddenTable") or {}
    return {group: {t: int(bits) for t, bits in topics.items()} for group, topics in table.items()}
