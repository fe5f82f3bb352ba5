"""Where is each member, and which incarnation of it counts?

An id as it is said in a handshake: the id alone for incarnation 0, ``id\\n2`` for incarnation 2, ``id\\n``
for an end that was never admitted. Configured ids have no line ends.

An end that was never admitted may become any incarnation, so of a seat that was replaced it says too little:
the old machine with an empty directory says the same as the new one. It also says the Raft address it has,
and gets such a seat only if the log says that the seat is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NoReturn

from model.errors import PeerError

log = logging.getLogger(__name__)


class Replaced(PeerError):
    """The other end is a member that another machine replaced."""


class Roster:
    """The members as this one knows them. ``own``: which incarnation this member is; None = none yet."""

    def __init__(
        self, node_id: str, addresses: Mapping[str, str], own: Callable[[], int | None] = lambda: 0
    ) -> None:
        self.node_id = node_id
        self.addresses = dict(addresses)
        self._configured = dict(addresses)
        self._own = own
        self._replaced: dict[str, tuple[int, str]] = {}
        self._told: set[tuple[str, int | None, int]] = set()

    @property
    def none_replaced(self) -> bool:
        return not self._replaced

    def update(self, replaced: Mapping[str, tuple[int, str]]) -> list[str]:
        """``replaced``: id -> (incarnation, Raft address). Returns the ids of the other members whose seat
        changed: links to them must end."""
        before, self._replaced = self._replaced, dict(replaced)
        others = {*before, *replaced} - {self.node_id}
        moved = {peer: replaced[peer][1] for peer in others & replaced.keys()}
        self.addresses = {**self._configured, **moved}
        return [peer for peer in sorted(others) if before.get(peer) != replaced.get(peer)]

    def _counts(self, peer: str) -> int:
        return self._replaced[peer][0] if peer in self._replaced else 0

    def own_label(self) -> str:
        return _label(self.node_id, self._own())

    def label_of(self, peer: str) -> str:
        """How this end names ``peer`` when it dials it."""
        return _label(peer, self._counts(peer))

    def own_address(self) -> str | None:
        """What this end says beside its id when it dials; None once it was admitted."""
        return self._configured[self.node_id] if self._own() is None else None

    def check_claim(self, label: str, address: str | None) -> str:
        """The id a dialing end says that it has. ``address``: its own, as it says; None = it says none.

        Raises Replaced: another machine has the seat.
        """
        peer, incarnation = _read(label)
        counts = self._counts(peer)
        if incarnation is not None and incarnation < counts:
            self._refuse(
                (peer, incarnation, counts),
                f"{peer} was replaced: incarnation {incarnation} came, {counts} counts. End it for good",
            )
        if incarnation is None and peer in self._replaced and address != self._replaced[peer][1]:
            self._refuse(
                (peer, None, counts),
                f"{peer} was replaced and is at {self._replaced[peer][1]}: a machine with an empty directory "
                f"that says {address!r} is not it. End it for good, or give it that address",
            )
        return peer

    def _refuse(self, what: tuple[str, int | None, int], why: str) -> NoReturn:
        if what not in self._told:
            # It tries again several times a second, for ever.
            self._told.add(what)
            log.warning("Controller %s: %s", self.node_id, why)
        raise Replaced(why)

    def is_wanted(self, label: str) -> bool:
        """Whether a dialing end looks for this member, in an incarnation it may be."""
        wanted, incarnation = _read(label)
        own = self._own()
        return wanted == self.node_id and (own is None or own >= (incarnation or 0))


def _label(node_id: str, incarnation: int | None) -> str:
    if incarnation is None:
        return f"{node_id}\n"
    return f"{node_id}\n{incarnation}" if incarnation else node_id


def _read(label: str) -> tuple[str, int | None]:
    node_id, separator, number = label.partition("\n")
    if not separator:
        return node_id, 0
    if not number:
        return node_id, None
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise PeerError(f"it says {label!r} for an id")
    return node_id, int(number)
