"""The commands about policies of ACL 2.0: ``keelmq policy list | create | update | delete``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from admin.commands.access.servers import Servers, answered, at_servers, merged, problems_of, say_done
from admin.commands.reach import need_yes, say_json, show
from admin.group import group_of
from client.access import AccessRules, KnownEntry
from model.acl.addresses import is_source
from model.acl.policies import ACTIONS, Entry, Resource
from model.errors import Refused

GIVEN = [name for name in ACTIONS if name not in ("Unknown", "Any")]
NEVER_ASKED = {("Cluster", "Pub"), ("Cluster", "Sub"), ("Group", "Pub")}
"""Sends ask of topics, and what consumers do of topics and groups (``remoting.acl.needs``)."""


def _resource(text: str) -> str:
    """As servers write it. Raises BadParameter."""
    found = Resource.of(text)
    if found is None or (found.kind != "Any" and found.name == ""):
        raise click.BadParameter(f"{text!r} is no resource: Topic:orders, Topic:ord*, Group:*, Cluster:c, *")
    if found.name is not None and "*" in found.name:
        raise click.BadParameter(f"{text!r} would never match: a * stands for more at the end alone")
    return str(found)


def _read_resources(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    if isinstance(given, tuple):
        return tuple(map(_resource, given))
    return None if given is None else _resource(given)


_resources = click.option(
    "--resource", "resources", multiple=True, required=True, callback=_read_resources, help="As Topic:orders."
)
_policy = click.option(
    "--default", "is_default", is_flag=True, help="Of the default policy [the custom one]."
)


@dataclass(frozen=True, slots=True)
class Change:
    """Entries of one user: one for each resource."""

    user: str
    policy: str
    entries: tuple[Entry, ...]

    @classmethod
    def of(
        cls,
        user: str,
        resources: tuple[str, ...],
        actions: tuple[str, ...],
        sources: tuple[str, ...],
        *,
        deny: bool,
        is_default: bool,
    ) -> Change:
        """Raises UsageError."""
        for source in sources:
            if not is_source(source):
                raise click.UsageError(f"--source {source!r}: expected an address, or ADDRESS/PREFIX")
        parsed = [found for found in map(Resource.of, resources) if found is not None]
        if all((found.kind, action) in NEVER_ASKED for found in parsed for action in actions):
            kinds = " or ".join(sorted({f"a {found.kind.lower()}" for found in parsed}))
            raise click.UsageError(f"no request asks {' or '.join(actions)} of {kinds}")
        entries = [Entry(found, actions, sources, not deny) for found in dict.fromkeys(parsed)]
        return cls(user, _kind(is_default), tuple(entries))

    async def make(self, rules: AccessRules, server: str, *, new: bool) -> None:
        """Raises Refused when one is there (``new``), or is not."""
        if any(not entry.allow for entry in self.entries) and await rules.is_super(server, self.user):
            raise Refused(f"{self.user} is a super user, whom no policy holds: keelmq user update --normal")
        held = {e.resource for e in await rules.entries(server, self.user) if e.policy == self.policy}
        for entry in self.entries:
            if new and str(entry.resource) in held:
                raise Refused(f"{self.user} has an entry for {entry.resource}: keelmq policy update")
            if not new and str(entry.resource) not in held:
                raise Refused(f"{self.user} has no entry for {entry.resource}: keelmq policy create")
        await rules.put_entries(server, self.user, self.policy, self.entries)


@click.command("list", short_help="What users may do.")
@click.option("--user", default="", metavar="NAME", help="Of this user alone.")
@click.option("--resource", "part", default="", metavar="TEXT", help="Of resources with this in them.")
@at_servers
def list_(
    user: str,
    part: str,
    servers: Servers,
    as_json: bool,
) -> int:
    """List the entries of users' policies at every master, or at other servers.

    Example: keelmq policy list --user shop
    """

    async def work(rules: AccessRules, server: str) -> list[KnownEntry]:
        return await rules.entries(server, user, part)

    found = servers.each(work)
    rows = sorted(merged(found).items(), key=lambda row: (row[0].user, row[0].policy, row[0].resource))
    if as_json:
        say_json([_json(entry) | {"at": at} for entry, at in rows])
    elif answered(found):
        columns = ("user", "policy", "resource", "actions", "from", "decision", "at")
        show(
            [
                (
                    *(e.user, e.policy, e.resource, ",".join(e.actions)),
                    *(",".join(e.sources) or "anywhere", e.decision, at),
                )
                for e, at in rows
            ],
            columns,
        )
    return problems_of(found)


def _entries(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``change``, by options of entries and the user."""

    @functools.wraps(command)
    def called(
        user: str,
        resources: tuple[str, ...],
        actions: tuple[str, ...],
        sources: tuple[str, ...],
        deny: bool,
        is_default: bool,
        **others: Any,
    ) -> Any:
        change = Change.of(user, resources, actions, sources, deny=deny, is_default=is_default)
        return command(change=change, **others)

    chosen = click.Choice(GIVEN, case_sensitive=False)
    found: Callable[..., Any] = called
    for option in (
        _policy,
        click.option("--deny", is_flag=True, help="It may not."),
        click.option("--source", "sources", multiple=True, metavar="ADDRESS", help="From here [anywhere]."),
        click.option("--action", "actions", multiple=True, required=True, type=chosen),
        _resources,
        click.argument("user"),
    ):
        found = option(found)
    return found


