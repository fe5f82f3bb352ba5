"""``keelmq store``: what does a store directory hold, and is it whole? Ours and RocketMQ's alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from admin.exits import DONE, FAILED, WARNINGS
from admin.group import group_of
from runtime.os_env import OsDisk
from store.offline import Damage, StoreDirectory
from store.offline import dump as dump_record
from store.verify import verify as verify_store

_directory = click.argument(
    "directory", type=click.Path(path_type=Path, exists=True, file_okay=False, dir_okay=True)
)


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
                click.echo(_damage(found.to_json()), err=True)
            elif topic is None or found.topic == topic:
                click.echo(json.dumps(dump_record(found), ensure_ascii=False))
    ctx.exit(WARNINGS if damaged else DONE)


@click.command()
@_directory
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """Check log, queues, index and epochs against each other; exit code 2 when damaged.

    Example: keelmq store verify clusters/default/store/broker-a-0 --json
    """
    result = verify_store(OsDisk(), str(directory))
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result)
    ctx.exit(DONE if result["ok"] else FAILED)


def _show(result: dict[str, Any]) -> None:
    log = f"bytes {result['minOffset']} to {result['maxOffset']}, confirmed to {result['confirmOffset']}"
    click.echo(f"{result['records']} records, {log}")
    for epoch in result["epochs"]:
        click.echo(f"epoch {epoch['epoch']} from {epoch['start']}")
    for damage in result["damage"]:
        click.echo(_damage(damage))
    click.echo("whole" if result["ok"] else f"damaged in {len(result['damage'])} places")


def _damage(damage: dict[str, Any]) -> str:
    where = f"{damage['file']} {damage['physicalOffset']}..{damage['until']}"
    return f"{damage['kind']}: {where} {damage.get('text', '')}".rstrip()


store = group_of("store", "Look into a store directory, ours or RocketMQ's.", dump, verify)
