"""``keelmq console``: a cluster in a browser."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import click

from admin import ending
from admin.commands.reach import reaches, site
from admin.console.access import Entry, Pairs, Proxies, of_file, of_key
from admin.console.asking import Cluster
from admin.console.drills import Drills
from admin.console.service import Console
from admin.exits import DONE
from admin.host.log_setup import set_up_command
from admin.host.serve import bind
from admin.local.cluster import LocalCluster
from admin.numbers import Number
from admin.tls import client_env
from model.errors import ConfigError
from model.settings import is_loopback, some_addresses
from remoting.keys import Signer

PORT = 9880


@click.command(short_help="A cluster in a browser: map, topics, groups, messages, handovers.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: a free one.")
@click.option(
    "--password-file", metavar="FILE", help="Who may log in: lines of name:password, the owner's alone."
)
@click.option("--https-cert", type=click.Path(dir_okay=False), help="Serve over HTTPS: certificate, PEM.")
@click.option("--https-key", type=click.Path(dir_okay=False), help="Its key, PEM.")
@click.option(
    "--proxy",
    default="",
    metavar="ADDRESS,...",
    help="Of HTTPS proxies before it (also NETWORK/BITS): X-Forwarded-For says where a log-in comes from.",
)
@click.option(
    "--every",
    "every_s",
    type=Number(0.5, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks, however many watch.",
)
@click.option(
    "--reports",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Links to the pages of drills and audits there.",
)
@click.option(
    "--drills",
    is_flag=True,
    help="Drills can be started, on clusters of their own on this machine; reports go to --reports.",
)
@click.option("--read-only", is_flag=True, help="Only show: no handovers, no drills.")
@click.option("--controllers", metavar="HOST:PORT;...", help="Its Controllers, beside --namesrv.")
@reaches
def console(
    address: str,
    port: int,
    password_file: str | None,
    https_cert: str | None,
    https_key: str | None,
    proxy: str,
    every_s: float,
    reports: Path | None,
    drills: bool,
    read_only: bool,
    controllers: str | None,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> int:
    """Show a cluster in a browser: its map live, topics, consumers, messages, reports; hand groups over.

    On loopback nobody logs in, unless there is a password file, or a key that the console signs with. Beyond
    loopback, or behind a --proxy, everybody does: with a name of the password file, else with the key.
    Ctrl-C ends it.

    Example: keelmq console --port 9880
    """
    if drills and (reports is None or read_only):
        raise click.UsageError("--drills needs --reports DIR, where results go, and no --read-only")
    where = site(directory, namesrv, credentials_file)
    entry = Entry(_pairs(address, proxy, password_file, where.key), _proxies(proxy))
    https = _https(https_cert, https_key)
    asked = _controllers(controllers, namesrv, directory)
    link = bind(port, address)
    set_up_command(f"console@{address}:{link.getsockname()[1]}", "admin.console")
    if https is None and not entry.proxies and not is_loopback(address):
        click.echo("keelmq: passwords travel readable: give --https-cert, or put HTTPS before it", err=True)

    async def work() -> None:
        cluster = Cluster(client_env(), where.namesrv, asked, where.key)
        served = Console(
            cluster,
            link,
            entry=entry,
            every_s=every_s,
            reports=reports,
            read_only=read_only,
            https=https,
            drills=Drills(cluster.env, reports) if drills and reports else None,
        )
        await served.start()
        try:
            click.echo(f"console {served.url}")
            await asyncio.Event().wait()
        finally:
            await served.stop()

    with ending.in_order(quiet=True):
        try:
            ending.run(work())
        except KeyboardInterrupt:  # the usual end: nothing to say
            pass
    return DONE


def _controllers(given: str | None, namesrv: str | None, directory: Path) -> list[str]:
    """Of a cluster elsewhere those that are named, of this machine's own all."""
    if given is not None:
        return some_addresses(given, "--controllers")
    if namesrv is not None:
        return []
    return [node.controller_address for node in LocalCluster.open(directory).layout.namesrvs]


def _pairs(address: str, proxy: str, password_file: str | None, key: Signer | None) -> Pairs | None:
    """Who may log in; None: nobody has to. Raises ConfigError where it would be open to all: a proxy on this
    machine asks from loopback, for whoever is before it."""
    if password_file is not None:
        return of_file(password_file)
    if key is not None:
        return of_key(key)
    if is_loopback(address) and not proxy:
        return None
    why = (
        f"behind --proxy {proxy} it is not for this machine"
        if proxy
        else f"--address {address} is not loopback"
    )
    raise ConfigError(f"{why}: give --password-file, or --credentials, to log in with")


def _proxies(text: str) -> Proxies:
    """Raises ConfigError."""
    try:
        return Proxies(text)
    except ValueError as error:
        raise ConfigError(
            f"--proxy {text}: expected IP addresses and networks, with commas: {error}"
        ) from None


def _https(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Raises ConfigError for files that cannot be used."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--https-cert and --https-key go together")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError too
        raise ConfigError(f"--https-cert {cert}, --https-key {key}: {error}") from None
    return made
