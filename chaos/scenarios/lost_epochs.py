"""What may become of the epoch files of a broker that is down?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from chaos.faults import OwnFault

EPOCH_FILE: Final = "/store/epochFileCheckpoint"
COPIES: Final = {
    "first": (EPOCH_FILE,),
    "second": (f"{EPOCH_FILE}.bak",),
    "both": (EPOCH_FILE, f"{EPOCH_FILE}.bak"),
}
HOW: Final = ("gone", "rot", "cut")
ROT_BITS: Final = (0, 9, 18, 27, 36)
"""More than are turned back."""


@dataclass(frozen=True, slots=True)
class LoseEpochs(OwnFault):
    """Of a dead broker's epoch file one copy or ``both`` are ``gone``, have many changed bits (``rot``) or
    end in the middle (``cut``); one that runs is left alone."""

    name: ClassVar[str] = "lose_epochs"
    copies: str = "both"
    how: str = "rot"

    def simulated(self, cluster: Any, node: str) -> bool:
        if cluster.nodes[node].state not in ("down", "off"):
            return False
        machine = cluster.nodes[node].machine
        struck = False
        for path in COPIES[self.copies]:
            inode = machine.find(path)
            if inode is None or inode.size == 0:
                continue
            struck = True
            if self.how == "gone":
                machine.lose_file(path)
            elif self.how == "cut":
                inode.truncate(inode.size // 2)
                inode.sync()
            else:
                for bit in ROT_BITS:
                    machine.flip(path, bit)
        return struck
