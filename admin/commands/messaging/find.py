"""``keelmq message find``: which messages have this id, this key, or were stored in this time?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from admin.commands.messaging.altering import need_name
from admin.commands.messaging.consumer import moment_ms
from admin.commands.messaging.message import CONSUMER_GROUP
from admin.commands.reach import as_json, reaches, site, tell
from admin.commands.shown import in_full, received_json, short_line
from admin.exits import DONE, UNFINISHED, WARNINGS
from admin.group import group_of
from admin.terminal import say
from admin.tls import client_env
from client.admin import AdminClient
from client.consuming.pull import PullConsumer
from client.finding import LONG_MAX, MOST, Finder, Found, in_log_order
from client.message import Queue, Received


@click.command(short_help="By id, by key, or by the time they were stored.")
@click.argument("topic")
@click.option("--id", "msg_id", help="The producer's id or the broker's.")
@click.option("--key", help="One of the message's keys.")
@click.option("--since", metavar="TIME", help="Stored then or later: 2026-11-22T20:00 (UTC), or 10m ago.")
@click.option("--until", metavar="TIME", help="Stored before then.")
@click.option("--max", "most", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--full", is_flag=True, help="All that each message carries; so it is with --id.")
@as_json
@reaches
def find(
    topic: str,
    msg_id: str | None,
    key: str | None,
    since: str | None,
    until: str | None,
    most: int,
    full: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> int:
    """Find stored messages of a topic, oldest first; a line of JSON for each with --json.

    Exit code 1: there is none. 3: there may be, a broker group could not be asked.

    Example: keelmq message find orders --key 4711 --since 2h
    """
    need_name(topic)
    if msg_id is None and key is None and since is None and until is None:
        raise click.UsageError("say which: --id, --key, or --since and --until")
    if msg_id is not None and (key is not None or since is not None or until is not None):
        raise click.UsageError("an id names one message: leave out --key, --since and --until")
    if "" in (key, msg_id):
        raise click.UsageError("--id and --key are not to be blank")
    begin_ms = 0 if since is None else moment_ms(since)
    end_ms = LONG_MAX if until is None else moment_ms(until)
    if begin_ms >= end_ms:
        raise click.UsageError("--until must be later than --since")
    where = site(directory, namesrv, credentials_file)

    async def work(admin: AdminClient) -> Found:
        if msg_id is not None:
            return await Finder(admin).by_id(topic, msg_id)
        if key is None:
            consumer = PullConsumer(client_env(), CONSUMER_GROUP, where.namesrv, credentials=where.key)
            async with consumer:
                return await by_time(consumer, topic, begin_ms, end_ms, most)
        found = await Finder(admin).by_key(topic, key, begin_ms, end_ms - 1)
        if len(found.messages) >= MOST:
            say(f"keelmq: brokers show their newest {MOST} only: --until may show others", err=True)
        return found

    return _say(where.ask(work), most, as_json=as_json, full=full or msg_id is not None)


def _say(found: Found, most: int, *, as_json: bool, full: bool) -> int:
    """Print what was found; returns the exit code."""
    shown = found.messages[:most]
    for number, message in enumerate(shown):
        if as_json:
            text = json.dumps(received_json(message))
        elif full:
            text = ("\n" if number else "") + in_full(message)
        else:
            text = short_line(message)
        if not tell(text):
            break
    for problem in found.problems:
        say(f"keelmq: {problem}", err=True)
    if len(found.messages) > most:
        say(f"keelmq: the first {most} are shown: --max shows more", err=True)
    if shown:
        return DONE
    if found.problems:
        return UNFINISHED
    say("keelmq: no such message is stored", err=True)
    return WARNINGS


async def by_time(consumer: PullConsumer, topic: str, begin_ms: int, end_ms: int, most: int) -> Found:
    """The first messages that were stored in this time; one more than ``most`` says that there are others."""
    queues = await consumer.queues(topic)
    read = await asyncio.gather(*(_stored(consumer, q, begin_ms, end_ms, most + 1) for q in queues))
    every = sorted((m for found in read for m in found), key=in_log_order)
    return Found(every[: most + 1])


async def _stored(
    consumer: PullConsumer, queue: Queue, begin_ms: int, end_ms: int, most: int
) -> list[Received]:
    """The first ``most`` messages of one queue that were stored in this time."""
    end = await consumer.max_offset(queue)
    offset = await consumer.offset_by_time(queue, begin_ms)
    found: list[Received] = []
    while offset < end and len(found) < most:
        pulled = await consumer.pull(queue, offset)
        for message in pulled.messages:
            if message.store_timestamp_ms >= end_ms:
                return found
            if message.store_timestamp_ms >= begin_ms and len(found) < most:
                found.append(message)
        if pulled.next_offset <= offset:
            break
        offset = pulled.next_offset
    return found


message = group_of("message", "Stored messages: find them.", find)
