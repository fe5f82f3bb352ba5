"""The commands about topics: ``keelmq topic list | describe | create | alter | delete``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from admin.commands.messaging.altering import PERMS, alter, in_words, need_name
from admin.commands.messaging.consumer import BUILT_IN
from admin.commands.reach import ago, as_json, need_yes, reaches, say_json, show, site
from admin.group import group_of
from admin.terminal import say
from client.admin import AdminClient, QueueStats
from client.message import NoMaster, NoRoute
from model.errors import ConfigError
from model.topic import INTERNAL_TOPICS, NOT_FOR_CLIENT_SENDS, TopicConfig


@click.command("list", short_help="Every topic the NameServers know.")
@click.option("--all", "whole", is_flag=True, help="RocketMQ's own and %RETRY%, %DLQ% topics, too.")
@as_json
@reaches
def list_(
    whole: bool, as_json: bool, directory: Path, namesrv: str | None, credentials_file: str | None
) -> None:
    """List the topics of a cluster.

    Example: keelmq topic list --namesrv 10.0.0.1:9876
    """

    found = site(directory, namesrv, credentials_file).ask(lambda admin: topic_names(admin, whole))
    if as_json:
        say_json(found)
    else:
        for name in found:
            say(name)


@click.command(short_help="A topic's queues, and what they hold.")
@click.argument("name")
@as_json
@reaches
def describe(
    name: str, as_json: bool, directory: Path, namesrv: str | None, credentials_file: str | None
) -> None:
    """Show the queues of a topic: where they are, which offsets are held, how long ago the last message came.

    Example: keelmq topic describe orders
    """
    need_name(name)

    async def work(
        admin: AdminClient,
    ) -> tuple[list[QueueStats], dict[str, tuple[str, TopicConfig]], list[str]]:
        found = await admin.topic_stats(name)
        if as_json:
            return found, {}, []
        readers = [group for group in await admin.groups_of(name) if group not in BUILT_IN]
        return found, await admin.topic_configs(name), readers

    found, configs, readers = site(directory, namesrv, credentials_file).ask(work)
    if as_json:
        say_json(
            [
                {
                    **stats.queue.to_json(),
                    "minOffset": stats.min_offset,
                    "maxOffset": stats.max_offset,
                    "lastTimestamp": stats.last_ms or None,
                }
                for stats in found
            ]
        )
        return
    for group, (_, config) in configs.items():
        say(f"{group}: {in_words(config)}")
    say(f"consumer groups: {', '.join(readers) or 'none'}")
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            s.queue.broker_name,
            s.queue.queue_id,
            s.min_offset,
            s.max_offset,
            s.max_offset - s.min_offset,
            ago(s.last_ms, now_ms),
        )
        for s in found
    ]
    columns = ("broker group", "queue", "first", "next", "messages", "last")
    show(rows, columns, numbers=columns[1:])


@click.command(short_help="Create a topic, or change its queues.")
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 65535), default=8, show_default=True, help="On each group.")
@click.option("--perm", type=click.Choice(sorted(PERMS)), default="rw", show_default=True)
@click.option("--order", is_flag=True, help="An ordered topic.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Broker groups [all].")
@reaches
def create(
    name: str,
    queues: int,
    perm: str,
    order: bool,
    groups: tuple[str, ...],
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> None:
    """Create a topic on every broker group that has a master, or on those named.

    A topic that is there gets this number of queues and these permissions. To have fewer queues, see keelmq
    topic alter.

    Example: keelmq topic create orders --queues 16
    """
    need_name(name)

    async def work(admin: AdminClient) -> list[str]:
        info = await admin.cluster_info()
        for group in groups:
            if group not in info.brokers:
                known = ", ".join(info.brokers) or "none"
                raise ConfigError(f"there is no broker group {group}; the NameServers know {known}")
        await _need_no_more(admin, name, queues, groups or tuple(info.brokers))
        await admin.create_topic(name, queues, brokers=groups, perm=PERMS[perm], order=order)
        return list(dict.fromkeys(groups)) or list(info.brokers)

    made = site(directory, namesrv, credentials_file).ask(work)
    say(f"{name}: {queues} queues on {', '.join(made)}")


async def _need_no_more(admin: AdminClient, name: str, queues: int, groups: tuple[str, ...]) -> None:
    """Raises ConfigError when the topic is there with more queues: nobody would read those that go."""
    try:
        there = await admin.topic_configs(name)
    except (NoRoute, NoMaster):
        return
    for group, (_, config) in there.items():
        has = max(config.read_queues, config.write_queues)
        if has > queues and group in groups:
            raise ConfigError(f"{name} has {has} queues on {group}: keelmq topic alter takes some away")


@click.command(short_help="Delete a topic and what it holds.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@reaches
def delete(name: str, yes: bool, directory: Path, namesrv: str | None, credentials_file: str | None) -> None:
    """Delete a topic on every broker group. Its messages are gone.

    Example: keelmq topic delete orders --yes
    """
    need_name(name)
    where = site(directory, namesrv, credentials_file)

    async def held(admin: AdminClient) -> list[QueueStats]:
        return await admin.topic_stats(name)

    messages = sum(s.max_offset - s.min_offset for s in where.ask(held))
    need_yes(f"{name} holds {messages:,} messages. Delete it?", yes)

    async def work(admin: AdminClient) -> None:
        await admin.delete_topic(name)

    where.ask(work)
    say(f"{name} is deleted, and {messages:,} messages with it")


async def topic_names(admin: AdminClient, whole: bool = False) -> list[str]:
    """Those that users made; ``whole``: every one. Raises as AdminClient does."""
    info = await admin.cluster_info()
    own = {*info.clusters, *info.brokers}  # each has a topic of its name, as with RocketMQ
    own |= {f"{cluster}_REPLY_TOPIC" for cluster in info.clusters}
    return [t for t in await admin.topics() if whole or not (t in own or _is_internal(t))]


def _is_internal(name: str) -> bool:
    named = {*INTERNAL_TOPICS, *NOT_FOR_CLIENT_SENDS, "BenchmarkTest"}
    return name in named or name.lower().startswith(("%", "rmq_sys_", "tbw102"))


topic = group_of(
    "topic", "Topics: list, describe, create, alter, delete.", list_, describe, create, alter, delete
)
