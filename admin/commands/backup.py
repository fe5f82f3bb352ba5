"""``keelmq backup``: a store kept elsewhere, added to again and again, and made anew from there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn
from rich.progress import Progress as Bar

from admin import ending
from admin.backup.manifest import CannotBackUp, Manifest
from admin.backup.remote import target_of
from admin.backup.restoring import check
from admin.backup.restoring import restore as restore_store
from admin.backup.saving import save
from admin.backup.target import Target
from admin.exits import DONE, WARNINGS
from admin.group import group_of

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+:/")


def _place(context: click.Context, parameter: click.Parameter, text: str) -> Path | str:
    """A directory, or a URL with two slashes."""
    if not _URL.match(text):
        return Path(str(click.Path(file_okay=False).convert(text, parameter, context)))
    if "://" not in text:
        raise click.UsageError(f"{text}: neither a directory nor a URL such as s3://bucket/broker-a")
    return text


_TO_COME: Final = (
    "its broker makes queues, index and checkpoint at its first start; until then keelmq store verify"
    " finds them missing"
)

_target = click.argument("target", callback=_place)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_name = click.option("--name", metavar="TIME", help="A backup of keelmq backup list. [the newest]")


@contextmanager
def _opened(place: Path | str, what: str) -> Iterator[Target]:
    """With a progress bar on stderr, when that is a terminal. SIGTERM and SIGHUP end it in order, too: what
    was begun is removed."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn())
    bar_ = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
    with ending.in_order(quiet=True), bar_ as bar:
        task = bar.add_task(what, total=None)
        yield target_of(place, lambda size: bar.update(task, advance=size), _now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.command(short_help="Add a backup of a store.")
@click.argument("store", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_target
@click.option("--keep", type=click.IntRange(1), default=7, show_default=True, help="Backups to keep.")
@_json
def create(store: Path, target: Path | str, keep: int, as_json: bool) -> None:
    """Add a backup of STORE, a broker's storePathRootDir, to the directory TARGET.

    The broker may run: a slave's store is as good as the master's. What is in TARGET already is not copied
    again; the segment that is written is, whole, when it has grown. With keelmq[backup] TARGET may be a URL,
    s3://bucket/broker-a, of any file system fsspec knows.

    Example: keelmq backup create /var/lib/keelmq/store /mnt/backup/broker-a
    """
    if isinstance(target, Path) and target.resolve().is_relative_to(store.resolve()):
        raise click.UsageError(f"{target} lies in the store itself")
    with _opened(target, "backing up") as opened:
        name, manifest, new_bytes = save(store, opened, _now_ms(), keep)
    if as_json:
        click.echo(json.dumps({**_row(name, manifest), "newBytes": new_bytes}))
    else:
        click.echo(f"{name}: {_text(manifest)}; {new_bytes:,} bytes were new in {opened.place}")
    _say(opened.problems)


@click.command("list", short_help="Which backups are there.")
@_target
@_json
def list_(target: Path | str, as_json: bool) -> int:
    """Show the backups in TARGET, oldest first. Exit code 1 when one of them cannot be read.

    Example: keelmq backup list /mnt/backup/broker-a
    """
    opened = target_of(target, lambda size: None, _now_ms)
    found = opened.manifests(opened.names())
    rows = [(name, one) for name, one in found.items() if isinstance(one, Manifest)]
    if as_json:
        click.echo(json.dumps([_row(name, manifest) for name, manifest in rows]))
    else:
        for name, manifest in rows:
            click.echo(f"{name}: {_text(manifest)}, of {manifest.source}")
    unread = [one for one in found.values() if isinstance(one, str)]
    _say(unread)
    return WARNINGS if unread else DONE


@click.command(short_help="Is a backup whole?")
@_target
@_name
def verify(target: Path | str, name: str | None) -> None:
    """Read all that a backup holds and compare it with its SHA-256. Exit code 3 when it is not whole.

    What is damaged is noted in TARGET: the next keelmq backup create writes anew what the store still has.

    Example: keelmq backup verify /mnt/backup/broker-a
    """
    with _opened(target, "reading") as opened, opened.reading():
        chosen = opened.chosen(name)
        manifest = opened.manifest(chosen)
        check(opened, manifest)
    click.echo(f"{chosen} is whole: {_text(manifest)}")


@click.command(short_help="Make a store from a backup.")
@_target
@click.argument("store", type=click.Path(path_type=Path))
@_name
def restore(target: Path | str, store: Path, name: str | None) -> None:
    """Make the directory STORE from a backup in TARGET, for the first broker of a new group.

    docs/operations.md says what goes before and after.

    Example: keelmq backup restore /mnt/backup/broker-a /var/lib/keelmq/store
    """
    with _opened(target, "restoring") as opened, opened.reading():
        chosen = opened.chosen(name)
        manifest = opened.manifest(chosen)
        if not store.parent.is_dir():
            raise CannotBackUp(f"there is no directory {store.parent} to restore into")
        restore_store(opened, manifest, store)
    click.echo(f"{store}: {_text(manifest)}, as of {chosen}")
    click.echo(f"keelmq: {_TO_COME}", err=True)


def _say(problems: list[str]) -> None:
    """A line each, on stderr."""
    for problem in problems:
        click.echo(f"keelmq: {problem}", err=True)


def _text(manifest: Manifest) -> str:
    return f"log from {manifest.begin:,} to {manifest.end:,}, {len(manifest.tables)} tables"


def _row(name: str, manifest: Manifest) -> dict[str, Any]:
    at = datetime.fromtimestamp(manifest.made_ms / 1000, UTC)
    return {
        "name": name,
        "at": at.isoformat(timespec="milliseconds"),
        "source": manifest.source,
        "begin": manifest.begin,
        "end": manifest.end,
        "tables": len(manifest.tables),
    }


backup = group_of(
    "backup", "A store kept elsewhere: create, list, verify, restore.", create, list_, verify, restore
)
