"""What did operators write into a NameServer's table of namespaces and keys? A change makes another table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class KvTable:
    """Values by namespace and key. Changes are made to a copy, which the caller saves and then adopts."""

    def __init__(self, table: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._table = {namespace: dict(values) for namespace, values in (table or {}).items()}
        self.ordered: bytes | None = None
        """What brokers are told of it, once it was written."""

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        return self._table.get(namespace)

    def with_value(self, namespace: str, key: str, value: str | None) -> KvTable:
        """A copy in which ``key`` has ``value``, or is gone when that is None."""
        changed = KvTable()
        changed._table = dict(self._table)
        values = changed._table[namespace] = dict(self._table.get(namespace, {}))
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        if not values:
            del changed._table[namespace]
        return changed

    def items(self) -> Iterable[tuple[str, Mapping[str, str]]]:
        """Each namespace and its values."""
        return self._table.items()

    def to_json(self) -> dict[str, Any]:
        return {"configTable": self._table}
