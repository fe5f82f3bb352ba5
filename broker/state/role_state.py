"""What is this broker in its group? One frozen value: role, id, epoch, master."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from model.ids import NO_EPOCH, BrokerId, Epoch

Role = Literal["master", "slave", "fenced"]

_NONE: Final = BrokerId(-1)


@dataclass(frozen=True, slots=True)
class RoleState:
    """``broker_id`` is the one the Controllers gave, -1 before; ``epoch`` is the known master's."""

    role: Role = "fenced"
    broker_id: BrokerId = _NONE
    epoch: Epoch = NO_EPOCH
    master_address: str | None = None

    @property
    def is_master(self) -> bool:
        return self.role == "master"


class RoleHolder(Protocol):
    """Where a broker's one ``RoleState`` is held: ``broker/state/current_role``."""

    @property
    def state(self) -> RoleState: ...

    def set(self, state: RoleState) -> None:
        """From now on this is the role; whatever reads it sees it at once."""
