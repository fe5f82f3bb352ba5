"""All targets, by name."""

from __future__ import annotations

from typing import Final

from tests.fuzz.targets import acl, disk, peers, tables, wire
from tests.fuzz.targets.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (*wire.TARGETS, *peers.TARGETS, *disk.TARGETS, *tables.TARGETS, *acl.TARGETS)
}
