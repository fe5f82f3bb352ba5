"""How do topics, groups and offsets of a master reach its slaves?

A slave asks its master every ``slaveSyncMetadataPeriod``, and at once after a change of role: topics (21),
groups (201), consumer offsets (43), delay offsets (45). A table replaces the slave's own as a whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from broker.delay import DelayOffsets
from broker.parts import Parts
from model.errors import MqError
from remoting import bodies
from remoting.codec import Command
from remoting.codes import Request, Response
from remoting.service import RemotingClient

log = logging.getLogger(__name__)


class MetadataSync:
    """The slave's side. ``run`` is one task for the life of the broker; it rests while there is no master."""

    def __init__(self, parts: Parts, delays: DelayOffsets, client: RemotingClient) -> None:
        self._parts = parts
        self._client = client
        self._wake = asyncio.Event()
        self._failing = False
        self._tables: list[tuple[Request, Callable[[dict[str, Any]], bool]]] = [
            (Request.GET_ALL_TOPIC_CONFIG, parts.topics.adopt),
            (Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, parts.groups.adopt),
            (Request.GET_ALL_CONSUMER_OFFSET, parts.offsets.adopt),
            (Request.GET_ALL_DELAY_OFFSET, delays.adopt),
        ]

    def soon(self) -> None:
        """Copy at once: the role or the master changed."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            await self.once()
            try:
                async with asyncio.timeout(self._parts.config.slave_metadata_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def once(self) -> bool:
        """Copy all tables; False when there was no master or it did not answer."""
        standing = self._parts.standing
        master = standing.master_address
        if standing.role != "slave" or master is None:
            return False
        try:
            for code, adopt in self._tables:
                answer = await self._client.call(master, Command(int(code)))
                if answer.code != Response.SUCCESS:
                    raise MqError(f"{code.name} answered {answer.code}: {answer.remark}")
                table = bodies.loads_object(answer.body)
                if standing.role != "slave" or standing.master_address != master:
                    return False  # promoted, or moved to another master, while the answer was on its way
                adopt(table)
        except (MqError, OSError, ValueError, TypeError, AttributeError) as error:
            if not self._failing:
                log.warning("cannot copy the tables of the master at %s: %s", master, error)
            self._failing = True
            return False
        self._failing = False
        return True
