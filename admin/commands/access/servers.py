"""At which servers does a command look at users and policies, or change them, and what did each say?"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from admin import credentials
from admin.commands.reach import Site, as_json, reaches, say_json, site
from admin.exits import DONE, UNFINISHED, advised
from admin.terminal import say
from client.access import AccessRules
from client.admin import AdminClient
from client.message import NoMaster
from model.errors import MqError
from model.settings import some_addresses

T = TypeVar("T")


def at_servers(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``servers`` and ``as_json``, by options that say which, and how they are reached."""

    @functools.wraps(command)
    def called(
        at: str | None,
        nameservers: bool,
        directory: Path,
        namesrv: str | None,
        credentials_file: str | None,
        **others: Any,
    ) -> Any:
        if at is not None and nameservers:
            raise click.UsageError("--at names all servers: leave out --nameservers")
        if at is not None and namesrv is None:  # no NameServer is asked: it needs no cluster here
            where = Site(tuple(some_addresses(at, "--at")), credentials.read(credentials_file))
        else:
            where = site(directory, namesrv, credentials_file)
        return command(servers=Servers(where, at, nameservers), **others)

    text = "These servers alone: brokers, NameServers, Controllers [every master]."
    at = click.option("--at", metavar="HOST:PORT;...", help=text)
    text = "Also each NameServer: they keep users of their own."
    return at(click.option("--nameservers", is_flag=True, help=text)(as_json(reaches(called))))


@dataclass(frozen=True, slots=True)
class Servers:
    """``at``: only these; None = every master, and with ``nameservers`` every NameServer."""

    site: Site
    at: str | None
    nameservers: bool

    def each(self, work: Callable[[AccessRules, str], Awaitable[T]]) -> dict[str, T | str]:
        """What ``work`` returned at each server, or why it failed there: a text. ``T`` is no text."""

        async def inside(admin: AdminClient) -> dict[str, T | str]:
            rules, found = AccessRules(admin), dict[str, T | str]()
            for server in await self._chosen(admin):
                try:
                    found[server] = await work(rules, server)
                except (MqError, OSError) as error:
                    found[server] = _advised(str(error) or type(error).__name__)
            return found

        return self.site.ask(inside)

    async def _chosen(self, admin: AdminClient) -> list[str]:
        if self.at is not None:
            return some_addresses(self.at, "--at")
        brokers = (await admin.cluster_info()).brokers
        lacking = [name for name, members in brokers.items() if 0 not in members]
        if lacking or not brokers:
            raise NoMaster(f"no master: {', '.join(lacking) or 'the NameServers know no broker yet'}")
        masters = [members[0] for members in brokers.values()]
        return [*masters, *(self.site.namesrv if self.nameservers else ())]


def _advised(text: str) -> str:
    if "An system error occurred" in text:  # RocketMQ's text for a server without users
        return f"{text} (it has no users of ACL 2.0: authenticationEnabled is off there)"
    return advised(text)


def say_done(outcomes: Mapping[str, object], what: str, *, in_json: bool) -> int:
    """A line for each server, and the exit code: 3 when one did not do it."""
    failed = {server: said for server, said in outcomes.items() if isinstance(said, str)}
    if in_json:
        rows = [{"server": server, "problem": failed.get(server)} for server in outcomes]
        say_json({"executed": not failed, "servers": rows})
    else:
        for server in outcomes:
            say(f"{server}: {failed.get(server, what)}", err=server in failed)
    return UNFINISHED if failed else DONE


def merged(found: Mapping[str, Sequence[Hashable] | str]) -> dict[Any, str]:
    """Each row with the servers that have it: ``all``, or their addresses."""
    told = {server: rows for server, rows in found.items() if not isinstance(rows, str)}
    rows: dict[Any, list[str]] = {}
    for server, listed in told.items():
        for row in listed:
            rows.setdefault(row, []).append(server)
    return {row: "all" if len(servers) == len(found) else ", ".join(servers) for row, servers in rows.items()}


def answered(found: Mapping[str, object]) -> bool:
    """Whether one told anything: of the others' silence no table is made."""
    return any(not isinstance(said, str) for said in found.values())


def problems_of(found: Mapping[str, object]) -> int:
    """Say which servers told nothing; the exit code."""
    failed = {server: said for server, said in found.items() if isinstance(said, str)}
    for server, said in failed.items():
        say(f"keelmq: {server}: {said}", err=True)
    return UNFINISHED if failed else DONE
