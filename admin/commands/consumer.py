"""The commands about consumer groups: ``keelmq consumer list | describe | reset``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from admin.commands.reach import Site, as_json, reaches, say_json, show, site
from admin.group import group_of
from admin.tls import client_env
from client.admin import AdminClient, ConsumeStats
from client.consumer_groups import ConsumerGroups, Online
from client.message import Queue
from client.pull import PullConsumer
from model.errors import ConfigError
from model.topic import is_system_group

BUILT_IN = frozenset(
    ["FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "TOOLS_CONSUMER"]
    + [f"CID_ONS{name}" for name in ("-HTTP-PROXY", "API_OWNER", "API_PERMISSION", "API_PULL")]
)
"""Groups that every RocketMQ broker has."""
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command("list", short_help="Every consumer group the masters know.")
@click.option("--all", "whole", is_flag=True, help="RocketMQ's own groups, too.")
@as_json
@reaches
def list_(
    whole: bool, as_json: bool, directory: Path, namesrv: str | None, credentials_file: str | None
) -> None:
    """List the consumer groups of a cluster: who is online, how many messages they are behind.

    Example: keelmq consumer list
    """

    async def work(admin: AdminClient) -> list[tuple[str, int, int]]:
        groups = ConsumerGroups(admin)
        found = []
        for name in await groups.names():
            if whole or not (is_system_group(name) or name in BUILT_IN):
                lag = sum(stats.lag for stats in await groups.lag(name))
                found.append((name, len((await groups.online(name)).members), lag))
        return found

    rows = site(directory, namesrv, credentials_file).ask(work)
    if as_json:
        say_json([{"group": name, "online": online, "lag": lag} for name, online, lag in rows])
    else:
        show(rows, ("group", "online", "lag"), numbers=("online", "lag"))


@click.command(short_help="A group's members, and its lag in each queue.")
@click.argument("group")
@as_json
@reaches
def describe(
    group: str, as_json: bool, directory: Path, namesrv: str | None, credentials_file: str | None
) -> None:
    """Show who is online in a consumer group, what it reads, and how far it is in each queue.

    Example: keelmq consumer describe billing
    """

    async def work(admin: AdminClient) -> tuple[Online, list[ConsumeStats]]:
        groups = ConsumerGroups(admin)
        if group not in await groups.names():
            raise ConfigError(f"there is no consumer group {group}: see keelmq consumer list")
        return await groups.online(group), await groups.lag(group)

    online, lag = site(directory, namesrv, credentials_file).ask(work)
    if as_json:
        say_json(_described(group, online, lag))
        return
    for member in online.members:
        click.echo(f"{member.client_id}  {member.address}  {member.language}")
    if not online.members:
        click.echo("nobody is online")
    rows = [(*_place(s.queue), s.consumer_offset, s.broker_offset, s.lag) for s in lag]
    columns = ("topic", "broker group", "queue", "read to", "end", "lag")
    show(rows, columns, numbers=columns[2:])


def _described(group: str, online: Online, lag: list[ConsumeStats]) -> dict[str, object]:
    return {
        "group": group,
        "online": [
            {"clientId": m.client_id, "address": m.address, "language": m.language, "version": m.version}
            for m in online.members
        ],
        "subscriptions": dict(online.subscriptions),
        "queues": [
            {**s.queue.to_json(), "offset": s.consumer_offset, "end": s.broker_offset, "lag": s.lag}
            for s in lag
        ],
        "lag": sum(s.lag for s in lag),
    }


@dataclass(frozen=True, slots=True)
class Target:
    """Where a reset goes: exactly one of its ways."""

    to_time: str | None
    to_offset: int | None
    to_end: bool
    to_begin: bool

    def __post_init__(self) -> None:
        ways = (self.to_time is not None, self.to_offset is not None, self.to_end, self.to_begin)
        if sum(ways) != 1:
            raise click.UsageError("say where to: one of --to-begin, --to-end, --to-time, --to-offset")

    async def offset(self, consumer: PullConsumer, queue: Queue) -> int:
        """The offset in ``queue``, within what it holds."""
        least, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
        if self.to_begin:
            return least
        if self.to_end:
            return end
        if self.to_offset is not None:
            return min(max(self.to_offset, least), end)
        assert self.to_time is not None, "one of the ways"
        return await consumer.offset_by_time(queue, moment_ms(self.to_time))


@click.command(short_help="Move a group to a time, an offset, the begin or the end.")
@click.argument("group")
@click.argument("topic")
@click.option("--to-begin", is_flag=True, help="The oldest message that is held.")
@click.option("--to-end", is_flag=True, help="Behind the newest message: skip all.")
@click.option(
    "--to-time", metavar="TIME", help="2026-11-22T20:00 (with zone, else UTC), or 90m: so long ago."
)
@click.option("--to-offset", type=click.IntRange(0), help="In every queue, or in --queue.")
@click.option("--queue", metavar="BROKER_GROUP/ID", help="This queue alone.")
@click.option("--execute", is_flag=True, help="Do it. Without this the change is only shown.")
@as_json
@reaches
def reset(
    group: str,
    topic: str,
    to_begin: bool,
    to_end: bool,
    to_time: str | None,
    to_offset: int | None,
    queue: str | None,
    execute: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> None:
    """Move a consumer group within a topic, back or forward. Shows the change; --execute makes it.

    Members that are online are told. An offset beyond what a queue holds becomes its begin or end.

    Example: keelmq consumer reset billing orders --to-time 30m --execute
    """
    target = Target(to_time, to_offset, to_end, to_begin)
    if to_time is not None:
        moment_ms(to_time)
    where = site(directory, namesrv, credentials_file)
    planned = where.ask(lambda admin: _plan(where, admin, group, topic, target, queue))
    if execute:

        async def work(admin: AdminClient) -> None:
            groups = ConsumerGroups(admin)
            for stats, offset in planned:
                await groups.reset(group, topic, stats.queue, offset)

        where.ask(work)
    if as_json:
        say_json(
            {
                "executed": execute,
                "queues": [{**s.queue.to_json(), "from": s.consumer_offset, "to": to} for s, to in planned],
            }
        )
        return
    rows = [(*_place(s.queue), s.consumer_offset, to, s.broker_offset - to) for s, to in planned]
    columns = ("topic", "broker group", "queue", "from", "to", "lag then")
    show(rows, columns, numbers=columns[2:])
    click.echo("done" if execute else "nothing is changed yet: add --execute")


async def _plan(
    where: Site, admin: AdminClient, group: str, topic: str, target: Target, only: str | None
) -> list[tuple[ConsumeStats, int]]:
    """Each queue as it is, and the offset it is to have. Raises ConfigError."""
    groups = ConsumerGroups(admin)
    if group not in await groups.names():
        raise ConfigError(f"there is no consumer group {group}: see keelmq consumer list")
    now = {stats.queue: stats for stats in await groups.lag(group, topic)}
    async with PullConsumer(client_env(), group, where.namesrv, credentials=where.key) as consumer:
        queues = await consumer.queues(topic)
        if only is not None:
            queues = [queue for queue in queues if f"{queue.broker_name}/{queue.queue_id}" == only]
            if not queues:
                raise ConfigError(f"{topic} has no queue {only}: see keelmq topic describe {topic}")
        found = []
        for queue in sorted(queues):
            stats = now.get(queue) or ConsumeStats(queue, await consumer.max_offset(queue), 0)
            found.append((stats, await target.offset(consumer, queue)))
        return found


def _place(queue: Queue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def moment_ms(text: str) -> int:
    """``90m`` (so long ago) or an ISO time, UTC without a zone, in ms since the epoch. Raises UsageError."""
    if text[-1:] in UNITS_S and text[:-1].isdigit():
        return int((time.time_ns() // 1_000_000) - int(text[:-1]) * UNITS_S[text[-1]] * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is no time: 2026-11-22T20:00, or 90m for so long ago") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


consumer = group_of("consumer", "Consumer groups: list, describe, reset.", list_, describe, reset)
