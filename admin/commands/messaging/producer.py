"""The commands about producers: ``keelmq producer list | describe``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from admin.commands.reach import ago, as_json, reaches, say_json, show, site
from admin.group import group_of
from client.admin import AdminClient
from model.codes import Request
from model.errors import ConfigError, PeerError
from remoting import bodies


@dataclass(frozen=True, slots=True, order=True)
class Connected:
    """A producer as one broker group's master knows it. ``last_ms``: when it beat last."""

    group: str
    broker_name: str
    client_id: str
    address: str
    language: str
    version: int
    last_ms: int

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "brokerName": self.broker_name,
            "clientId": self.client_id,
            "address": self.address,
            "language": self.language,
            "version": self.version,
            "lastHeartbeat": self.last_ms,
        }


@click.command("list", short_help="Every producer group that is online.")
@as_json
@reaches
def list_(as_json: bool, directory: Path, namesrv: str | None, credentials_file: str | None) -> None:
    """List the producer groups that are online: how many clients each has, at which broker groups.

    Brokers know the producers that beat at them; which topics these send to they do not.

    Example: keelmq producer list
    """
    found = site(directory, namesrv, credentials_file).ask(_connected)
    groups = sorted({one.group for one in found})
    rows = []
    for name in groups:
        own = [one for one in found if one.group == name]
        at = sorted({one.broker_name for one in own})
        rows.append((name, len({one.client_id for one in own}), ",".join(at)))
    if as_json:
        say_json([{"group": name, "clients": count, "brokers": at.split(",")} for name, count, at in rows])
    else:
        show(rows, ("producer group", "clients", "broker groups"), numbers=("clients",))


@click.command(short_help="Who sends for a producer group.")
@click.argument("group")
@as_json
@reaches
def describe(
    group: str, as_json: bool, directory: Path, namesrv: str | None, credentials_file: str | None
) -> None:
    """Show the clients of a producer group: address, language, and when each beat last at which master.

    Example: keelmq producer describe billing-writers
    """
    every = site(directory, namesrv, credentials_file).ask(_connected)
    found = [one for one in every if one.group == group]
    if not found:
        raise ConfigError(f"no producer of {group} is online: see keelmq producer list")
    if as_json:
        say_json([one.to_json() for one in found])
        return
    now_ms = time.time_ns() // 1_000_000
    rows = [(o.client_id, o.broker_name, o.address, o.language, ago(o.last_ms, now_ms)) for o in found]
    show(rows, ("client", "broker group", "address", "language", "last beat"))


async def _connected(admin: AdminClient) -> list[Connected]:
    """The producers of every group, of every master. Raises as AdminClient does."""
    found: list[Connected] = []
    for name, members in (await admin.cluster_info()).brokers.items():
        if 0 in members:
            answer = await admin.session.call(members[0], Request.GET_ALL_PRODUCER_INFO)
            found += producers_of(name, bodies.loads_object(answer.body))
    return sorted(found)


def producers_of(broker_name: str, table: Mapping[str, Any]) -> list[Connected]:
    """What one master answers. Raises PeerError."""
    try:
        return [
            Connected(
                str(group),
                broker_name,
                str(one["clientId"]),
                str(one.get("remoteIP") or "?"),
                str(one.get("language") or "?"),
                int(one.get("version") or 0),
                int(one.get("lastUpdateTimestamp") or 0),
            )
            for group, clients in (table.get("data") or {}).items()
            for one in clients
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PeerError(f"{broker_name}: producers cannot be read: {error!r}") from None


producer = group_of("producer", "Producers that are online: list, describe.", list_, describe)
