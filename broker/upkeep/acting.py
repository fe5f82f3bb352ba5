"""Which slave serves consumers while a group has no master and none can be elected?

With ``enableSlaveActingMaster`` the member with the smallest id that the NameServers know stands in: reads
and locks it serves anyway, and consumer offsets it keeps in memory, beside the table it copied, until a
master is there to take them. It takes no writes. NameServers with ``supportActingMaster`` show it as id 0.
Source: Apache RocketMQ 5.x, ``enableSlaveActingMaster``; without its delayed and transactional messages,
which need writes at another group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from broker.context import BrokerContext
from model.codes import Request, Response
from model.errors import PeerError, Refused
from model.ids import MASTER_ID
from remoting.codec import Command
from remoting.headers import need_int
from remoting.service import RemotingClient
from runtime.backoff import Backoff
from runtime.loops import level_triggered
from runtime.report.lasting import lasting

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
CALL_S: Final = 3.0
ONLY_FORWARD: Final = "onlyForward"
"""A field of UPDATE_CONSUMER_OFFSET, ours: an offset that is further already stays."""
_GONE: Final = (
    Response.TOPIC_NOT_EXIST,
    Response.SUBSCRIPTION_GROUP_NOT_EXIST,
    Response.INVALID_PARAMETER,  # it has fewer queues
)


def stands_in(own_id: int, registered: Collection[int]) -> bool:
    """Whether ``own_id`` is the one to act for a master, of the ids a NameServer knows of the group."""
    return MASTER_ID not in registered and own_id == min(registered, default=None)


class Acting:
    """One broker's part in it. ``run`` is one task for the broker's life; ``members`` asks a NameServer for
    the ids it knows of the group, and ``follows`` tells whether the link to a master works."""

    def __init__(
        self,
        context: BrokerContext,
        client: RemotingClient,
        members: Callable[[], Awaitable[list[int]]],
        follows: Callable[[], bool],
    ) -> None:
        self._context = context
        self._client = client
        self._members = members
        self._follows = follows
        self._wake = asyncio.Event()

    def soon(self) -> None:
        """The role or the master changed."""
        self._wake.set()

    @lasting
    async def run(self) -> None:
        if not self._context.config.slave_acting_master:
            return
        look_ms = round(LOOK_S * 1000)
        await level_triggered(
            self._look,
            self._wake,
            LOOK_S,
            Backoff(self._context.env.random, look_ms, look_ms),
            "standing in for a master",
            on_error=lambda error: log.debug("acting master: %s", error),
        )

    async def _look(self) -> None:
        role_state = self._context.role_state
        if role_state.role != "slave":
            return
        if self._follows():
            self._act(False)
            await self._give_offsets()
            return
        try:
            known = await self._members()
        except (KeyError, TypeError) as error:
            raise PeerError(f"no list of the group's members: {error!r}") from None
        self._act(
            role_state.role == "slave" and not self._follows() and stands_in(role_state.broker_id, known)
        )

    def _act(self, acting: bool) -> None:
        role_state = self._context.role_state
        if acting != role_state.acting:
            role_state.acting = acting
            self._context.env.events.add("acting_master" if acting else "acting_ended")
            text = "serves consumers in place of a master" if acting else "serves as a slave again"
            log.warning("broker %s %s", self._context.config.broker_name, text)

    async def _give_offsets(self) -> None:
        """Tell the master what consumers committed here; each entry stays until the master has it,
        or says that it has nothing it could be an offset of."""
        master, offsets = self._context.role_state.master_address, self._context.offsets
        if master is None:
            return
        waits: Command | None = None
        for topic, group, queue_id, offset in offsets.held_for_master():
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
            answer = await self._client.call(master, Command(Request.QUERY_CONSUMER_OFFSET, ext), CALL_S)
            # A real master does not know the field: asking first keeps it from going back there, too.
            if answer.code != Response.SUCCESS or need_int(answer.ext, "offset") < offset:
                ext |= {"commitOffset": str(offset), ONLY_FORWARD: "true"}
                answer = await self._client.call(master, Command(Request.UPDATE_CONSUMER_OFFSET, ext), CALL_S)
                if answer.code in _GONE:
                    log.warning(
                        "offset %d of %s in %s/%d is given up: %s",
                        offset,
                        group,
                        topic,
                        queue_id,
                        answer.remark,
                    )
                elif answer.code == Response.SYSTEM_BUSY:
                    waits = answer  # the master has no room for this pair: that holds no other one up
                    continue
                elif answer.code != Response.SUCCESS:
                    raise Refused(answer.remark or "the master takes no offset", answer.code)
            offsets.handed_over(topic, group, queue_id, offset)
        if waits is not None:
            raise Refused(waits.remark or "the master takes no offset", waits.code)
