"""How do commands about topics, consumer groups and messages reach a cluster, and show what they found?"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from rich import box
from rich.console import Console
from rich.table import Table

from admin import credentials, tls
from admin.commands.which import NAMESRV, cluster_directory, opened
from admin.terminal import printable
from client.admin import AdminClient
from model.errors import ConfigError
from model.settings import some_addresses
from remoting.keys import Signer

T = TypeVar("T")
_Command = TypeVar("_Command", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster's NameServers, and the key to sign with where it wants one."""

    namesrv: tuple[str, ...]
    key: Signer | None

    def ask(self, work: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Run ``work`` with an AdminClient. Raises as it does."""

        async def inside() -> T:
            async with AdminClient(tls.client_env(), self.namesrv, credentials=self.key) as admin:
                return await work(admin)

        return asyncio.run(inside())


def reaches(command: _Command) -> _Command:
    """Give a command ``directory``, ``namesrv`` and ``credentials_file``, which ``site`` takes."""
    command = credentials.option(tls.option(command))
    command = click.option("--namesrv", metavar="HOST:PORT;...", help="Any other cluster: its NameServers.")(
        command
    )
    return cluster_directory("A cluster of keelmq cluster up.")(command)


def site(directory: Path, namesrv: str | None, credentials_file: str | None) -> Site:
    """Raises ConfigError when ``directory`` holds no cluster, or for an address that is none, and UsageError
    when both were typed."""
    if namesrv is not None:
        context = click.get_current_context(silent=True)
        if context is not None and context.get_parameter_source("directory") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--dir and --namesrv name a cluster each: leave one out")
        at = tuple(some_addresses(namesrv, "--namesrv"))
    else:
        at = tuple(node.address for node in opened(directory, NAMESRV).layout.namesrvs)
    return Site(at, credentials.read(credentials_file))


def show(rows: Iterable[Sequence[object]], columns: Sequence[str], *, numbers: Sequence[str] = ()) -> None:
    """A table; ``numbers`` are the columns aligned to the right. Too wide a table is cut nowhere."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else printable(str(value)) for value in row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=1000)
    console.print(table)


def need_yes(question: str, yes: bool) -> None:
    """Ask, unless ``yes``. Raises ConfigError where nobody is there to answer, Abort for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody is there to answer: add --yes")
    click.confirm(question, abort=True)


def ago(past_ms: int, now_ms: int) -> str:
    """How long ago, in the largest unit that says it: 12s, 5m, 3h, 2d. ``-`` for a time that is none (0)."""
    if past_ms <= 0:
        return "-"
    seconds = max(0, now_ms - past_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def tell(lines: str) -> bool:
    """Print lines, each of them ``printable``, now; False when the reader of a pipe is gone (``| head``):
    that is no failure."""
    try:
        click.echo(lines)
    except BrokenPipeError:
        # Python flushes stdout once more at the end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def say_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))
