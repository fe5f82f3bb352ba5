"""``keelmq top``: a cluster live: groups, roles, epochs, SyncStateSets, rates, lag, disks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from admin import ending
from admin.commands.reach import Site, as_json, reaches, site, tell
from admin.exits import DONE, UNFINISHED
from admin.local.cluster import LocalCluster
from admin.numbers import Number
from admin.tls import client_env
from admin.top import screen
from admin.top.look import Look, look
from admin.top.view import View, view
from client.admin import AdminClient
from model.settings import some_addresses

Show = Callable[[View], bool]


@click.command(short_help="A cluster live: roles, rates, lag, disks.")
@click.option("--once", is_flag=True, help="One look, and end.")
@click.option(
    "--every",
    "every_s",
    type=Number(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option(
    "--groups",
    "groups_max",
    type=click.IntRange(1),
    default=15,
    show_default=True,
    help="Consumer groups shown by name, the furthest behind first.",
)
@click.option("--controllers", metavar="HOST:PORT;...", help="Its Controllers, beside --namesrv.")
@as_json
@reaches
def top(
    once: bool,
    every_s: float,
    groups_max: int,
    controllers: str | None,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> int:
    """Show a cluster live: who is what in each broker group, what comes in and goes out, how far consumer
    groups are behind, how full the disks are. A server that does not answer within a second is named.

    Ctrl-C ends it. With --json one object a line for each look. Nothing is changed by the looks. Exit code 3
    with --once: no NameServer answered.

    Example: keelmq top --every 1
    """
    where = site(directory, namesrv, credentials_file)
    if controllers is not None:
        asked = some_addresses(controllers, "--controllers")
    elif namesrv is None:
        asked = [node.controller_address for node in LocalCluster.open(directory).layout.namesrvs]
    else:
        asked = []
    if as_json:
        return _run(where, asked, None if once else every_s, lambda seen: tell(json.dumps(seen.to_json())))
    if once or not sys.stdout.isatty():
        return _run(where, asked, None if once else every_s, lambda seen: _block(seen, groups_max))
    return _live(where, asked, every_s, groups_max)


def _block(seen: View, groups_max: int) -> bool:
    return tell("\n".join(screen.lines(seen, groups_max)) + "\n")


def _live(where: Site, controllers: list[str], every_s: float, groups_max: int) -> int:
    console = Console(highlight=False, markup=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(seen: View) -> bool:
            fits = screen.cut(screen.lines(seen, groups_max), console.width, console.height)
            live.update(Text("\n".join(fits)), refresh=True)
            return True

        return _run(where, controllers, every_s, show)


def _run(where: Site, controllers: list[str], every_s: float | None, show: Show) -> int:
    """Look and show until ``show`` says no more or Ctrl-C; ``every_s`` None: once. The exit code."""

    async def work() -> int:
        before: Look | None = None
        async with AdminClient(client_env(), where.namesrv, credentials=where.key) as admin:
            while True:
                began_ms = admin.session.env.monotonic_ms()
                now = await look(admin, where.namesrv, controllers)
                goes_on = show(view(now, before))
                if every_s is None and all(one.problem for one in now.nameservers):
                    return UNFINISHED
                if not goes_on or every_s is None:
                    return DONE
                before = now
                spent_s = (admin.session.env.monotonic_ms() - began_ms) / 1000
                await asyncio.sleep(max(0.0, every_s - spent_s))

    with ending.in_order(quiet=True):
        try:
            return ending.run(work())
        except KeyboardInterrupt:  # the usual end: nothing to say
            return DONE
