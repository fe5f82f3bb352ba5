"""All targets, by name."""

from __future__ import annotations

from typing import Final

from tests.fuzz.targets import acl, asked, audits, disk, peers, tables, wire
from tests.fuzz.targets.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target for room in (wire, asked, peers, disk, tables, acl, audits) for target in room.TARGETS
}
