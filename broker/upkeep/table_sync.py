"""How do topics, groups and offsets of a master reach its slaves?

A slave asks its master for what changed; the master answers when something did (``broker/tables/copies``).
A real master does not know that request: of it the slave copies whole tables every
``slaveSyncMetadataPeriod``, and at once after a change of role: topics (21), groups (201), consumer offsets
(43), delay offsets (45), how far timer messages are (60), request modes (402).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from broker.context import BrokerContext
from broker.tables.copies import HOLD_MS_MAX
from broker.tables.groups import parse_group
from broker.tables.table_files import TableFiles
from broker.tables.topics import parse_topic
from broker.timers.codec import decode_told
from model.codes import Request, Response
from model.errors import MqError, PeerError
from remoting import bodies
from remoting.codec import Command
from remoting.headers import need, need_int, opt_bool
from remoting.service import RemotingClient
from runtime.backoff import Backoff
from runtime.loops import level_triggered
from runtime.report.lasting import lasting
from runtime.turns import Slice

log = logging.getLogger(__name__)

CALL_S: Final = 3.0
ORDINARY_S: Final = 5.0  # an election takes no longer
RETRY_FIRST_MS: Final = 50
RETRY_MAX_MS: Final = 1000
SYNCED: Final = ("topics", "groups", "modes", "auth")  # on the disk before each receipt
WRITTEN: Final = (*SYNCED, "offsets")  # where the master asks for it

_ENTRIES: Final[tuple[tuple[str, str, Callable[[str, Any], Any]], ...]] = (
    ("topics", "topicConfigTable", parse_topic),
    ("groups", "subscriptionGroupTable", parse_group),
)


class MetadataSync:
    """The slave's side. ``run`` is one task for the life of the broker; it rests while there is no master."""

    def __init__(self, context: BrokerContext, tables: TableFiles, client: RemotingClient) -> None:
        self._context = context
        self._files = tables
        self._client = client
        self._wake = asyncio.Event()
        self._run_seen = ("", -1)  # the master's process and the revision of its tables we have
        self._whole_only: str | None = None  # a master that does not know KEELMQ_COPY_TABLES
        context.ha.on_agreed.append(self._wake.set)
        self._asking: asyncio.Timeout | None = None
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
        if self._asking is not None and not self._asking.expired():
            # A held question to a former master must not delay the first one to its successor.
            self._asking.reschedule(0)

    @lasting
    async def run(self) -> None:
        config = self._context.config
        await level_triggered(
            self._turn,
            self._wake,
            config.slave_metadata_ms / 1000,
            Backoff(self._context.env.random, RETRY_FIRST_MS, RETRY_MAX_MS),
            f"{config.broker_name}: copying the master's tables",
            patience_s=ORDINARY_S,
        )

    async def _turn(self) -> float:
        """One question; how many seconds to rest behind it."""
        asking = asyncio.timeout(None)
        try:
            async with asking:
                self._asking = asking
                copied = await self.once()
        except TimeoutError:
            if not asking.expired():
                raise
            return 0.0
        finally:
            self._asking = None
        # The answer to a question comes when there is something new: ask again at once.
        if copied and self._whole_only is None:
            return 0.0
        return self._context.config.slave_metadata_ms / 1000

    async def once(self) -> bool:
        """Copy what changed, waiting for a change if there is none; False when there is no master, or its log
        is not known to be ours yet. Raises OSError, MqError."""
        role_state = self._context.role_state
        master = role_state.master_address
        if role_state.role != "slave" or master is None or not self._follows(master):
            return False  # ``soon``, or an agreement with the master, ends the wait
        if self._whole_only == master:
            await self._copy_whole(master)
        else:
            await self._copy_changes(master)
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
                "%s: the master at %s is a RocketMQ broker, its tables are copied as a whole now and then",
                self._context.config.broker_name,
                master,
            )
            self._whole_only = master
            await self._copy_whole(master)
            return
        if answer.code != Response.SUCCESS:
            raise MqError(f"the broker at {master} gives no tables: {answer.remark}")
        body = bodies.believed_object(answer.body)
        told = (need(answer.ext, "run"), need_int(answer.ext, "revision", 0))
        await self._parse(body)
        if not self._follows(master) or self._run_seen != (run, seen):
            return
        self._adopt_all(body)
        # The receipt, ``seen`` of the next question, says that it is on this disk.
        synced = opt_bool(answer.ext, "synced")
        await self._files.write([name for name in body if name in SYNCED or (synced and name in WRITTEN)])
        if self._run_seen == (run, seen):
            self._run_seen = told

    async def adopt(self, body: dict[str, Any]) -> None:
        """Take over these tables, whoever gave them. Raises PeerError for what is none."""
        await self._parse(body)
        self._adopt_all(body)

    async def _parse(self, body: dict[str, Any]) -> None:
        """Parse long tables in slices: 20,000 entries take half a second, and the master hears nothing
        meanwhile. What is none is left for ``_adopt`` to refuse."""
        slice_ = Slice(self._context.env.monotonic_ms)
        for name, member, parse in _ENTRIES:
            table = body.get(name)
            entries = table.get(member) if isinstance(table, dict) else None
            if not isinstance(entries, dict):
                continue
            for key, raw in list(entries.items()):
                with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError):
                    entries[key] = parse(key, raw)
                await slice_.breathe()

    def _adopt_all(self, body: dict[str, Any]) -> None:
        for name, _, adopt in self._tables:
            table = body.get(name)
            if table is not None:
                _adopt(name, adopt, table)
        if "modes" in body:
            _adopt("modes", self._context.groups.modes.adopt, body["modes"])
        if "auth" in body:  # a keelmq of an older version has none, a RocketMQ broker never gives its own
            _adopt("auth", self._context.trust.directory.load, body["auth"])
        if "timers" in body:  # as above
            _adopt("timers", self._files.timed.adopt, body["timers"])
        if all(name in body for name, _, _ in self._tables):
            self._files.on_copied()

    async def _copy_whole(self, master: str) -> None:
        for name, code, adopt in self._tables:
            answer = await self._client.call(master, Command(int(code)), CALL_S)
            if answer.code != Response.SUCCESS:
                raise MqError(f"{code.name} answered {answer.code}: {answer.remark}")
            table = bodies.believed_object(answer.body)
            await self._parse({name: table})
            if not self._follows(master):
                return
            _adopt(name, adopt, table)
        await self._copy_timers(master)
        answer = await self._client.call(master, Command(int(Request.GET_ALL_MESSAGE_REQUEST_MODE)), CALL_S)
        if answer.code == Response.SUCCESS and self._follows(master):  # not known before RocketMQ 5
            _adopt("modes", self._context.groups.modes.adopt, bodies.believed_object(answer.body))
        self._files.on_copied()

    async def _copy_timers(self, master: str) -> None:
        """How far a RocketMQ master's timer messages are. One without them says nothing."""
        answer = await self._client.call(master, Command(int(Request.GET_TIMER_CHECK_POINT)), CALL_S)
        if answer.code == Response.SUCCESS and self._follows(master):
            try:
                note, version = decode_told(answer.body)
            except ValueError as error:
                raise PeerError(f"the master at {master}: {error}") from None
            self._files.timed.adopt_rocketmq(note, version)

    def _follows(self, master: str) -> bool:
        """Whether to copy from ``master``. Not while its log is not known to go on where ours ends: it may
        have begun with an empty disk, and the last tables of the group may be ours."""
        role_state = self._context.role_state
        return self._context.ha.agreed and role_state.role == "slave" and role_state.master_address == master


def _adopt(name: str, adopt: Callable[[dict[str, Any]], bool], table: Any) -> None:
    """Raises PeerError when the master's table is none."""
    if not isinstance(table, dict):
        raise PeerError(f"the table {name} of the master is a {type(table).__name__}")
    try:
        adopt(table)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise PeerError(f"the table {name} of the master is not one: {error!r}") from None