@click.command(short_help="Give a user rights.")
@_entries
@at_servers
def create(change: Change, servers: Servers, as_json: bool) -> int:
    """Give USER an entry for each resource, at every master. One that has it already is left as it is:
    exit code 3.

    Example: keelmq policy create shop --resource Topic:orders --action Pub --action Get
    """
    return say_done(servers.each(_make(change, new=True)), _what(change), in_json=as_json)


@click.command(short_help="Change rights of a user.")
@_entries
@at_servers
def update(change: Change, servers: Servers, as_json: bool) -> int:
    """Replace USER's entry of each resource, at every master: actions and sources that are not named go.

    Example: keelmq policy update shop --resource Topic:orders --action Pub --source 10.0.0.0/8
    """
    return say_done(servers.each(_make(change, new=False)), _what(change), in_json=as_json)


@click.command(short_help="Take rights from a user.")
@click.argument("user")
@click.option("--resource", callback=_read_resources, help="Its entry alone [all the user has].")
@_policy
@click.option("--yes", is_flag=True, help="Do not ask.")
@at_servers
def delete(
    user: str,
    resource: str | None,
    is_default: bool,
    yes: bool,
    servers: Servers,
    as_json: bool,
) -> int:
    """Delete the entry of one resource, or all of USER's entries of both policies.

    Example: keelmq policy delete shop --resource Topic:orders --yes
    """
    if resource is None and is_default:
        raise click.UsageError("--default goes with --resource: without one both policies are deleted")
    what = f"all of {user}'s entries" if resource is None else f"{user}'s entry for {resource}"
    need_yes(f"Delete {what}?", yes)

    async def work(rules: AccessRules, server: str) -> None:
        held = await rules.entries(server, user)
        if resource is not None and not any(
            (e.resource, e.policy) == (resource, _kind(is_default)) for e in held
        ):
            raise Refused(f"{user} has no entry for {resource}")
        await rules.delete_entries(server, user, _kind(is_default), resource)

    return say_done(servers.each(work), f"{what} deleted", in_json=as_json)


def _make(change: Change, *, new: bool) -> Callable[[AccessRules, str], Any]:
    async def work(rules: AccessRules, server: str) -> None:
        await change.make(rules, server, new=new)

    return work


def _what(change: Change) -> str:
    entry = change.entries[0]
    may = "may" if entry.allow else "may not"
    resources = ", ".join(str(one.resource) for one in change.entries)
    return f"{change.user} {may} {', '.join(entry.actions)} {resources}"


def _kind(is_default: bool) -> str:
    return "Default" if is_default else "Custom"


def _json(entry: KnownEntry) -> dict[str, Any]:
    return {
        "user": entry.user,
        "policyType": entry.policy,
        "resource": entry.resource,
        "actions": list(entry.actions),
        "sourceIps": list(entry.sources),
        "decision": entry.decision,
    }


policy = group_of(
    "policy", "Policies of ACL 2.0: list, create, update, delete.", list_, create, update, delete
)
