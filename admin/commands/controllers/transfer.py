"""``keelmq controller transfer``: another Controller leads, without a wait."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from admin import credentials, tls
from admin.commands.which import controllers_of, which_cluster
from admin.terminal import say
from client.admin import AdminClient
from model.errors import MqError, Refused
from remoting.keys import Signer


class CannotTransfer(MqError):
    """The leader is the same as before; the text says why."""


@click.command(short_help="Make another Controller leader.")
@click.option(
    "--to", "transfer_target", metavar="ID", help="Its controllerDLegerSelfId [any that holds everything]."
)
@which_cluster("Any other cluster: its Controllers.")
@credentials.option
@tls.option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def transfer(
    transfer_target: str | None,
    directory: Path,
    controllers: str | None,
    credentials_file: str | None,
    as_json: bool,
) -> None:
    """Have another Controller lead: before its machine is stopped, or to have the leader near.

    Exit code 3 when leadership was not moved.

    Example: keelmq controller transfer --to n2
    """
    at = controllers_of(directory, controllers)
    leader, address = asyncio.run(_transfer(at, transfer_target, credentials.read(credentials_file)))
    if as_json:
        click.echo(json.dumps({"leader": leader, "address": address}))
    else:
        say(f"Controller {leader} leads ({address})")


async def _transfer(
    controllers: list[str], transfer_target: str | None, key: Signer | None
) -> tuple[str, str]:
    # No NameServer is asked anything here; the client only will not be made without an address.
    async with AdminClient(tls.client_env(), controllers, credentials=key) as admin:
        try:
            return await admin.transfer_leadership(controllers, transfer_target)
        except Refused as error:
            raise CannotTransfer(f"the Controllers refuse: {error}") from None
