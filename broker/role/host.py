"""What does a broker do when its role changes?

``broker.role.manager`` decides when; the host carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.membership.view import TableSource
from ha.master.proposals import Propose
from model.ids import BrokerId, Epoch


@dataclass(frozen=True, slots=True)
class Elected:
    """A master's place: of ``epoch``, with the SyncStateSet as the Controllers gave it. Without Controllers
    ``epoch`` is 0, and nothing is proposed."""

    broker_id: BrokerId
    epoch: Epoch
    members: frozenset[BrokerId]
    set_epoch: int
    propose: Propose | None = None


class RoleHost(Protocol):
    """What changes roles with the broker: implemented by ``broker.role.changes.RoleChanges``, to which
    ``broker.service.Broker`` hands each call.

    ``lead``, ``follow`` and ``fence`` are never two at once; ``drain`` and ``resume`` may come in the middle
    of one. A call may raise DiskError or OSError: then it is made again.
    """

    async def lead(self, elected: Elected) -> None:
        """Become master of its epoch, or stay master in a newer one.

        A partial record at the log's end is truncated before the epoch is recorded, which begins at that end
        (``broker.role.epochs.note_epoch``), as the last step that may fail; both, and the rebuilt queue
        offsets, come before the HA service serves slaves; and that before writes are taken, while dispatch
        may still catch up. A crash in between leaves an epoch without bytes at worst, and the next start
        makes queue offsets anew. When called, nothing is copied from a former master any more.
        """

    async def take_tables(self, broker_id: BrokerId, epoch: Epoch, sources: Sequence[TableSource]) -> None:
        """Take over the tables that others have, and this broker lacks, before it leads ``epoch``. Raises
        MqError when it cannot: nothing is served without them."""

    def announce(self, epoch: Epoch) -> None:
        """NameServers shall hear now that this broker is master of ``epoch``; ``lead`` follows, nothing is
        served before."""

    async def follow(
        self, broker_id: BrokerId, epoch: Epoch, master_address: str | None, master_ha_address: str | None
    ) -> None:
        """Take no more writes, then be slave of ``master_address``; an address unknown yet is None."""

    async def fence(self) -> None:
        """Be neither: take nothing, answer nothing, copy nothing. Not at the end of a lease, where the role
        stays; when nobody is master since a newer epoch, the Controllers went back, or this broker failed for
        good."""

    async def drain(self, transfer_target: BrokerId, timeout_s: float) -> bool:
        """Stay master, take no more writes; whether within ``timeout_s`` all answers have left and the slave
        ``transfer_target`` has the whole log and what consumers committed before."""

    def transfer_target(self) -> BrokerId | None:
        """The slave a handover would go to now, or None."""

    def resume(self) -> None:
        """Take writes again, if still master."""

    def lacks(self) -> str | None:
        """What this broker lost and must copy from a master before it can be one, or None."""
