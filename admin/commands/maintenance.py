"""``keelmq maintenance``: a broker that is not to lead while its machine is worked on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from admin import credentials, ending, tls
from admin.commands.which import controllers_of, which_cluster
from admin.group import group_of
from admin.handover import CannotHandOver, best_target, hand_over
from admin.local.cluster import LocalCluster
from admin.local.layout import CLUSTER
from client.admin import AdminClient, SyncState
from model.errors import MqError, Refused, Unknown
from model.settings import some_addresses
from remoting.keys import Signer


class CannotMaintain(MqError):
    """Nothing changed; the text says why."""


class _Site:
    """The group, the broker, its servers, and the key they are asked with."""

    def __init__(
        self, directory: Path, controllers: str | None, namesrv: str | None, key: str | None
    ) -> None:
        if (controllers is None) != (namesrv is None):
            raise click.UsageError("--controllers and --namesrv go together")
        self.at = controllers_of(directory, controllers)
        if namesrv is not None:
            self.names, self.known = some_addresses(namesrv, "--namesrv"), list[str]()
        else:
            layout = LocalCluster.open(directory).layout
            self.names, self.known = [node.address for node in layout.namesrvs], layout.group_names
        self.key: Signer | None = credentials.read(key)

    def group(self, name: str | None) -> str:
        if name is None and len(self.known) != 1:
            raise click.UsageError("--group is needed: which one of several is meant?")
        return name or self.known[0]

    async def state(self, name: str) -> SyncState:
        async with AdminClient(tls.client_env(), self.names, credentials=self.key) as admin:
            found = (await admin.sync_state(self.at, [name])).get(name)
        if found is None:
            raise CannotMaintain(f"the Controllers know no group {name}")
        return found

    async def set(self, cluster: str, name: str, broker_id: int, on: bool) -> None:
        async with AdminClient(tls.client_env(), self.names, credentials=self.key) as admin:
            try:
                await admin.set_maintenance(self.at, cluster, name, broker_id, on)
            except Refused as error:
                raise CannotMaintain(f"the Controllers refuse: {error}") from None


def _cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Options of both commands; ``command`` is given ``site``, the group and the rest."""

    @wraps(command)
    def found(
        *,
        directory: Path,
        controllers: str | None,
        namesrv: str | None,
        credentials_file: str | None,
        name: str | None,
        **own: Any,
    ) -> None:
        site = _Site(directory, controllers, namesrv, credentials_file)
        command(site=site, group=site.group(name), **own)

    for option in (
        tls.option,
        credentials.option,
        click.option("--cluster-name", default=CLUSTER, show_default=True),
        click.option("--namesrv", metavar="HOST:PORT;...", help="Any other cluster: its NameServers."),
        which_cluster("Any other cluster: its Controllers."),
        click.option("--group", "name", metavar="NAME", help="[the only group of --dir]"),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ):
        found = option(found)
    return found


def _broker(state: SyncState, wanted: str) -> int:
    """Its id; ``wanted`` is that, or its address. Raises CannotMaintain."""
    brokers = {**state.in_sync, **state.not_in_sync}
    for broker_id, address in brokers.items():
        if wanted in (str(broker_id), address):
            return broker_id
    there = ", ".join(f"{i} at {address}" for i, address in sorted(brokers.items()))
    raise CannotMaintain(f"{state.group} has no broker {wanted}; it has {there}")


@click.command(short_help="Let another broker lead, and this one no more.")
@click.argument("broker", metavar="BROKER")
@click.option("--dry-run", is_flag=True, help="Say what would happen.")
@_cluster
def on(broker: str, dry_run: bool, site: _Site, group: str, cluster_name: str, as_json: bool) -> None:
    """Put BROKER (its id or HOST:PORT) into maintenance: a master hands over, and is not elected again.

    It goes on copying. The Controllers remember it through restarts, until `keelmq maintenance off`. Where no
    other broker can lead, it is elected all the same: a group without a master serves nobody.

    Exit code 3 when nothing changed, or when the message says that the broker may be in maintenance: end that
    with `keelmq maintenance off`.

    Example: keelmq maintenance on 10.0.0.2:10911 --group broker-a
    """
    with ending.in_order(quiet=True):
        found = ending.run(_on(site, cluster_name, group, broker, dry_run))
    if as_json:
        click.echo(json.dumps(found))
        return
    number, successor = found["broker"], found["handedOverTo"]
    if successor is not None:
        click.echo(f"{group}: broker {successor} {'would take' if dry_run else 'took'} over from {number}")
    if dry_run:
        click.echo("nothing is changed yet: leave out --dry-run")
    else:
        click.echo(f"{group}: broker {number} is in maintenance: it copies, and is not elected")


async def _on(site: _Site, cluster: str, group: str, broker: str, dry_run: bool) -> dict[str, Any]:
    state = await site.state(group)
    number = _broker(state, broker)
    leads = state.master == number
    successor = best_target(state) if leads else None
    if not dry_run:
        try:
            await site.set(cluster, group, number, True)
            if leads:
                successor = await _hand_over(site, cluster, state, number)
        except asyncio.CancelledError:
            still = ", and still master" if leads else ""
            text = f"interrupted: broker {number} may be in maintenance{still}"
            raise Unknown(f"{text}; end that with keelmq maintenance off") from None
    return {"group": group, "broker": number, "handedOverTo": successor, "changed": not dry_run}


async def _hand_over(site: _Site, cluster: str, before: SyncState, number: int) -> int:
    """Returns who leads then. Raises CannotHandOver, where maintenance is as it was ``before``; Unknown."""
    env, group = tls.client_env(), before.group
    seen = number, before.epoch
    try:
        return (
            await hand_over(env, site.names, site.at, cluster, group, seen=seen, credentials=site.key)
        ).master
    except CannotHandOver as error:
        try:
            now = await site.state(group)
            if now.master not in (None, number):
                return now.master  # another was elected meanwhile
            if number not in before.maintenance:
                await site.set(cluster, group, number, False)
        except (MqError, OSError) as also:
            text = f"{error}; broker {number} may be in maintenance, and still master: {also}"
            raise Unknown(text) from None
        raise
    except (MqError, OSError) as error:
        raise Unknown(f"{error}; broker {number} is in maintenance, and perhaps still master") from None


@click.command(short_help="Let a broker lead again.")
@click.argument("broker", metavar="BROKER")
@_cluster
def off(broker: str, site: _Site, group: str, cluster_name: str, as_json: bool) -> None:
    """End the maintenance of BROKER (its id or HOST:PORT): it may be elected again. Nobody hands over to it.

    Example: keelmq maintenance off 2
    """

    async def body() -> int:
        number = _broker(await site.state(group), broker)
        await site.set(cluster_name, group, number, False)
        return number

    number = asyncio.run(body())
    if as_json:
        click.echo(json.dumps({"group": group, "broker": number}))
    else:
        click.echo(f"{group}: broker {number} may lead again")


maintenance = group_of("maintenance", "A broker that is not to lead while its machine is worked on.", on, off)
