"""The commands about messages: ``keelmq send`` and ``keelmq tail``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from admin import ending
from admin.commands.messaging.altering import need_name
from admin.commands.messaging.bodies import Bodies, Unfit
from admin.commands.messaging.consumer import moment_ms
from admin.commands.reach import as_json, reaches, site, tell
from admin.commands.shown import line, received_json
from admin.exits import DONE, INTERRUPTED, UNFINISHED
from admin.terminal import say
from admin.tls import client_env
from client.consuming.pull import PullConsumer, PullStatus
from client.message import Message, Queue, Received, SendResult, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.errors import MqError
from runtime.tasks import Tasks

PRODUCER_GROUP = "keelmq-shell"
CONSUMER_GROUP = "TOOLS_CONSUMER"  # every RocketMQ broker has it for its tools
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
@click.option(
    "--lines-from",
    "line_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A message for each line of the file. May be given more than once.",
)
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
    line_files: tuple[Path, ...],
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
    need_name(topic)
    if not (bodies or files or lines or line_files):
        raise click.UsageError("nothing to send: give bodies, --file, --lines-from or --lines")
    own = dict(_pair(text) for text in properties)
    where = site(directory, namesrv, credentials_file)
    options = SendOptions(credentials=where.key)
    every = Bodies(bodies, files, line_files, lines)
    try:
        every.check(options.message_bytes_max)
    except Unfit as error:
        raise click.UsageError(f"{error}; nothing was sent") from None
    sending = _Sending(Message(topic=topic, body=b"", tags=tag, keys=list(keys), properties=own), as_json)

    async def work() -> bool:
        async with Producer(client_env(), PRODUCER_GROUP, where.namesrv, options) as producer:
            silence = producer.session.routes.silence
            silence.on_silent.append(lambda text: say(f"keelmq: {text}", err=True))
            return await sending.all(producer, every)

    with ending.in_order():
        return DONE if ending.run(work()) else UNFINISHED


class PartlySent(MqError):
    """Of something no message can be made, and those before it were sent; the text says so."""


class _Sending:
    """``like``: what every message has, but its body."""

    def __init__(self, like: Message, as_json: bool) -> None:
        self._like = like
        self._as_json = as_json
        self._sent = 0

    async def all(self, producer: Producer, bodies: Bodies) -> bool:
        """Whether all are stored everywhere they should be. Raises UsageError when the first body is unfit,
        PartlySent for a later one."""
        good, empty = True, list[str]()
        try:
            for source, body in bodies.each(empty):
                good = await self._one(producer, source, body) and good
        except Unfit as error:
            if not self._sent:
                raise click.UsageError(f"{error}; nothing was sent") from None
            count = "1 message was" if self._sent == 1 else f"{self._sent:,} messages were"
            raise PartlySent(f"{error}; {count} sent before it") from None
        for name in empty:
            say(f"keelmq: {name} has no line: nothing was sent of it", err=True)
        return good

    async def _one(self, producer: Producer, source: str, body: bytes) -> bool:
        properties = dict(self._like.properties)
        try:
            result = await producer.send(replace(self._like, body=body, properties=properties))
        except ValueError as error:  # what no broker could store
            raise Unfit(f"{source}: {error}") from None
        self._sent += 1
        click.echo(json.dumps(_sent(result)) if self._as_json else _sent_line(result))
        return result.status is SendStatus.SEND_OK


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
@click.option("--max", "--count", "count", type=click.IntRange(1), help="End after so many.")
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
) -> int:
    """Show the messages of a topic: new ones, or from a time on. Commits no offset; Ctrl-C ends it.

    Messages of one queue come in its order, those of different queues as they are read. With --tag the
    brokers choose; with --key this command does.

    Example: keelmq tail orders --since 10m --tag paid
    """
    need_name(topic)
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
                text = json.dumps(received_json(message)) if as_json else line(message)
                shown += 1
                if not tell(text) or shown == wanted.count:
                    return

    with ending.in_order(quiet=True):
        try:
            ending.run(work())
        except KeyboardInterrupt:  # the usual end: nothing to say
            return INTERRUPTED
    return DONE


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
