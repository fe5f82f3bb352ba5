"""``keelmq certs``: an authority of one's own, for tests and small sites."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path

import click

from admin.certs import CertDirectory, Found, now_ms
from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from admin.group import group_of

WARN_DAYS = 14
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*\.?")

_dir = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("certs"),
    show_default=True,
    help="Where certificates and keys lie.",
)
_days = click.option("--days", type=click.IntRange(1, 36_500), default=365, show_default=True)
_force = click.option("--force", is_flag=True, help="Replace what is there.")


@click.command(short_help="Make the authority.")
@_dir
@click.option("--name", default="keelmq", show_default=True, help="Its common name.")
@click.option("--days", type=click.IntRange(1, 36_500), default=3650, show_default=True)
@_force
def ca(directory: Path, name: str, days: int, force: bool) -> None:
    """Make the authority: ca.pem, which everybody is to believe, and ca.key, which signs.

    Example: keelmq certs ca --dir /etc/keelmq/certs
    """
    made = CertDirectory(directory).make_authority(name, days, force=force)
    click.echo(f"{made} (keep ca.key off the servers)")


@click.command(short_help="Make a server's certificate.")
@click.argument("name")
@click.option("--host", "hosts", multiple=True, metavar="HOST|IP", help="A name or address it is dialled at.")
@_dir
@_days
@_force
def server(name: str, hosts: tuple[str, ...], directory: Path, days: int, force: bool) -> None:
    """Make NAME.pem and NAME.key for a server, good for NAME and each --host; servers dial with it, too.

    For a Controller with raftTlsCert NAME is its controllerDLegerSelfId.

    Example: keelmq certs server broker-a-0 --host 10.0.0.1 --host broker-a-0.example
    """
    for host in hosts:
        if not _HOST.fullmatch(host) and not _is_address(host):
            raise click.UsageError(f"--host {host!r}: neither a host name nor an IP address")
    made = CertDirectory(directory)
    click.echo(made.issue(name, days, hosts, server=True, force=force))
    _say_given_away(made)


@click.command(short_help="Make a client's certificate.")
@click.argument("name")
@_dir
@_days
@_force
def client(name: str, directory: Path, days: int, force: bool) -> None:
    """Make NAME.pem and NAME.key for a client, where tls.server.need.client.auth=require.

    Example: keelmq certs client shop
    """
    made = CertDirectory(directory)
    click.echo(made.issue(name, days, server=False, force=force))
    _say_given_away(made)


@click.command(short_help="Make certificates anew, with the same names.")
@click.argument("names", nargs=-1)
@_dir
@_days
def renew(names: tuple[str, ...], directory: Path, days: int) -> None:
    """Make certificates and keys anew with the names and hosts they have: all of them, or those named.

    Servers read them within seconds, without a stop. The authority stays. Owner, group and mode of the files
    stay, too, as far as this user may give them: run it as root, or as the servers' user.

    Example: keelmq certs renew broker-a-0 --days 90
    """
    made = CertDirectory(directory)
    for path in made.renew(names, days):
        click.echo(path)
    _say_given_away(made)


@click.command(short_help="Show what is there, and until when it is good.")
@_dir
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def show(ctx: click.Context, directory: Path, as_json: bool) -> None:
    """Show every certificate with its hosts and its end. Exit code 1 when one ends within 14 days, 2 when one
    has ended, has another one's key, or is not of ca.pem.

    Example: keelmq certs show --json
    """
    found = CertDirectory(directory).list()
    if not found:
        click.echo(f"keelmq: {directory} holds no certificate (--dir; keelmq certs ca makes one)", err=True)
        ctx.exit(UNFINISHED)
    now = now_ms()
    if as_json:
        click.echo(json.dumps([_json(one, now) for one in found]))
    else:
        for one in found:
            left = one.days_left(now)
            state = f"{left} days left" if left >= 0 else "EXPIRED"
            state = f"UNFIT: {one.unfit}" if one.unfit else state
            click.echo(
                f"{one.name:<20}  {one.kind:<9}  {one.valid.not_after}  {state:<15}  {' '.join(one.hosts)}"
            )
    left = min((one.days_left(now) for one in found), default=WARN_DAYS)
    unfit = any(one.unfit for one in found)
    ctx.exit(FAILED if unfit or left < 0 else WARNINGS if left < WARN_DAYS else DONE)


def _say_given_away(made: CertDirectory) -> None:
    for path in made.given_away:
        click.echo(f"keelmq: {path} belongs to this user now: chown it to that of its server", err=True)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _json(one: Found, now: int) -> dict[str, object]:
    return {
        "name": one.name,
        "kind": one.kind,
        "hosts": list(one.hosts),
        "notAfter": one.valid.not_after,
        "daysLeft": one.days_left(now),
        "unfit": one.unfit,
    }


certs = group_of(
    "certs", "A cluster's own authority and certificates, for TLS.", ca, server, client, renew, show
)
