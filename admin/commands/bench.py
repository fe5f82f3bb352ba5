"""``keelmq bench send | consume``: load from the shell, bounded in time, and what it took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from admin import ending
from admin.commands.reach import Site, as_json, reaches, say_json, site
from admin.exits import DONE, INTERRUPTED, UNFINISHED, WARNINGS
from admin.group import group_of
from admin.host.serve import loop_factory
from admin.load.reading import Read, Reading
from admin.load.sending import MARK, Plan, Sending, Sent
from admin.numbers import Number, whole
from admin.tls import client_env
from client.admin import AdminClient
from client.consuming.pull import PullConsumer
from client.message import NoRoute
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.errors import ConfigError
from model.settings import is_loopback, split_address
from model.topic import topic_name_error

GROUP = "keelmq-bench"
BODY_BYTES_MAX = 4 * 1024 * 1024
READ_ON_S = 10.0
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _seconds(command: _Command) -> _Command:
    return click.option(
        "--seconds",
        type=Number(0.1, 3600),
        default=10.0,
        show_default=True,
        help="How long; an hour at most.",
    )(command)


def _remote(command: _Command) -> _Command:
    return click.option("--yes-remote", is_flag=True, help="Also servers that are not on this machine.")(
        command
    )


@click.command(short_help="Send load, and say how long sends took.")
@click.argument("topic")
@_seconds
@click.option("--rate", type=Number(0.1, 1e6), help="Sends a second [as fast as it goes].")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 10_000),
    help="Sends without an answer yet [64; with --rate 1,000].",
)
@click.option("--size", default="1024", show_default=True, metavar="N|N-M", help="Bytes of a body.")
@click.option("--tag", help="Of every message.")
@click.option("--end-to-end", is_flag=True, help="Read the topic as well: when does a message arrive?")
@_remote
@as_json
@reaches
def send(
    topic: str,
    seconds: float,
    rate: float | None,
    in_flight: int | None,
    size: str,
    tag: str | None,
    end_to_end: bool,
    yes_remote: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> int:
    """Send messages to a topic that is there, and say how many a second and how long each took.

    With --rate, sends leave at their planned times whether or not others were answered, and latency counts
    from the planned time. Without, --in-flight sends are always under way. This client's own work is in all
    figures. Exit code 1 when a send was not acknowledged, 3 when none was.

    Example: keelmq bench send orders --rate 500 --seconds 30 --end-to-end
    """
    least, most = _sizes(size)
    if end_to_end and least < MARK.size:
        raise click.UsageError(f"--end-to-end needs bodies of {MARK.size} bytes at least, not {least}")
    _need_topic_name(topic)
    flight = in_flight or (64 if rate is None else 1000)
    plan = Plan(topic, seconds, rate, flight, least, most, tag)
    where = site(directory, namesrv, credentials_file)
    _need_near(where.namesrv, yes_remote)
    load = _Load(where, plan, end_to_end, yes_remote)
    told = _to_its_end(load.run())
    if as_json:
        say_json(load.to_json())
    else:
        click.echo("\n".join(load.lines()))
    return told or _code(load.sent)


def _code(sent: Sent) -> int:
    if not sent.acknowledged:
        return UNFINISHED
    return WARNINGS if sent.failed or sent.unknown else DONE


@click.command(short_help="Read a topic as fast as it goes, or live.")
@click.argument("topic")
@_seconds
@click.option("--from-begin", is_flag=True, help="All that is held, then end; else what comes from now on.")
@_remote
@as_json
@reaches
def consume(
    topic: str,
    seconds: float,
    from_begin: bool,
    yes_remote: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> int:
    """Read a topic and say how many messages came a second. Of those of a `keelmq bench send` that runs
    meanwhile it also says how long they were on their way. Commits no offset.

    Example: keelmq bench consume orders --from-begin
    """
    _need_topic_name(topic)
    where = site(directory, namesrv, credentials_file)
    _need_near(where.namesrv, yes_remote)
    found: list[Read] = []

    async def work() -> None:
        await _look_before(where, topic, yes_remote)
        async with _consumer(where) as consumer:
            reading = Reading(consumer, topic, from_begin=from_begin)
            found.append(reading.read)
            try:
                await reading.start()
                await (reading.until_end(seconds) if from_begin else asyncio.sleep(seconds))
            finally:
                await reading.stop()

    told = _to_its_end(work())
    read = found[0] if found else Read()
    if as_json:
        say_json({"topic": topic, **read.to_json()})
    else:
        click.echo("\n".join(_read_lines(read)))
    return told


class _Load:
    """One ``bench send``: the sending, and the reading beside it."""

    def __init__(self, where: Site, plan: Plan, end_to_end: bool, yes_remote: bool) -> None:
        self._where = where
        self._plan = plan
        self._end_to_end = end_to_end
        self._yes_remote = yes_remote
        self.sent = Sent()
        self.read: Read | None = None

    async def run(self) -> None:
        where, plan = self._where, self._plan
        await _look_before(where, plan.topic, self._yes_remote)
        options = SendOptions(credentials=where.key)
        async with Producer(client_env(), GROUP, list(where.namesrv), options) as producer:
            sending = Sending(plan, producer.send)
            self.sent = sending.sent
            if not self._end_to_end:
                await sending.run()
                return
            async with _consumer(where) as consumer:
                reading = Reading(consumer, plan.topic)
                self.read = reading.read
                try:
                    await reading.start()
                    await sending.run()
                    await reading.until_marked(self.sent.acknowledged, READ_ON_S)
                finally:
                    await reading.stop()

    def to_json(self) -> dict[str, Any]:
        found = {
            "topic": self._plan.topic,
            "askedRate": self._plan.rate,
            "inFlight": self._plan.in_flight,
            "sizeBytes": [self._plan.size_min, self._plan.size_max],
            **self.sent.to_json(),
        }
        return found if self.read is None else {**found, "read": self.read.to_json()}

    def lines(self) -> list[str]:
        sent, plan = self.sent, self._plan
        told = sent.to_json()
        asked = "as fast as it goes" if plan.rate is None else f"{plan.rate:,g}/s asked"
        found = [
            f"sent {sent.total:,} in {sent.seconds:.1f} s: {told['rate']:,.1f}/s acknowledged ({asked}),"
            f" {sent.sent_bytes / max(1, sent.total):,.0f} bytes each",
            f"{sent.acknowledged:,} acknowledged ({sent.not_ok} with fewer copies or syncs than asked),"
            f" {sent.failed} failed, {sent.unknown} unknown",
        ]
        if sent.first_error:
            found.append(f"first error: {sent.first_error}")
        found.append(_row("latency", told["latencyMs"]))
        if plan.rate is not None:
            found.append(_row("  of it service", told["serviceMs"]))
            found.append(_row("  of it late start", told["lateMs"]))
        if self.read is not None:
            found += _read_lines(self.read)
        return found


def _row(name: str, figures: dict[str, float] | None) -> str:
    if figures is None:
        return f"{name:<18} -"
    words = "  ".join(f"{key.replace('p999', 'p99.9')} {value:,.2f}" for key, value in figures.items())
    return f"{name:<18} {words} ms"


def _read_lines(read: Read) -> list[str]:
    told = read.to_json()
    found = [f"read {read.messages:,} in {read.seconds:.1f} s: {told['rate']:,.1f}/s"]
    if read.problems:
        found.append(f"{read.problems} pulls failed, the first: {read.first_error}")
    if told["endToEndMs"] is not None:
        found.append(_row("end to end", told["endToEndMs"]))
    return found


async def _look_before(where: Site, topic: str, yes_remote: bool) -> None:
    """Raises ConfigError when there is no such topic, or its masters are not on this machine."""
    async with AdminClient(client_env(), where.namesrv, credentials=where.key) as admin:
        try:
            route = await admin.route(topic)
        except NoRoute:
            raise ConfigError(f"there is no topic {topic}: keelmq topic create {topic}") from None
    _need_near(route.masters(), yes_remote)


def _need_near(addresses: Iterable[str], yes_remote: bool) -> None:
    """Raises ConfigError: load on somebody else's servers is not made by mistake."""
    far = [address for address in addresses if not is_loopback(split_address(address)[0])]
    if far and not yes_remote:
        raise ConfigError(f"{far[0]} is not on this machine: --yes-remote makes load there, too")


def _consumer(where: Site) -> PullConsumer:
    return PullConsumer(client_env(), GROUP, where.namesrv, credentials=where.key)


def _to_its_end(work: Coroutine[Any, Any, None]) -> int:
    """Run it; Ctrl-C ends it early, and what was measured until then is shown."""
    with ending.in_order(quiet=True):
        try:
            ending.run(work, loop_factory())
        except KeyboardInterrupt:
            return INTERRUPTED
    return DONE


def _sizes(text: str) -> tuple[int, int]:
    """``1024`` or ``100-4096``. Raises UsageError."""
    first, dash, last = text.partition("-")
    least = whole(first)
    most = whole(last) if dash else least
    if least is None or most is None:
        raise click.UsageError(f"--size {text[:60]!r}: expected bytes, N or N-M")
    if not 1 <= least <= most <= BODY_BYTES_MAX:
        raise click.UsageError(f"--size {text!r}: 1 to {BODY_BYTES_MAX:,} bytes, the smaller one first")
    return least, most


def _need_topic_name(topic: str) -> None:
    problem = topic_name_error(topic)
    if problem is not None:
        raise click.UsageError(problem)


bench = group_of("bench", "Load from the shell: send, consume.", send, consume)
