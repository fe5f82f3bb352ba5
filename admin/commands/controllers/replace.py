"""``keelmq controller replace``: a new machine takes the place of a lost Controller."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from admin import credentials, tls
from admin.commands.which import CONTROLLERS, opened, which_cluster
from admin.numbers import whole
from admin.terminal import say
from client.admin import AdminClient
from model.errors import MqError, Refused
from model.settings import some_addresses
from remoting.keys import Signer


class CannotReplace(MqError):
    """Nothing was changed, or the outcome is not known; the text says which."""


@click.command(short_help="Give a lost Controller's id to a new machine.")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option(
    "--raft",
    "raft_address",
    metavar="HOST:PORT",
    help="Its Raft port [with --dir 1 above its request port, as there; else 10 above].",
)
@click.option("--yes", is_flag=True, help="Also while OLD still answers.")
@which_cluster("Any other cluster: its Controllers.")
@credentials.option
@tls.option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replace(
    old: str,
    new: str,
    raft_address: str | None,
    yes: bool,
    directory: Path,
    controllers: str | None,
    credentials_file: str | None,
    as_json: bool,
) -> None:
    """Give the id OLD to the Controller at NEW (host:port of its request port).

    The machine that had the id counts for nothing from then on, also when it comes back. Needs a majority of
    all Controllers without OLD, and that OLD does not answer any more (--yes: also while it does). Exit code
    3 when nothing was changed.

    Example: keelmq controller replace n2 10.0.0.9:9878
    """
    key = credentials.read(credentials_file)
    if controllers is None:
        cluster = opened(directory, CONTROLLERS)
        with cluster.locked():  # first: what is changed below is to be noted there
            at = [node.controller_address for node in cluster.layout.namesrvs]
            beside = raft_address or _above(new)
            incarnation, raft = asyncio.run(_replace(at, old, new, beside, key, lost=yes))
            cluster.layout.give_seat(old, new, raft)
            cluster.save()
    else:
        at = some_addresses(controllers, "--controllers")
        incarnation, raft = asyncio.run(_replace(at, old, new, raft_address, key, lost=yes))
    if as_json:
        found = {"id": old, "address": new, "raftAddress": raft, "incarnation": incarnation}
        click.echo(json.dumps(found))
        return
    say(f"Controller {old} is at {new} from now on (Raft {raft}, incarnation {incarnation}).")
    say("What had this id before is refused, also when it comes back: end it for good.")
    say(
        f"Start the new one with controllerDLegerSelfId={old}, the same ids in controllerDLegerPeers and an"
        " empty controllerStorePath."
    )
    say("It votes once it holds every decision: its /healthz is 200 then.")
    if controllers is None:
        say(f"{directory} knows the new address: its servers use it from their next start on.")
    say(f"Where clients and brokers name the old address of {old}, change it.")


def _above(address: str) -> str | None:
    """The Raft port that a cluster of ``keelmq cluster up`` has beside this address; None for what is none:
    the Controllers refuse it."""
    host, _, port = address.rpartition(":")
    number = whole(port)
    return f"{host}:{number + 1}" if host and number is not None else None


async def _replace(
    controllers: list[str],
    old: str,
    new: str,
    raft_address: str | None,
    key: Signer | None,
    *,
    lost: bool = False,
) -> tuple[int, str]:
    async with AdminClient(tls.client_env(), controllers, credentials=key) as admin:
        try:
            return await admin.replace_controller(controllers, old, new, raft_address, lost=lost)
        except Refused as error:
            raise CannotReplace(f"the Controllers refuse: {error}") from None
