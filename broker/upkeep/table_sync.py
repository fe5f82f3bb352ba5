"""How do topics, groups and offsets of a master reach its slaves?

A slave asks its master for what changed; the master answers when something did (``broker/tables/copies``).
A real master does not know that request: of it the slave copies whole tables every
``slaveSyncMetadataPeriod``, and at once after a change of role: topics (21), groups (201), consumer offsets
(43), delay offsets (45).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from broker.context import BrokerContext
from broker.tables.copies import HOLD_MS_MAX
from broker.tables.table_files import TableFiles
from model.codes import Request, Response
from model.errors import MqError, PeerError
from remoting import bodies
from remoting.codec import Command
from remoting.headers import need, need_int, opt_bool
from remoting.service import RemotingClient
from runtime.backoff import Backoff
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

CALL_S: Final = 3.0
RETRY_FIRST_MS: Final = 50
SYNCED: Final = ("topics", "groups")  # on the disk before each receipt
WRITTEN: Final = (*SYNCED, "offsets")  # where the master asks for it


class MetadataSync:
    """The slave's side. ``run`` is one task for the life of the broker; it rests while there is no master."""

    def __init__(self, context: BrokerContext, tables: TableFiles, client: RemotingClient) -> None:
        self._context = context
        self._files = tables
        self._client = client
        self._wake = asyncio.Event()
        self._failing = False
        self._early = False  # there is a master, and its log is not known to be ours yet
        self._run_seen = ("", -1)  # the master's process and the revision of its tables we have
        self._whole_only: str | None = None  # a master that does not know KEELMQ_COPY_TABLES
        self._tasks = Tasks("metadata")
        context.ha.on_agreed.append(self._wake.set)
        self._turn: asyncio.Task[bool] | None = None
        self._tables: list[tuple[str, Request, Callable[[dict[str, Any]], bool]]] = [
            ("topics", Request.GET_ALL_TOPIC_CONFIG, context.topics.adopt),
            ("groups", Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, context.groups.adopt),
            ("offsets", Request.GET_ALL_CONSUMER_OFFSET, context.offsets.adopt),
            ("delays", Request.GET_ALL_DELAY_OFFSET, tables.delays.adopt),
        ]

    def soon(self) -> None:
        """Copy everything at once: the role or the master changed."""
        self._run_seen = ("", -1)
        self._whole_only = None
        self._wake.set()
        if self._turn is not None:
            # A held question to a former master must not delay the first one to its successor.
            self._turn.cancel()

    async def run(self) -> None:
        backoff = Backoff(self._context.env.random, RETRY_FIRST_MS, 1000)
        while True:
            self._wake.clear()
            turn = self._turn = self._tasks.spawn(self.once(), name="turn")
            try:
                await asyncio.wait((turn,))
            finally:
                turn.cancel()
            if turn.cancelled():
                continue
            if turn.exception() is not None:
                self._failing = True  # nobody foresaw it, and the log has it; the master is asked again
            elif turn.result() and self._whole_only is None:
                backoff.reset()
                continue
            rest_s = self._context.config.slave_metadata_ms / 1000
            if self._failing or self._early:
                rest_s = min(rest_s, backoff.next_s())
            try:
                async with asyncio.timeout(rest_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def once(self) -> bool:
        """Copy what changed, waiting for a change if there is none; False when there was no master or it did
        not answer."""
        role_state = self._context.role_state
        master = role_state.master_address
        self._early = False
        if role_state.role != "slave" or master is None:
            self._failing = False
            return False
        if not self._follows(master):
            self._early = True
            return False
        try:
            if self._whole_only == master:
                await self._copy_whole(master)
            else:
                await self._copy_changes(master)
        except (MqError, OSError, ValueError, TypeError, AttributeError, LookupError) as error:
            if not self._failing:
                log.warning("cannot copy the tables of the master at %s: %s", master, error)
            self._failing = True
            return False
        self._failing = False
        return True

    async def _copy_changes(self, master: str) -> None:
        run, seen = self._run_seen
        hold_ms = min(self._context.config.slave_metadata_ms, HOLD_MS_MAX)
        ext = {
            "brokerId": str(self._context.role_state.broker_id),
            "run": run or "none",
            "seen": str(seen),
            "waitMs": str(hold_ms),
            "parts": "true",
        }
        command = Command(int(Request.KEELMQ_COPY_TABLES), ext)
        answer = await self._client.call(master, command, CALL_S + hold_ms / 1000)
        if answer.code == Response.REQUEST_CODE_NOT_SUPPORTED:
            log.info(
                "the master at %s is a real one: its tables are copied as a whole from time to time", master
            )
            self._whole_only = master
            await self._copy_whole(master)
            return
        if answer.code != Response.SUCCESS:
            raise MqError(f"copying tables answered {answer.code}: {answer.remark}")
        body = bodies.loads_object(answer.body)
        told = (need(answer.ext, "run"), need_int(answer.ext, "revision", 0))
        if not self._follows(master) or self._run_seen != (run, seen):
            return
        for name, _, adopt in self._tables:
            table = body.get(name)
            if isinstance(table, dict):
                adopt(table)
            elif table is not None:
                raise PeerError(f"the table {name} of the master is a {type(table).__name__}")
        if all(name in body for name, _, _ in self._tables):
            self._files.on_copied()
        # The receipt, ``seen`` of the next question, says that it is on this disk.
        synced = opt_bool(answer.ext, "synced")
        await self._files.write([name for name in body if name in SYNCED or (synced and name in WRITTEN)])
        if self._run_seen == (run, seen):
            self._run_seen = told

    async def _copy_whole(self, master: str) -> None:
        for _, code, adopt in self._tables:
            answer = await self._client.call(master, Command(int(code)), CALL_S)
            if answer.code != Response.SUCCESS:
                raise MqError(f"{code.name} answered {answer.code}: {answer.remark}")
            table = bodies.loads_object(answer.body)
            if not self._follows(master):
                return
            adopt(table)
        self._files.on_copied()

    def _follows(self, master: str) -> bool:
        """False when we were promoted, or moved to another master, while an answer was on its way; also while
        its log is not known to go on where ours ends: it may have begun with an empty disk, and the last
        tables of the group may be ours."""
        role_state = self._context.role_state
        return self._context.ha.agreed and role_state.role == "slave" and role_state.master_address == master
