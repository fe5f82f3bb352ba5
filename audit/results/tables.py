"""Which command brings a table of ``config/`` back? A broker keeps two of each: ``.json``, ``.json.bak``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from typing import Final

from audit.reading.layout import Replica

FROM_ITS_COPY: Final = (
    "With its broker stopped, this takes the other of its two copies. keelmq writes both alike, so what was "
    "changed by hand goes: change it in the running group. Of RocketMQ's, .bak is the table before its last "
    "change."
)


def from_its_copy(file: str, own: Replica, wrong: Collection[str]) -> str:
    """``wrong``: of the store's files those that a finding names. Empty: there is no copy that is right."""
    table = file.removesuffix(".bak")
    other = table if file != table else f"{table}.bak"
    if not table.startswith("config/") or not table.endswith(".json") or other in wrong:
        return ""
    source, target = os.path.join(own.location, other), os.path.join(own.location, file)
    return f"cp -p {shlex.quote(source)} {shlex.quote(target)}" if os.path.isfile(source) else ""
