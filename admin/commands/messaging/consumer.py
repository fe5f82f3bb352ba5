"""The commands about consumer groups: ``keelmq consumer list | describe | reset | delete``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from admin.commands.reach import Site, ago, as_json, need_yes, reaches, say_json, show, site
from admin.group import group_of
from admin.numbers import whole
from admin.terminal import say
from admin.tls import client_env
from client.admin import AdminClient, ConsumeStats
from client.consumer_groups import ConsumerGroups, Online
from client.consuming.pull import PullConsumer
from client.message import Queue
from model.errors import ConfigError
from model.topic import SubscriptionGroupConfig, group_name_error, is_system_group

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

    async def work(admin: AdminClient) -> tuple[Online, list[ConsumeStats], dict[Queue, str]]:
        groups = await _with(admin, group)
        online = await groups.online(group)
        return online, await groups.lag(group), await groups.readers(group, online.members)

    online, lag, readers = site(directory, namesrv, credentials_file).ask(work)
    if as_json:
        say_json(described(group, online, lag, readers))
        return
    for member in online.members:
        say(f"{member.client_id}  {member.address}  {member.language}")
    if not online.members:
        say("nobody is online")
    rows = rows_of(lag, readers, time.time_ns() // 1_000_000)
    columns = ("topic", "broker group", "queue", "read to", "end", "lag", "behind", "member")
    show(rows, columns, numbers=columns[2:7])


def rows_of(lag: list[ConsumeStats], readers: Mapping[Queue, str], now_ms: int) -> list[tuple[object, ...]]:
    """What ``describe`` shows of each queue; ``behind``: the age of the last message that was read."""
    return [
        (
            *_place(s.queue),
            s.consumer_offset,
            s.broker_offset,
            s.lag,
            ago(s.last_ms, now_ms) if s.lag else "0s",
            readers.get(s.queue, "-"),
        )
        for s in lag
    ]


def described(
    group: str, online: Online, lag: list[ConsumeStats], readers: Mapping[Queue, str]
) -> dict[str, object]:
    """The JSON of ``describe``."""
    return {
        "group": group,
        "online": [
            {"clientId": m.client_id, "address": m.address, "language": m.language, "version": m.version}
            for m in online.members
        ],
        "subscriptions": dict(online.subscriptions),
        "queues": [
            {
                **s.queue.to_json(),
                "offset": s.consumer_offset,
                "end": s.broker_offset,
                "lag": s.lag,
                "lastTimestamp": s.last_ms or None,
                "member": readers.get(s.queue),
            }
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
@click.option("--dry-run", is_flag=True, help="Only show the change, as without --execute.")
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
    dry_run: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> None:
    """Move a consumer group within a topic, back or forward. Shows the change; --execute makes it.

    Members that are online are told. An offset beyond what a queue holds becomes its begin or end.

    Example: keelmq consumer reset billing orders --to-time 30m --execute
    """
    if execute and dry_run:
        raise click.UsageError("--execute makes the change, --dry-run only shows it: give one of them")
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
    say("done" if execute else "nothing is changed yet: add --execute")


async def _plan(
    where: Site, admin: AdminClient, group: str, topic: str, target: Target, only: str | None
) -> list[tuple[ConsumeStats, int]]:
    """Each queue as it is, and the offset it is to have. Raises ConfigError."""
    groups = await _with(admin, group)
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


@click.command(short_help="Forget a group and its offsets.")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also while members are online: they begin anew.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@as_json
@reaches
def delete(
    group: str,
    yes: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> None:
    """Delete a consumer group: its offsets and its retry topic. What is in its %DLQ% topic stays.

    Example: keelmq consumer delete billing --yes
    """
    if is_system_group(group) or group in BUILT_IN:
        raise click.UsageError(f"{group} is RocketMQ's own group: it is not deleted")
    where = site(directory, namesrv, credentials_file)

    async def held(admin: AdminClient) -> tuple[Online, list[ConsumeStats]]:
        groups = await _with(admin, group)
        return await groups.online(group), await groups.lag(group)

    async def work(admin: AdminClient) -> None:
        await ConsumerGroups(admin).delete(group)

    online, lag = where.ask(held)
    if online.members and not force:
        members = ", ".join(member.client_id for member in online.members)
        raise ConfigError(f"{group} has members online ({members}): stop them first, or add --force")
    lost = f"{group} has offsets in {len(lag)} queues and a lag of {sum(s.lag for s in lag):,}"
    if not dry_run:
        need_yes(f"{lost}. Delete it?", yes)
        where.ask(work)
    if as_json:
        queues = [{**s.queue.to_json(), "offset": s.consumer_offset, "lag": s.lag} for s in lag]
        say_json({"executed": not dry_run, "group": group, "queues": queues})
    elif dry_run:
        say(f"{lost}; nothing is changed yet: leave out --dry-run")
    else:
        say(f"{group} is deleted, and its offsets in {len(lag)} queues with it")


async def _with(admin: AdminClient, group: str) -> ConsumerGroups:
    """Raises ConfigError when no master knows ``group``."""
    groups = ConsumerGroups(admin)
    if group not in await groups.names():
        raise ConfigError(f"there is no consumer group {group}: see keelmq consumer list")
    return groups


def _place(queue: Queue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def moment_ms(text: str) -> int:
    """``90m`` (so long ago) or an ISO time, UTC without a zone, in ms since the epoch. Raises UsageError."""
    count = whole(text[:-1]) if text[-1:] in UNITS_S else None
    if count is not None:
        found_ms = time.time_ns() // 1_000_000 - count * UNITS_S[text[-1]] * 1000
    else:
        try:
            moment = datetime.fromisoformat(text)
            found_ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            text = f"{text[:60]!r} is no time: 2026-11-22T20:00, or 90m for so long ago"
            raise click.UsageError(text) from None
    if found_ms < 0:
        raise click.UsageError(f"{text[:60]!r} is no time of a message: it lies before 1970")
    return found_ms


@click.command(short_help="Make a group, where brokers make none by themselves.")
@click.argument("group")
@click.option("--retries", type=click.IntRange(0), default=16, show_default=True, help="Then dead letters.")
@click.option("--ordered", is_flag=True, help="Consumed in order.")
@reaches
def create(
    group: str,
    retries: int,
    ordered: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> None:
    """Make a consumer group at every master, as autoCreateSubscriptionGroup=false asks for. A group that is
    there stays as it is: exit code 64.

    Example: keelmq consumer create billing --credentials people.json
    """

    problem = group_name_error(group)
    if problem is not None:
        raise click.UsageError(problem)

    async def work(admin: AdminClient) -> list[str]:
        groups = ConsumerGroups(admin)
        if group in await groups.names():
            raise ConfigError(f"there is a consumer group {group} already")
        config = SubscriptionGroupConfig(group, retry_max_times=retries, consume_message_orderly=ordered)
        return await groups.create(config)

    made = site(directory, namesrv, credentials_file).ask(work)
    say(f"{group} is made on {', '.join(made)}")


consumer = group_of(
    "consumer",
    "Consumer groups: list, describe, create, reset, delete.",
    list_,
    describe,
    create,
    reset,
    delete,
)
