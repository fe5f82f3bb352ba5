"""What a repair left, in few rows: the log's own first, and one for all entries of a queue, or keys of the
index, that are left for one reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

Row = dict[str, Any]
_NUMBER: Final = re.compile(r"-?\d+")
_MADE_OF_LOG: Final = ("cq_", "index_")


def condensed(damage: Iterable[tuple[Row, str]]) -> list[Row]:
    """``damage``: rows of ``verify``, each with why it is left. What is made of the log follows from that."""
    rows: dict[tuple[str, ...], Row] = {}
    for number, (place, why) in enumerate(damage):
        made = place["kind"].startswith(_MADE_OF_LOG)
        queue = "/".join(place["file"].split("/")[:3])
        key = (place["kind"], queue, _NUMBER.sub("#", why)) if made else (str(number),)
        row = rows.get(key)
        if row is None:
            where = {name: place[name] for name in ("kind", "physicalOffset", "until")}
            rows[key] = where | {"file": place["file"], "why": why, "count": 1}
        else:
            row["physicalOffset"] = min(row["physicalOffset"], place["physicalOffset"])
            row["until"] = max(row["until"], place["until"])
            row["count"] += 1
    return sorted(rows.values(), key=lambda row: row["kind"].startswith(_MADE_OF_LOG))
