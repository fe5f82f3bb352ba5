"""Which tables does a master begin with that was elected from outside of the SyncStateSet?

    every member lost the end of its log ──► a replica outside has more of it, and is elected
                                                     │ ``View.table_sources``
    a broker of the last set ◄── KEELMQ_GIVE_TABLES ─┤
                                                     ▼
                      adopted, with the new epoch as their version, on the disk ──► it serves

What was answered of topics, groups, modes, users and offsets is on the disk of each member of the last set
(``broker/tables/copies``), and that of the outsider ends where it left the set. How far delayed and timer
messages were delivered goes with the log, and stays its own.

The state version of a table is the epoch of the last master that served with it. It is raised once all that
was taken is on the disk. So tables of ``source.epoch`` and later have what was answered before: a restart, or
one more such election, takes nothing twice.

    request   7704, empty; any role answers
    answer    body: {"topics", "groups", "offsets", "modes", "auth"}, whole. Or ext: nothing=true, of a broker
              whose disk was put back to an older state. From such, and from an older keelmq and a RocketMQ
              broker, which do not know the question, nothing is taken
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from broker.context import BrokerContext
from broker.membership.view import TableSource
from broker.tables.copies import HOLD_MS_MAX
from broker.tables.table_files import TableFiles
from broker.upkeep.table_sync import CALL_S, WRITTEN, MetadataSync
from model.codes import Request, Response
from model.errors import MqError, Refused
from model.ids import BrokerId, Epoch
from model.topic import DataVersion
from remoting import bodies
from remoting.codec import Command
from remoting.service import Connection, RemotingClient

log = logging.getLogger(__name__)

GIVE_S: Final = CALL_S + HOLD_MS_MAX / 1000
"""All tables at their bounds take long to be written and read."""
NOTHING: Final = "nothing"
_VERSIONED: Final = ("topics", "groups")


class TableSources:
    """Gives this broker's tables to a master that asks, and takes them over from others."""

    def __init__(
        self, context: BrokerContext, tables: TableFiles, client: RemotingClient, sync: MetadataSync
    ) -> None:
        self._context = context
        self._files = tables
        self._client = client
        self._sync = sync
        self._unmarked = False
        """What was taken is on the disk, and its version perhaps not."""

    async def give(self, connection: Connection, request: Command) -> Command:
        """KEELMQ_GIVE_TABLES."""
        lost = self._files.lost()
        if lost:
            raise Refused(f"this broker has not its tables: {'; '.join(lost)}", Response.SYSTEM_ERROR)
        if not self._context.role_state.registered:
            raise Refused("this broker has not registered yet", Response.SYSTEM_ERROR)
        if self._context.role_state.old_disk:
            log.error("%s: this disk is old, and so are its tables", self._context.config.broker_name)
            return request.reply(ext={NOTHING: "true"})
        answer = request.reply()
        answer.body = await self._context.copies.whole(WRITTEN)
        return answer

    async def take(self, broker_id: BrokerId, epoch: Epoch, sources: Sequence[TableSource]) -> None:
        """Have every change that was answered before ``epoch``, which this broker is about to lead.

        Raises MqError when nobody who has them answers; OSError, DiskError when they cannot be written.
        """
        context = self._context
        mine = max(context.topics.version.state_version, context.groups.version.state_version)
        for address, body in await self._newest(broker_id, mine, sources):
            await self._sync.adopt(body)
            log.warning(
                "%s: took topics, groups and offsets from %s, which was in the last SyncStateSet",
                context.config.broker_name,
                address,
            )
            # All of it first: a version on the disk says that the rest is there.
            await self._files.write(WRITTEN)
            self._unmarked = True
            context.topics.set_epoch(epoch)
            context.groups.set_epoch(epoch)
        if self._unmarked:
            await self._files.write(_VERSIONED)
            self._unmarked = False

    async def _newest(
        self, broker_id: BrokerId, mine: int, sources: Sequence[TableSource]
    ) -> list[tuple[str, dict[str, Any]]]:
        """The tables to take, and where they are from; at most one. The newest source counts, unless its
        master never served, and so had not taken what an older one has."""
        lacking = [source for source in sources if source.epoch > mine]
        while lacking:
            source = lacking.pop()
            if broker_id in source.brokers:
                continue  # as this broker itself was one of them: its own will do, or an older source's
            address, body = await self._ask(source)
            if body and (not lacking or _version(body) >= lacking[-1].epoch):
                return [(address, body)]
        return []

    async def _ask(self, source: TableSource) -> tuple[str, dict[str, Any]]:
        """The answer of the first that gives one; nothing from those that cannot. Raises MqError."""
        refused = []
        for address in source.brokers.values():
            try:
                answer = await self._client.call(address, Command(int(Request.KEELMQ_GIVE_TABLES)), GIVE_S)
                if answer.code == Response.SUCCESS and NOTHING not in answer.ext:
                    return address, bodies.believed_object(answer.body)
            except (OSError, MqError) as error:
                refused.append(f"{address}: {error}")
                continue
            if answer.code not in (Response.SUCCESS, Response.REQUEST_CODE_NOT_SUPPORTED):
                refused.append(f"{address}: {answer.remark}")
        if refused:
            raise MqError(
                "elected, but the last changes of topics and groups are at brokers of the former"
                f" SyncStateSet alone ({'; '.join(refused)}); bring one of them back, or give them up:"
                " keelmq group forget"
            )
        log.error(
            "%s: nobody of %s can say what the last changes of topics and groups were: this broker leads with"
            " its own",
            self._context.config.broker_name,
            sorted(source.brokers),
        )
        return "", {}


def _version(body: Mapping[str, Any]) -> int:
    return max(DataVersion.from_json(table.get("dataVersion")).state_version for table in _tables(body))


def _tables(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in _VERSIONED:
        table = body.get(name)
        yield table if isinstance(table, dict) else {}
