"""Which tables does a master begin with that was elected from outside of the SyncStateSet?

    every member lost the end of its log ──► a replica outside has more of it, and is elected
                                                     │ ``View.table_sources``
    a broker of the last set ◄── KEELMQ_GIVE_TABLES ─┤
                                                     ▼
                      adopted, with the new epoch as their version, on the disk ──► it serves

What was answered of topics, groups, modes, users and offsets is on the disk of each member of the last set
(``broker/tables/copies``), and that of the outsider ends where it left the set. How far delayed and timer
messages were delivered goes with the log, and stays its own.

The version of a table notes the last epoch whose master took over what was answered before it
(``DataVersion.taken_in``), once all of that is on the disk. So tables of ``source.epoch`` and later have what
was answered before: a restart, or one more such election, takes nothing twice. Epochs of another life of the
Controllers say nothing: they began anew.

Another process may have got the address of a member that is gone: the same machine with an empty disk. What
it has is nothing of the group's, so the question names the broker that is meant.

    request   7704, ext: clusterName, brokerName, brokerId of whom is asked; any role answers
    answer    body: {"topics", "groups", "offsets", "modes", "auth"}, whole; ext as in the request: who it is.
              Or ext: nothing=true, of a broker whose disk was put back to an older state. From such, and from
              an older keelmq and a RocketMQ broker, which do not know the question, nothing is taken. Where
              ext names nobody, in a request or an answer, it is of an older version, and is taken as it is
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from broker.context import BrokerContext
from broker.membership.view import TableSource
from broker.tables.copies import HOLD_MS_MAX
from broker.tables.table_files import TableFiles
from broker.upkeep.table_sync import CALL_S, WRITTEN, MetadataSync
from model.codes import Request, Response
from model.errors import MqError, PeerError, Refused
from model.ids import BrokerId, Epoch
from model.topic import DataVersion
from remoting import bodies
from remoting.codec import Command
from remoting.service import Connection, RemotingClient
from runtime.disk_probe import DiskProbe

log = logging.getLogger(__name__)

GIVE_S: Final = CALL_S + HOLD_MS_MAX / 1000
"""All tables at their bounds take long to be written and read."""
DISK_S: Final = 1.0
"""A write that takes longer is given up unless the disk answers a probe within the same time."""
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
        self.probe = _probe(context)
        self._unmarked = False
        """What was taken is on the disk, and perhaps not that it was."""

    async def give(self, connection: Connection, request: Command) -> Command:
        """KEELMQ_GIVE_TABLES."""
        lost = self._files.lost()
        if lost:
            raise Refused(f"this broker has not its tables: {'; '.join(lost)}", Response.SYSTEM_ERROR)
        registered_as = self._context.role_state.registered_as
        if registered_as is None:
            raise Refused("this broker has not registered yet", Response.SYSTEM_ERROR)
        me = self._named(registered_as)
        if not _is_meant(request.ext, me):
            raise Refused(f"this is another broker: {_who(me)}", Response.SYSTEM_ERROR)
        if self._context.role_state.old_disk:
            log.error("%s: this disk is old, and so are its tables", self._context.config.broker_name)
            return request.reply(ext={NOTHING: "true", **me})
        answer = request.reply(ext=me)
        answer.body = await self._context.copies.whole(WRITTEN)
        return answer

    async def take(self, broker_id: BrokerId, epoch: Epoch, sources: Sequence[TableSource]) -> None:
        """Have every change that was answered before ``epoch``, which this broker is about to lead.

        Raises MqError when nobody who has them answers; OSError, DiskError when they cannot be written;
        a disk that hangs is one that cannot.
        """
        if not sources:
            return
        context, life = self._context, sources[0].life
        mine = max(context.topics.version.taken_in(life), context.groups.version.taken_in(life))
        for address, body in await self._newest(broker_id, mine, sources):
            await self._sync.adopt(body)
            log.warning(
                "%s: took topics, groups and offsets from %s, which was in the last SyncStateSet",
                context.config.broker_name,
                address,
            )
            # All of it first: a mark on the disk says that the rest is there.
            await self._write(WRITTEN)
        if mine < sources[-1].epoch:
            self._unmarked = True
            context.topics.taken_over(life, epoch)
            context.groups.taken_over(life, epoch)
        if self._unmarked:
            await self._write(_VERSIONED)
            self._unmarked = False

    async def _write(self, names: Sequence[str]) -> None:
        """However long that takes, while the disk takes other writes. Raises OSError, DiskError."""
        while True:
            try:
                async with asyncio.timeout(DISK_S) as within:
                    return await self._files.write(names)
            except TimeoutError:
                if not within.expired():
                    raise
            # What was begun goes on, and is waited for again.
            await self.probe.answers(DISK_S)

    def _named(self, broker_id: BrokerId) -> dict[str, str]:
        config = self._context.config
        return {
            "clusterName": config.cluster_name,
            "brokerName": config.broker_name,
            "brokerId": str(broker_id),
        }

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
            if body and (not lacking or _taken_in(source.life, body) >= lacking[-1].epoch):
                return [(address, body)]
        return []

    async def _ask(self, source: TableSource) -> tuple[str, dict[str, Any]]:
        """The answer of the first that gives one; nothing from those that cannot. Raises MqError."""
        refused = []
        for broker_id, address in source.brokers.items():
            meant = self._named(broker_id)
            try:
                request = Command(int(Request.KEELMQ_GIVE_TABLES), dict(meant))
                answer = await self._client.call(address, request, GIVE_S)
                if answer.code == Response.SUCCESS and not _is_meant(answer.ext, meant):
                    raise PeerError(f"another broker answers there: {_who(answer.ext)}")
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


def _probe(context: BrokerContext) -> DiskProbe:
    """Of all that an epoch is begun in."""
    config = context.config
    elsewhere = {config.commit_log_path, config.epoch_file_path.rpartition("/")[0]} - {"", config.store_path}
    return DiskProbe(context.env, config.store_path, sorted(elsewhere))


def _is_meant(said: Mapping[str, str], meant: Mapping[str, str]) -> bool:
    """Whether what was said is of that broker. An older version does not say."""
    return all(said.get(name, value) == value for name, value in meant.items())


def _who(said: Mapping[str, str]) -> str:
    return f"{said.get('brokerName')}:{said.get('brokerId')} of {said.get('clusterName')}"


def _taken_in(life: str, body: Mapping[str, Any]) -> int:
    return max(DataVersion.from_json(table.get("dataVersion")).taken_in(life) for table in _tables(body))


def _tables(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in _VERSIONED:
        table = body.get(name)
        yield table if isinstance(table, dict) else {}
