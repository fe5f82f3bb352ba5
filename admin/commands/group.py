"""The commands about one broker group: ``keelmq group show | handover | forget``."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from admin import credentials, tls
from admin.commands.which import controllers_of, which_cluster
from admin.group import group_of
from admin.handover import hand_over
from admin.local.cluster import LocalCluster
from admin.local.layout import CLUSTER
from admin.terminal import say
from client.admin import AdminClient, SyncState
from model.errors import MqError, Refused
from model.settings import some_addresses
from remoting.keys import Signer


class CannotAsk(MqError):
    """The Controllers did not do or say what they were asked; the text says why."""


MEMBER: Final = (
    "broker {number} is a member of the SyncStateSet of {name}: it may have what no other broker has. Start "
    "it again; or wait until the master has dropped it (keelmq group show: not in sync). If it is gone for "
    "good and there is no master: --give-up, and what only it had is lost"
)
_name = click.option("--group", "name", metavar="NAME", help="[the only group of --dir]")
_cluster_name = click.option("--cluster-name", default=CLUSTER, show_default=True)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _where(directory: Path, controllers: str | None, name: str | None) -> tuple[list[str], str]:
    """Addresses of the Controllers, and the group's name."""
    at = controllers_of(directory, controllers)
    if name is None:
        groups = LocalCluster.open(directory).layout.group_names if controllers is None else []
        if len(groups) != 1:
            raise click.UsageError("--group is needed: which one of several is meant?")
        name = groups[0]
    return at, name


@click.command(short_help="Who is master, who is in sync, who is alive.")
@_name
@which_cluster("Any other cluster: its Controllers.")
@tls.option
@credentials.option
@_json
def show(
    name: str | None, directory: Path, controllers: str | None, credentials_file: str | None, as_json: bool
) -> None:
    """Show a group as its Controllers know it: which broker has which id, who is master, in sync, alive.

    Example: keelmq group show --controllers '10.0.0.1:9878;10.0.0.2:9878' --group broker-a
    """
    at, name = _where(directory, controllers, name)
    state = asyncio.run(_state(at, name, credentials.read(credentials_file)))
    if as_json:
        click.echo(json.dumps(asdict(state)))
    else:
        _print(state)


def _print(state: SyncState) -> None:
    master = "no master" if state.master is None else f"master {state.master}"
    say(f"{state.group}: {master}, epoch {state.epoch}")
    brokers = {**state.in_sync, **state.not_in_sync}
    for number, address in sorted(brokers.items()):
        role = "master" if number == state.master else "slave"
        place = "in sync" if number in state.in_sync else "not in sync"
        life = "alive" if state.alive[number] else "dead"
        rest = "  maintenance" if number in state.maintenance else ""
        say(f"  broker {number:>3}  {address:<21}  {role:<7} {place:<12} {life}{rest}")


async def _state(at: list[str], name: str, key: Signer | None = None) -> SyncState:
    # No NameServer is asked anything here; the client only will not be made without an address.
    async with AdminClient(tls.client_env(), at, credentials=key) as admin:
        try:
            state = (await admin.sync_state(at, [name])).get(name)
        except Refused as error:
            raise CannotAsk(f"the Controllers refuse: {error}") from None
    if state is None:
        raise CannotAsk(f"the Controllers know no group {name}")
    return state


@click.command(short_help="Have the Controllers forget a broker that is gone for good.")
@_name
@click.option(
    "--broker",
    "ids",
    type=click.IntRange(0),
    multiple=True,
    metavar="ID",
    help="May be given more than once.",
)
@click.option("--all", "whole", is_flag=True, help="Every broker: the group begins anew.")
@click.option(
    "--give-up", is_flag=True, help="Also a member of the SyncStateSet: what only it has is lost for good."
)
@which_cluster("Any other cluster: its Controllers.")
@_cluster_name
@credentials.option
@tls.option
def forget(
    name: str | None,
    ids: tuple[int, ...],
    whole: bool,
    give_up: bool,
    directory: Path,
    controllers: str | None,
    cluster_name: str,
    credentials_file: str | None,
) -> None:
    """Take brokers that are gone for good out of a group: elections wait for them no longer.

    What only they had is lost. A broker that is alive, a whole group that has a master, and without --give-up
    a member of the SyncStateSet, is not forgotten: exit code 3.

    Example: keelmq group forget --group broker-a --broker 3
    """
    if bool(ids) == whole:
        raise click.UsageError("say which: --broker ID, or --all")
    at, name = _where(directory, controllers, name)
    key = credentials.read(credentials_file)
    asyncio.run(_forget(at, cluster_name, name, ids, key, give_up=give_up))
    what = "all of it" if whole else " ".join(f"broker {number}" for number in ids)
    say(f"{name}: the Controllers have forgotten {what}")


async def _forget(
    at: list[str],
    cluster: str,
    name: str,
    ids: tuple[int, ...],
    key: Signer | None,
    *,
    give_up: bool = False,
) -> None:
    async with AdminClient(tls.client_env(), at, credentials=key) as admin:
        state = (await admin.sync_state(at, [name])).get(name)
        known = {*state.in_sync, *state.not_in_sync} if state is not None else set()
        for number in ids:
            if number not in known:
                registered = ", ".join(map(str, sorted(known))) or "none"
                raise CannotAsk(f"{name} has no broker {number}: registered are {registered}")
            # Of a living one the Controllers say so themselves.
            if state is not None and number in state.in_sync and not state.alive[number] and not give_up:
                raise CannotAsk(MEMBER.format(name=name, number=number))
        try:
            await admin.forget(at, cluster, name, ids)
        except Refused as error:
            raise CannotAsk(f"the Controllers refuse: {error}") from None


@click.command(short_help="Make another broker master, without a failed send.")
@_name
@click.option(
    "--to", "transfer_target", type=click.IntRange(0), metavar="ID", help="[the one an election would prefer]"
)
@which_cluster("Any other cluster: its Controllers, ...")
@click.option("--namesrv", metavar="HOST:PORT;...", help="... and its NameServers.")
@_cluster_name
@credentials.option
@tls.option
@_json
def handover(
    name: str | None,
    transfer_target: int | None,
    directory: Path,
    controllers: str | None,
    namesrv: str | None,
    cluster_name: str,
    credentials_file: str | None,
    as_json: bool,
) -> None:
    """Hand a group over: the master stops taking writes, the target catches up, the Controllers elect it.

    Producers are asked to try again for that moment. Exit code 3 when the group was not handed over.

    Example: keelmq group handover --group broker-a --to 2
    """
    if (controllers is None) != (namesrv is None):
        raise click.UsageError("--controllers and --namesrv go together")
    at, name = _where(directory, controllers, name)
    if namesrv is not None:
        names = some_addresses(namesrv, "--namesrv")
    else:
        names = [node.address for node in LocalCluster.open(directory).layout.namesrvs]
    key, env = credentials.read(credentials_file), tls.client_env()
    done = asyncio.run(hand_over(env, names, at, cluster_name, name, transfer_target, credentials=key))
    if as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        say(
            f"{done.group}: broker {done.master} is master of epoch {done.epoch},"
            f" after broker {done.former} ({done.took_ms:.0f} ms)"
        )


_CONSUMERS = "this is about broker groups; about consumer groups: keelmq consumer {}"

group = group_of(
    "group",
    "One broker group: who is in it, who leads it.",
    show,
    handover,
    forget,
    elsewhere={name: _CONSUMERS.format(name) for name in ("list", "describe", "delete", "reset")},
)
