"""The commands about one broker group: ``keelmq group handover``."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click

from admin import credentials
from admin.cluster import LocalCluster
from admin.group import group_of
from admin.handover import hand_over
from admin.layout import CLUSTER
from admin.which import which_cluster
from model.settings import addresses
from runtime.os_env import OsEnv


@click.command(short_help="Make another broker master, without a failed send.")
@click.option("--group", "name", metavar="NAME", help="[the only group of --dir]")
@click.option("--to", "heir", type=click.IntRange(0), metavar="ID", help="[the smallest id in sync]")
@which_cluster("Any other cluster: its Controllers, ...")
@click.option("--namesrv", metavar="HOST:PORT;...", help="... and its NameServers.")
@click.option("--cluster-name", default=CLUSTER, show_default=True)
@credentials.option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def handover(
    name: str | None,
    heir: int | None,
    directory: Path,
    controllers: str | None,
    namesrv: str | None,
    cluster_name: str,
    credentials_file: str | None,
    as_json: bool,
) -> None:
    """Hand a group over: the master stops taking writes, the heir catches up, the Controllers elect it.

    Producers are asked to try again for that moment. Exit code 3 when the group was not handed over.

    Example: keelmq group handover --group broker-a --to 2
    """
    if (controllers is None) != (namesrv is None):
        raise click.UsageError("--controllers and --namesrv go together")
    if controllers is not None and namesrv is not None:
        at, names, groups = addresses(controllers), addresses(namesrv), []
    else:
        layout = LocalCluster.open(directory).layout
        at = [node.controller_address for node in layout.namesrvs]
        names = [node.address for node in layout.namesrvs]
        groups = layout.group_names
    if name is None:
        if len(groups) != 1:
            raise click.UsageError("--group is needed: which one of several is to be handed over?")
        name = groups[0]
    key = credentials.read(credentials_file)
    done = asyncio.run(hand_over(OsEnv(), names, at, cluster_name, name, heir, credentials=key))
    if as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        click.echo(
            f"{done.group}: broker {done.master} is master of epoch {done.epoch},"
            f" after broker {done.former} ({done.took_ms:.0f} ms)"
        )


group = group_of("group", "One broker group: who leads it.", handover)
