"""How do commands about topics, consumer groups and messages reach a cluster, and show what they found?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table

from admin import credentials, tls
from admin.commands.which import cluster_directory
from admin.local.cluster import LocalCluster
from client.admin import AdminClient
from model.settings import addresses
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
    """Raises ConfigError when ``directory`` holds no cluster, or for an address that is none."""
    if namesrv is not None:
        at = tuple(addresses(namesrv))
    else:
        at = tuple(node.address for node in LocalCluster.open(directory).layout.namesrvs)
    return Site(at, credentials.read(credentials_file))


def show(rows: Iterable[Sequence[object]], columns: Sequence[str], *, numbers: Sequence[str] = ()) -> None:
    """A table; ``numbers`` are the columns aligned to the right. Too wide a table is cut nowhere."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=1000)
    console.print(table)


def say_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))
