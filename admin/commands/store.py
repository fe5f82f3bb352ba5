"""``keelmq store``: what does a store directory hold, and is it whole? Ours and RocketMQ's alike."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from admin.exits import DONE, FAILED, WARNINGS
from admin.group import group_of
from admin.terminal import say
from model.config import StoreConfig
from runtime.os_env import FILE_MODE, OsDisk, OsEnv
from store.files.record import Record
from store.offline.directory import Damage, StoreDirectory
from store.offline.directory import dump as dump_record
from store.offline.export import parquet_library, write_json, write_parquet
from store.offline.inspect import inspect as inspect_store
from store.offline.repair import Outcome
from store.offline.repair import repair as repair_store
from store.offline.verify import Progress as OnProgress
from store.offline.verify import verify as verify_store

_directory = click.argument(
    "directory", type=click.Path(path_type=Path, exists=True, file_okay=False, dir_okay=True)
)


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def _bar(what: str) -> Iterator[OnProgress]:
    """A progress bar over bytes on stderr, when that is a terminal."""
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda size, total: bar.update(task, advance=size, total=total)


@click.command()
@_directory
@_json
def inspect(directory: Path, as_json: bool) -> None:
    """Show what a store holds at a glance; no record is checked.

    Example: keelmq store inspect clusters/default/store/broker-a-0
    """
    found = inspect_store(OsDisk(), str(directory))
    if as_json:
        click.echo(json.dumps(found))
        return
    log = found["commitLog"]
    say(f"{found['root']}: stopped {found['stop']}; identity {found['identity'] or 'none'}")
    say(f"CommitLog: {log['segments']} segments of {log['segmentBytes']} bytes from {log['minOffset']}")
    for topic, row in found["queues"]["topics"].items():
        say(f"  {topic}: {row['queues']} queues, {row['messages']} messages")
    for row in found["index"]:
        say(
            f"index {row['file']}: {row['entries']} entries, bytes {row['beginOffset']} to {row['endOffset']}"
        )
    say("checkpoint: " + ", ".join(f"{name} {value}" for name, value in found["checkpoint"].items()))
    epochs = found["epochs"]
    say(f"epochs: {epochs if isinstance(epochs, str) else _pairs(epochs) or 'none'}")
    for row in found["damaged"]:
        say(f"known damage: {row['kind']} {row['begin']}..{row['until']}, {row['lost']} records known")


def _pairs(epochs: list[dict[str, int]]) -> str:
    return ", ".join(f"{entry['epoch']} from {entry['start']}" for entry in epochs)


@click.command()
@_directory
@click.option("--format", "kind", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="File; stdout for jsonl if absent."
)
@click.option("--topic", help="Only messages of this topic.")
@click.option("--from", "begin", type=click.IntRange(0), default=0, help="First CommitLog offset, bytes.")
@click.option("--to", "end", type=click.IntRange(0), help="Offset to stop before, bytes.")
@click.option("--bodies", is_flag=True, help="With bodies, decompressed (Base64 in jsonl).")
@click.pass_context
def export(
    ctx: click.Context,
    directory: Path,
    kind: str,
    out: Path | None,
    topic: str | None,
    begin: int,
    end: int | None,
    bodies: bool,
) -> None:
    """Write the records as lines of JSON or as a Parquet file, in log order.

    What is no record goes to stderr; the exit code is then 1.

    Example: keelmq store export store --format parquet --out messages.parquet --bodies
    """
    if kind == "parquet":
        if out is None:
            raise click.UsageError("--format parquet needs --out FILE")
        parquet_library()
    damaged: list[Damage] = []

    def records(store: StoreDirectory) -> Iterator[Record]:
        for found in store.records(begin, end):
            if isinstance(found, Damage):
                damaged.append(found)
            elif topic is None or found.topic == topic:
                yield found

    with StoreDirectory(OsDisk(), str(directory)) as store, _bar("exporting") as progress:
        total = sum(segment.size for segment in store.segments())
        store.progress = lambda size: progress(size, total)
        if out is not None and not out.exists():  # messages are for its owner and group, as in a store
            os.close(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        if kind == "parquet":
            write_parquet(str(out), records(store), bodies)
        elif out is None:
            write_json(sys.stdout, records(store), bodies)
        else:
            with out.open("w", encoding="utf-8", errors="surrogateescape") as file:
                write_json(file, records(store), bodies)
    for item in damaged:
        say(_damage(item.to_json()), err=True)
    ctx.exit(WARNINGS if damaged else DONE)


class _QueueFileBytes(click.IntRange):
    """As the configuration has it."""

    name = "bytes"

    def __init__(self) -> None:
        super().__init__(min=20)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        size = int(super().convert(value, param, ctx))
        if size % 20:
            self.fail(f"{size} is no multiple of 20.", param, ctx)
        return size


@click.command()
@_directory
@click.option(
    "--from",
    "peers",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Store of a replica; may be given more than once.",
)
@click.option("--cut-tail", is_flag=True, help="Also cut a torn record off the end of the log.")
@click.option(
    "--queue-file-bytes",
    type=_QueueFileBytes(),
    help="Its broker's mappedFileSizeConsumeQueue, where neither files nor replicas tell it.",
)
@_json
@click.pass_context
def repair(
    ctx: click.Context,
    directory: Path,
    peers: tuple[Path, ...],
    cut_tail: bool,
    queue_file_bytes: int | None,
    as_json: bool,
) -> None:
    """Mend damaged records from replicas' stores, queues and index from the log. No broker may run on it.

    With replicas, what no CRC covers (properties, times, places in queues) is compared with theirs: what most
    copies say is taken over; of two, the one that queue and index fit.

    Exit code 0: nothing is damaged any more, and "store verify" says the same; 2: something is left.

    Example: keelmq store repair store/broker-a-0 --from store/broker-a-1 --from store/broker-a-2
    """
    sources = [str(peer) for peer in peers]
    with _bar("reading") as progress:
        outcome = repair_store(
            OsDisk(),
            str(directory),
            sources,
            cut_tail=cut_tail,
            now_ms=OsEnv().now_ms(),
            config=StoreConfig(queue_file_bytes=queue_file_bytes) if queue_file_bytes else None,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(outcome.to_json()))
    else:
        _tell(outcome)
    ctx.exit(FAILED if outcome.left else DONE)


def _left(row: dict[str, Any]) -> str:
    more = f" (and {row['count'] - 1} more like it)" if row.get("count", 1) > 1 else ""
    named = row["kind"].startswith("cq_") or row["kind"] == "file_unreadable"
    file = f"{row['file']} " if named else ""
    return f"left: {row['kind']} {file}{row['physicalOffset']}..{row['until']}: {row['why']}{more}"


def _tell(outcome: Outcome) -> None:
    for row in outcome.repaired:
        say(f"repaired {row['physicalOffset']}..{row['until']} from {row['from']}")
    for row in outcome.left:
        say(_left(row))
    if outcome.entries:
        say(f"{outcome.entries} queue entries made right")
    if outcome.resized:
        say(f"{outcome.resized} queue files got their size")
    if outcome.indexed is not None:
        say(f"the index was made anew of {outcome.indexed} records")
    if outcome.tail is not None:
        done = "cut off" if outcome.tail_cut else "is torn; --cut-tail cuts it, and so does the next start"
        say(f"tail: what begins at {outcome.tail['physicalOffset']} {done}")
    made = outcome.entries or outcome.resized or outcome.indexed is not None
    if not (outcome.repaired or outcome.left or made):
        say("nothing to repair")


@click.command()
@_directory
@click.option("--topic", help="Only messages of this topic.")
@click.option("--from", "begin", type=click.IntRange(0), default=0, help="First CommitLog offset, bytes.")
@click.option("--to", "end", type=click.IntRange(0), help="Offset to stop before, bytes.")
@click.pass_context
def dump(ctx: click.Context, directory: Path, topic: str | None, begin: int, end: int | None) -> None:
    """Print each record of the CommitLog as a line of JSON, in log order.

    What is no record goes to stderr; the exit code is then 1.

    Example: keelmq store dump clusters/default/store/broker-a-0 --topic T | head
    """
    damaged = False
    with StoreDirectory(OsDisk(), str(directory)) as store:
        for found in store.records(begin, end):
            if isinstance(found, Damage):
                damaged = True
                say(_damage(found.to_json()), err=True)
            elif topic is None or found.topic == topic:
                click.echo(json.dumps(dump_record(found), ensure_ascii=False))
    ctx.exit(WARNINGS if damaged else DONE)


@click.command()
@_directory
@_json
@click.pass_context
def verify(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """Check log, queues, index and epochs against each other; exit code 2 when damaged.

    What no CRC covers is seen where queue or index say otherwise; "keelmq audit" compares replicas.

    Example: keelmq store verify clusters/default/store/broker-a-0 --json
    """
    with _bar("verifying") as progress:
        result = verify_store(OsDisk(), str(directory), progress=progress)
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result)
    ctx.exit(DONE if result["ok"] else FAILED)


def _show(result: dict[str, Any]) -> None:
    log = f"bytes {result['minOffset']} to {result['maxOffset']}, confirmed to {result['confirmOffset']}"
    say(f"{result['records']} records, {log}")
    for epoch in result["epochs"]:
        say(f"epoch {epoch['epoch']} from {epoch['start']}")
    for damage in result["damage"]:
        say(_damage(damage))
    say("whole" if result["ok"] else f"damaged in {len(result['damage'])} places")


def _damage(damage: dict[str, Any]) -> str:
    where = f"{damage['file']} {damage['physicalOffset']}..{damage['until']}"
    return f"{damage['kind']}: {where} {damage.get('text', '')}".rstrip()


store = group_of(
    "store", "Look into a store directory, ours or RocketMQ's.", inspect, verify, dump, repair, export
)
