"""How is a damaged range of this broker's log copied from another replica, and what do others get of ours?

READ_LOG_RANGE (7701, ours alone; docs/formats/store.md) asks a broker of the same group for bytes of its log.
It answers only for bytes that are confirmed and not damaged there, and only while its log is verified: it is
a master, or a slave with a working link to the master of its epoch. Any other log may hold records that will
be cut. The answer tells the epoch, and counts only where both brokers are in the same one. A slave asks its
master first, then the other members; a master asks its slaves, by the addresses the NameServers have.
``store/heal/repair`` checks the bytes before they are written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from broker.context import BrokerContext
from model.codes import Request, Response
from model.errors import DiskError, MqError, Refused
from remoting.codec import Command
from remoting.headers import need, need_int
from remoting.service import Connection, RemotingClient
from runtime.backoff import Backoff
from runtime.loops import UNTIL_WOKEN, level_triggered
from runtime.report.lasting import lasting
from store.files.record import BadRecord
from store.heal.repair import Wanted

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
CALL_S: Final = 5.0
RETRY_FIRST_MS: Final = 500
RETRY_MAX_MS: Final = 30_000


def verified(context: BrokerContext) -> int:
    """The epoch our log is verified in. Raises Refused: what is here may still be cut."""
    epoch = context.ha.verified_epoch
    if epoch is None:
        raise Refused("this broker's log may still be cut: it follows no master yet")
    return epoch


def need_same(context: BrokerContext, answer: Command) -> None:
    """Raise Refused unless the answering broker is in our epoch: then both logs follow one master."""
    theirs, ours = need_int(answer.ext, "epoch"), verified(context)
    if theirs != ours:
        raise Refused(f"that is of epoch {theirs}, we are in {ours}")


class LogRepair:
    """``run`` is one task for the life of the broker; it rests while nothing is damaged.

    ``members`` gives the addresses of the group's brokers, as far as anybody knows them.
    """

    def __init__(
        self, context: BrokerContext, client: RemotingClient, members: Callable[[], Awaitable[list[str]]]
    ) -> None:
        self.members = members
        self._context = context
        self._client = client
        self._backoff = Backoff(context.env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        self._wake = asyncio.Event()
        self._is_alone = False
        """Did they who know the members name no other one, the last time?"""
        context.store.damage.on_change.append(self.soon)

    def soon(self) -> None:
        """Ask at once: there is new damage, or another master."""
        self._backoff.reset()
        self._wake.set()

    # What others ask

    async def read(self, connection: Connection, request: Command) -> Command | None:
        """Answer READ_LOG_RANGE: up to ``size`` bytes from ``offset``, not crossing a segment."""
        context, store = self._context, self._context.store
        if need(request.ext, "brokerName") != context.config.broker_name:
            raise Refused(f"this broker is of the group {context.config.broker_name}")
        epoch = verified(context)
        offset, size = need_int(request.ext, "offset"), need_int(request.ext, "size")
        if not 0 < size <= PIECE_BYTES:
            raise Refused(f"size={size}: expected 1 to {PIECE_BYTES}")
        if not store.log.min_offset <= offset < offset + size <= store.confirmed:
            text = f"[{offset}, {offset + size}) is not in [{store.log.min_offset}, {store.confirmed})"
            raise Refused(f"{text}, what is confirmed here")
        if store.damage.overlaps(offset, offset + size):
            raise Refused(f"[{offset}, {offset + size}) is damaged here, too")
        return request.reply(ext={"epoch": str(epoch)}, body=store.log.read(offset, size))

    # What we ask

    @lasting
    async def run(self) -> None:
        rest = Backoff(self._context.env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        await level_triggered(
            self._turn,
            self._wake,
            UNTIL_WOKEN,
            rest,
            "the repair",
            # Cut or deleted meanwhile, or unreadable.
            on_error=lambda error: log.error("the repair broke off: %s", error),
        )

    async def _turn(self) -> float:
        """One try; how long to rest behind it. Not mended is no error: the replicas may be away."""
        if self._is_needed():
            await self.once()
        return self._backoff.next_s() if self._is_needed() else UNTIL_WOKEN

    def _is_needed(self) -> bool:
        store = self._context.store
        return bool(store.damage.ranges or store.repairer.doubts())

    async def once(self) -> int:
        """Try to mend every range from every replica; returns how many are whole again."""
        mended = 0
        if self._context.ha.verified_epoch is None:
            return mended  # the damage itself may be cut
        peers = await self.peers()
        if not peers and self._is_alone and not self._context.config.enable_controller_mode:
            self._context.store.repairer.believe_doubted()
        for address in peers:
            for wanted in self._context.store.repairer.wanted():
                try:
                    data = await self.fetch(address, wanted.begin, wanted.until)
                    await self._context.store.repairer.mend(wanted, data)
                except BadRecord as bad:
                    log.error("%s gave nothing for [%d, %d): %s", address, *_range(wanted), bad)
                except DiskError as error:
                    log.error("cannot repair [%d, %d): %s", *_range(wanted), error)
                    return mended
                except (MqError, OSError) as error:
                    log.info("%s does not mend [%d, %d): %s", address, *_range(wanted), error)
                else:
                    mended += 1
        return mended

    async def peers(self) -> list[str]:
        """Addresses of the other replicas, the master's first."""
        own, master = self._context.config.address, self._context.role_state.master_address
        found = [master] if master is not None else []
        self._is_alone = False
        try:
            members = await self.members()
            found += members
            self._is_alone = bool(members) and not set(members) - {own, self._context.config.group_address}
        except (MqError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.info("nobody tells the members of the group: %s", error)
        # Under the group address a master would ask itself.
        ours = (own, self._context.config.group_address)
        return [address for address in dict.fromkeys(found) if address not in ours]

    async def fetch(self, address: str, begin: int, until: int) -> bytes:
        """Bytes [``begin``, ``until``) of the log of the broker at ``address``, which is verified in our
        epoch. Raises MqError, OSError."""
        pieces: list[bytes] = []
        at = begin
        while at < until:
            ext = {
                "brokerName": self._context.config.broker_name,
                "offset": str(at),
                "size": str(min(until - at, PIECE_BYTES)),
            }
            answer = await self._client.call(address, Command(int(Request.READ_LOG_RANGE), ext), CALL_S)
            if answer.code != Response.SUCCESS or not answer.body:
                raise Refused(f"{answer.code} {answer.remark or 'no bytes'}", answer.code)
            need_same(self._context, answer)
            pieces.append(answer.body)
            at += len(answer.body)
        return b"".join(pieces)


def _range(wanted: Wanted) -> tuple[int, int]:
    return wanted.of.begin, wanted.of.until
