"""``keelmq doctor``: what is wrong with files, machine and servers, and what is to be done?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from admin import credentials
from admin.commands.reach import as_json, reaches, say_json
from admin.commands.which import NAMESRV, opened
from admin.doctor import cluster, cluster_checks, local_checks, machine
from admin.doctor.findings import Finding, Level, failed, worst
from admin.doctor.local_checks import Local
from admin.exits import DONE, FAILED, WARNINGS
from admin.host.serve import read_values
from admin.terminal import say
from admin.tls import client_env, env_of, given
from client.admin import AdminClient
from model.config.tls import split_tls
from model.errors import ConfigError
from model.settings import addresses, peers, some_addresses
from remoting.keys import Signer

CODES = {Level.OK: DONE, Level.WARNING: WARNINGS, Level.FAILED: FAILED}


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at: servers here, and the addresses of a cluster."""

    local: Sequence[Local] = ()
    namesrv: Sequence[str] = ()
    controllers: Sequence[str] = ()
    tls: Mapping[str, str] = field(default_factory=dict)
    """How a server here dials the others."""


@click.command(short_help="What is wrong, and what to do about it.")
@click.option(
    "-c",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A server's file on this machine, and the cluster it names. May be given more than once.",
)
@click.option("--role", type=click.Choice(machine.ROLES), help="Whose files these are [as their keys say].")
@click.option("--controllers", metavar="HOST:PORT;...", help="Its Controllers, beside --namesrv.")
@click.option("--problems", is_flag=True, help="Only what is not in order.")
@as_json
@reaches
def doctor(
    files: tuple[str, ...],
    role: str | None,
    controllers: str | None,
    problems: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> int:
    """Look at configuration, secrets, disks, ports and limits of servers here (-c, --dir), and at every
    server of their cluster (or of --namesrv): is it reached, who leads, is every replica in sync, how full
    is its disk, how far apart are the clocks. Nothing is changed.

    Exit codes: 0 all is in order, 1 warnings, 2 something is wrong, 64 wrong usage.

    Example: keelmq doctor -c /etc/keelmq/broker.conf -c /etc/keelmq/namesrv.conf
    """
    if role is not None and not files:
        raise click.UsageError("--role says whose file -c names: give -c, too")
    patient = _of_files(files, role) if files else Patient()
    if not files and namesrv is None and controllers is None:
        patient = _of_directory(directory)
    asked = patient
    if namesrv is not None:
        asked = replace(asked, namesrv=some_addresses(namesrv, "--namesrv"))
    if controllers is not None:
        asked = replace(asked, controllers=some_addresses(controllers, "--controllers"))
    found = [finding for local in asked.local for finding in local_checks.judge(local)]
    if asked.namesrv or asked.controllers:
        found += asyncio.run(_cluster(asked, credentials.read(credentials_file)))
    elif not any(local.error for local in asked.local):
        todo = "give --namesrv HOST:PORT, or set namesrvAddr in the broker's file"
        found.append(failed("cluster", "-", "nothing says where its NameServers are", todo))
    _say(found, as_json=as_json, problems=problems)
    return CODES[worst(found)]


async def _cluster(patient: Patient, key: Signer | None) -> list[Finding]:
    # A client will not be made without an address; Controllers alone can be asked, too.
    env = client_env() if given() or not patient.tls else env_of(patient.tls)
    async with AdminClient(env, patient.namesrv or patient.controllers, credentials=key) as admin:
        seen = await cluster.look(admin, patient.namesrv, patient.controllers)
        return cluster_checks.judge(seen)


def _of_files(files: Sequence[str], role: str | None) -> Patient:
    """Raises UsageError for a file that may be of several roles."""
    local, namesrv, controllers = [], dict[str, None](), dict[str, None]()
    tls: Mapping[str, str] = {}
    for file in files:
        try:
            values = read_values(file, ())
        except ConfigError as error:
            local.append(Local(file, role or "server", error=str(error)))
            continue
        whose = role or machine.role_of(values)
        if whose is None:
            raise click.UsageError(f"{file} may be of several servers: say --role {'|'.join(machine.ROLES)}")
        seen = machine.look(file, whose, values)
        local.append(seen)
        if seen.tls is not None and seen.tls.dials:
            tls = tls or split_tls(values)[0]
        if not seen.error:
            namesrv |= dict.fromkeys(_nameservers(whose, values))
            controllers |= dict.fromkeys(_controllers(values))
    return Patient(local, list(namesrv), list(controllers), tls)


def _nameservers(role: str, values: Mapping[str, str]) -> list[str]:
    if role == "namesrv":
        host = values.get("bindAddress", "127.0.0.1")
        return [f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{values.get('listenPort', 9876)}"]
    return addresses(values.get("namesrvAddr", ""), "namesrvAddr")


def _controllers(values: Mapping[str, str]) -> list[str]:
    named = addresses(values.get("controllerAddr", ""), "controllerAddr")
    return named or list(peers(values.get("controllerDLegerPeers", ""), "controllerDLegerPeers").values())


def _of_directory(directory: Path) -> Patient:
    """A cluster of ``keelmq cluster up``. Raises ConfigError when there is none."""
    here = opened(directory, NAMESRV)
    local = []
    for node in here.layout.nodes:
        values = here.layout.conf(node, here.directory)
        running = here.is_running(node)
        seen = machine.look(node.name, node.role, values, pid=node.pid if running else None)
        local.append(replace(seen, running=running, start_with=f"keelmq cluster up --dir {directory}"))
    nodes = here.layout.namesrvs
    return Patient(local, [n.address for n in nodes], [n.controller_address for n in nodes])


def _say(found: Sequence[Finding], *, as_json: bool, problems: bool) -> None:
    chosen = [one for one in found if one.level is not Level.OK or not problems]
    if as_json:
        verdict = ("ok", "warnings", "failed")[worst(found)]
        say_json({"verdict": verdict, "findings": [one.to_json() for one in chosen]})
        return
    for one in chosen:
        say(f"{one.level.word:<4}  {one.check:<13}  {one.where}: {one.text}")
        if one.todo:
            say(f"{'':<4}  {'':<13}  -> {one.todo}")
    counts = Counter(one.level for one in found)
    say(f"{counts[Level.OK]} in order, {counts[Level.WARNING]} warnings, {counts[Level.FAILED]} failed")
