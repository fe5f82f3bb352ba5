"""The commands about messages: ``keelmq send`` and ``keelmq tail``."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from admin import ending
from admin.commands.consumer import moment_ms
from admin.commands.reach import as_json, reaches, site
from admin.exits import DONE, UNFINISHED
from admin.tls import client_env
from client.message import Message, Queue, Received, SendResult, SendStatus
from client.producer import Producer, SendOptions
from client.pull import PullConsumer, PullStatus
from model.errors import MqError
from model.topic import topic_name_error
from runtime.tasks import Tasks

PRODUCER_GROUP = "keelmq-shell"
CONSUMER_GROUP = "TOOLS_CONSUMER"  # every RocketMQ broker has it for its tools
LINE_BYTES_MAX = 4 * 1024 * 1024
HELD_MS = 5000


@click.command(short_help="Send messages from the shell.")
@click.argument("topic")
@click.argument("bodies", nargs=-1)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A message whose body is the file. May be given more than once.",
)
@click.option("--lines", is_flag=True, help="A message for each line of stdin.")
@click.option("--tag", help="Of every message.")
@click.option("--key", "keys", multiple=True, help="Of every message.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Of every message.")
@as_json
@reaches
def send(
    topic: str,
    bodies: tuple[str, ...],
    files: tuple[Path, ...],
    lines: bool,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> int:
    """Send messages to a topic and say where each is stored. Exit code 3 when one was not acknowledged.

    Example: keelmq send orders 'hello' --key 4711
    """
    problem = topic_name_error(topic)
    if problem is not None:
        raise click.UsageError(problem)
    if not (bodies or files or lines):
        raise click.UsageError("nothing to send: give bodies, --file or --lines")
    own = dict(_pair(text) for text in properties)
    where = site(directory, namesrv, credentials_file)
    every = _bodies(bodies, files, lines)

    options = SendOptions(credentials=where.key)

    async def work() -> bool:
        good = True
        async with Producer(client_env(), PRODUCER_GROUP, where.namesrv, options) as producer:
            silence = producer.session.routes.silence
            silence.on_silent.append(lambda text: click.echo(f"keelmq: {text}", err=True))
            for body in every:
                message = Message(topic=topic, body=body, tags=tag, keys=list(keys), properties=dict(own))
                try:
                    result = await producer.send(message)
                except ValueError as error:  # what no broker could store
                    raise click.UsageError(str(error)) from None
                good = good and result.status is SendStatus.SEND_OK
                click.echo(json.dumps(_sent(result)) if as_json else _sent_line(result))
        return good

    with ending.in_order():
        return DONE if ending.run(work()) else UNFINISHED


def _bodies(texts: Iterable[str], files: Iterable[Path], lines: bool) -> Iterable[bytes]:
    for text in texts:
        yield text.encode()
    for path in files:
        yield path.read_bytes()
    if lines:
        while line := sys.stdin.buffer.readline(LINE_BYTES_MAX + 1):
            yield line.rstrip(b"\r\n")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--property {text!r}: expected NAME=VALUE")
    return name, value


def _sent(result: SendResult) -> dict[str, Any]:
    return {
        "status": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        **result.queue.to_json(),
        "queueOffset": result.queue_offset,
    }


def _sent_line(result: SendResult) -> str:
    return f"{result.status.name}  {result.queue}  offset {result.queue_offset}  {result.msg_id}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ``tail`` shows: from where on, how many at most (0 = no end), with which tags and key."""

    since_ms: int | None
    from_begin: bool
    count: int
    expression: str
    key: str | None
    follow: bool


@click.command(short_help="Show messages of a topic as they come.")
@click.argument("topic")
@click.option("--from-begin", is_flag=True, help="Everything that is held first.")
@click.option(
    "--since", metavar="TIME", help="From then on: 2026-11-22T20:00 (UTC without a zone), or 10m ago."
)
@click.option("--count", type=click.IntRange(1), help="End after so many.")
@click.option(
    "--tag", "expression", default="*", show_default=True, metavar="A || B", help="Only these tags."
)
@click.option("--key", help="Only messages with this key.")
@click.option("--no-follow", is_flag=True, help="End at the end of the topic.")
@as_json
@reaches
def tail(
    topic: str,
    from_begin: bool,
    since: str | None,
    count: int | None,
    expression: str,
    key: str | None,
    no_follow: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> None:
    """Show the messages of a topic: new ones, or from a time on. Commits no offset; Ctrl-C ends it.

    Messages of one queue come in its order, those of different queues as they are read.

    Example: keelmq tail orders --since 10m --tag paid
    """
    if since is not None and from_begin:
        raise click.UsageError("--from-begin and --since exclude each other")
    wanted = Wanted(
        None if since is None else moment_ms(since), from_begin, count or 0, expression, key, not no_follow
    )
    where = site(directory, namesrv, credentials_file)

    async def work() -> None:
        async with PullConsumer(
            client_env(), CONSUMER_GROUP, where.namesrv, credentials=where.key
        ) as consumer:
            shown = 0
            async for message in _messages(consumer, topic, wanted):
                click.echo(json.dumps(_received(message)) if as_json else _line(message))
                shown += 1
                if shown == wanted.count:
                    return

    with ending.in_order():
        ending.run(work())


async def _messages(consumer: PullConsumer, topic: str, wanted: Wanted) -> AsyncIterator[Received]:
    """Messages of all queues, one queue's in its order; each queue is read by a task of its own."""
    found: asyncio.Queue[Received | BaseException | None] = asyncio.Queue(1024)
    queues = await consumer.queues(topic)
    readers = Tasks("tail")
    for queue in queues:
        readers.spawn(_read(consumer, queue, wanted, found), name=str(queue))
    left = len(queues)
    try:
        while left:
            one = await found.get()
            if one is None:
                left -= 1
            elif isinstance(one, BaseException):
                raise one
            elif wanted.key is None or wanted.key in one.keys:
                yield one
    finally:
        await readers.cancel()


async def _read(
    consumer: PullConsumer,
    queue: Queue,
    wanted: Wanted,
    found: asyncio.Queue[Received | BaseException | None],
) -> None:
    try:
        end = await consumer.max_offset(queue)
        offset = end
        if wanted.from_begin:
            offset = await consumer.min_offset(queue)
        elif wanted.since_ms is not None:
            offset = await consumer.offset_by_time(queue, wanted.since_ms)
        while wanted.follow or offset < end:
            held_ms = HELD_MS if wanted.follow else 0
            pulled = await consumer.pull(queue, offset, expression=wanted.expression, suspend_ms=held_ms)
            for message in pulled.messages:
                await found.put(message)
            if pulled.status is PullStatus.NO_NEW and not wanted.follow:
                break
            offset = pulled.next_offset
        await found.put(None)
    except (MqError, OSError) as error:
        await found.put(error)


def _line(message: Received) -> str:
    moment = datetime.fromtimestamp(message.store_timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    words = [moment, f"{message.queue}:{message.queue_offset}"]
    if message.tags:
        words.append(f"tag={message.tags}")
    if message.keys:
        words.append(f"keys={','.join(message.keys)}")
    body = message.body.decode(errors="backslashreplace")
    return "  ".join([*words, "".join(c if c.isprintable() else repr(c)[1:-1] for c in body)])


def _received(message: Received) -> dict[str, Any]:
    return {
        **message.queue.to_json(),
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "body": message.body.decode(errors="backslashreplace"),
    }
