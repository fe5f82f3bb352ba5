"""Which command brings a table of ``config/``, or the epoch file, back? A broker keeps two of each: the
second one's name ends with ``.bak``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from typing import Final

from audit.reading.layout import Replica
from audit.reading.small.beside import EPOCHS
from audit.reading.small.epoch_lines import parse_epochs
from audit.results.steps.advice import Advice, Phase

_EPOCHS_BYTES_MAX: Final = 1 << 20
FROM_ITS_COPY: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this takes the other of its two copies. keelmq writes both alike, so what was "
    "changed by hand goes: change it in the running group. Of RocketMQ's, .bak is the table before its last "
    "change.",
)


def from_its_copy(file: str, own: Replica, wrong: Collection[str]) -> str:
    """``wrong``: of the store's files those that a finding names. Empty: there is no copy that is right."""
    table = file.removesuffix(".bak")
    other = table if file != table else f"{table}.bak"
    if not table.startswith("config/") or not table.endswith(".json") or other in wrong:
        return ""
    source, target = os.path.join(own.location, other), os.path.join(own.location, file)
    return f"cp -p {shlex.quote(source)} {shlex.quote(target)}" if os.path.isfile(source) else ""


def epochs_from_copy(own: Replica, replicas: Sequence[Replica], wrong: Collection[str]) -> str:
    """The same of the epoch file: its copy has to tell what another replica's does, up to where this log
    ends. Of RocketMQ's it is the file before its last change."""
    copied = f"{EPOCHS}.bak"
    source, target = os.path.join(own.location, copied), os.path.join(own.location, EPOCHS)
    if copied in wrong or not os.path.isfile(source) or os.path.isdir(target):
        return ""
    try:
        with open(source, "rb") as file:
            told, problem = parse_epochs(file.read(_EPOCHS_BYTES_MAX))
    except OSError:
        return ""
    alike = (r.epochs for r in replicas if r is not own and r.epochs)
    known = any(told == [entry for entry in of if entry[1] < own.end or entry in told] for of in alike)
    return f"cp -p {shlex.quote(source)} {shlex.quote(target)}" if known and not problem else ""
