"""The commands of local clusters: ``keelmq cluster up | status | restart | down``."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from admin import credentials, ending, tls
from admin.commands.which import cluster_directory
from admin.exits import DONE, WARNINGS
from admin.group import group_of
from admin.local import rolling as rolling_restart
from admin.local.cluster import UP_TIMEOUT_S, LocalCluster
from admin.local.layout import no_drill
from admin.local.rolling import RollingRestart
from admin.local.rolling import restart as restart_rolling
from admin.numbers import Number

_dir = cluster_directory("Where the cluster's state, logs and stores lie.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command(short_help="Start a cluster, or what is missing of it.")
@_dir
@click.option("--brokers", type=click.IntRange(1, 16), help="Brokers per group [3].")
@click.option("--controllers", type=click.IntRange(1, 9), help="NameServers with a Controller in each [3].")
@click.option("--groups", type=click.IntRange(1, 64), help="Broker groups [1].")
@click.option("--base-port", type=click.IntRange(1024, 60000), help="First port [a free range].")
@click.option("--set", "settings", multiple=True, metavar="ROLE.KEY=V", help="ROLE: broker or namesrv.")
@click.option(
    "--timeout", "timeout_s", type=Number(min=0), default=UP_TIMEOUT_S, show_default=True, help="Seconds."
)
@_json
def up(
    directory: Path,
    brokers: int | None,
    controllers: int | None,
    groups: int | None,
    base_port: int | None,
    settings: tuple[str, ...],
    timeout_s: float,
    as_json: bool,
) -> None:
    """Start a cluster, or what is missing of it; returns when every SyncStateSet is full.

    Example: keelmq cluster up --dir /tmp/c1 --set broker.flushDiskType=SYNC_FLUSH
    """
    no_drill(directory)
    cluster = LocalCluster.create(
        directory,
        controllers=controllers,
        groups=groups,
        brokers=brokers,
        base_port=base_port,
        settings=settings,
    )
    with ending.in_order():
        status = ending.run(cluster.up(timeout_s=timeout_s, tell=lambda text: click.echo(text, err=True)))
    _show(status, as_json)


@click.command(short_help="Show servers, masters and SyncStateSets.")
@_dir
@_json
def status(directory: Path, as_json: bool) -> None:
    """Show servers, masters and SyncStateSets, and what is missing. Exit code 0 whatever the state is.

    Example: keelmq cluster status --json
    """
    cluster = LocalCluster.open(directory)
    views = asyncio.run(cluster.views())
    _show(cluster.status_of(views), as_json)
    missing = cluster.missing(views)
    if missing and not as_json:
        click.echo(missing, err=True)


@click.command(short_help="End the servers; the data stays.")
@_dir
@click.pass_context
def down(ctx: click.Context, directory: Path) -> None:
    """End the servers of a cluster (only processes that are really its own); data stays.

    Example: keelmq cluster down --dir /tmp/c1
    """
    killed = LocalCluster.open(directory).down()
    for name in killed:
        click.echo(f"{name} did not stop in time and was killed", err=True)
    ctx.exit(WARNINGS if killed else DONE)


@click.command(short_help="Restart every server, one at a time, while the cluster serves.")
@click.option("--rolling", is_flag=True, help="One server at a time: the only way there is.")
@click.option("--dry-run", is_flag=True, help="Only say the order.")
@click.option("--set", "settings", multiple=True, metavar="ROLE.KEY=V", help="ROLE: broker or namesrv.")
@click.option("--force", is_flag=True, help="Also where one server away interrupts sends.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Number(min=1),
    default=UP_TIMEOUT_S,
    show_default=True,
    help="Seconds that each server may take until all is whole again.",
)
@_dir
@credentials.option
@tls.option
@_json
def restart(
    rolling: bool,
    dry_run: bool,
    settings: tuple[str, ...],
    force: bool,
    timeout_s: float,
    directory: Path,
    credentials_file: str | None,
    as_json: bool,
) -> None:
    """Restart the servers of a cluster one at a time: the NameServers, the one that leads the Controllers
    last; of each group the slaves, then the master, which hands over before.

    The next one has its turn when every broker is in the SyncStateSet again and follows its master. When
    that does not come in time the command stops, with exit code 3, and leaves the rest alone.

    Example: keelmq cluster restart --rolling --set broker.flushDiskType=SYNC_FLUSH
    """
    if not rolling:
        raise click.UsageError("say --rolling (all at once: keelmq cluster down, then keelmq cluster up)")
    cluster = LocalCluster.open(directory)
    if dry_run:
        cluster.take(settings)
        _say_order(cluster, as_json=as_json)
        return
    done = restart_rolling(
        RollingRestart(
            cluster,
            tls.client_env(),
            credentials=credentials.read(credentials_file),
            timeout_s=timeout_s,
            tell=lambda text: click.echo(text, err=True),
            settings=settings,
            force=force,
        )
    )
    if as_json:
        click.echo(json.dumps({"restarted": [one.to_json() for one in done]}))
        return
    slowest = max(done, key=lambda one: one.took_ms)
    click.echo(
        f"{len(done)} servers restarted, one at a time; the slowest, {slowest.server}, took"
        f" {slowest.took_ms / 1000:.1f} s until all was whole again"
    )


def _say_order(cluster: LocalCluster, *, as_json: bool) -> None:
    steps = rolling_restart.order(cluster, asyncio.run(cluster.views()))
    if as_json:
        click.echo(json.dumps({"order": [asdict(step) for step in steps]}))
        return
    for number, step in enumerate(steps, 1):
        before = ": hands over, then restarts" if step.handover else ""
        click.echo(f"{number:>2}  {step.server:<12}  {step.what}{before}")
    for reason in rolling_restart.interruptions(cluster.layout):
        click.echo(f"sends would be interrupted: {reason}", err=True)
    click.echo("nothing is restarted yet: leave out --dry-run", err=True)


cluster = group_of("cluster", "A cluster of real processes on this machine.", up, status, down, restart)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"namesrv      {';'.join(found['namesrv'])}")
    for node in found["controllers"]:
        role = "  leader" if node["leader"] else ""
        behind = f"  {node['lagEntries']} decisions behind" if node["lagEntries"] else ""
        click.echo(f"controller   {node['id']}  {node['address']}{role}{behind}")
    for group in found["groups"]:
        members = ",".join(map(str, group["syncStateSet"]))
        epoch = "-" if group["epoch"] is None else group["epoch"]
        click.echo(f"group        {group['name']}  epoch {epoch}  in sync {{{members}}}")
        for node in group["brokers"]:
            end = "-" if node["maxOffset"] is None else node["maxOffset"]
            identity = "?" if node["id"] is None else node["id"]
            what = f"{node['address']:<21}  {node['role']:<7}  end {end:<12}"
            click.echo(f"  broker {identity:>3}  {what}  {node['store']}")
