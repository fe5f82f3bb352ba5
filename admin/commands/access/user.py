"""The commands about users of ACL 2.0: ``keelmq user list | create | update | delete``.

No option takes a password: a command line is for all on the machine to see.
"""

from __future__ import annotations

import sys

import click

from admin.commands.access.servers import Servers, answered, at_servers, merged, problems_of, say_done
from admin.commands.reach import need_yes, say_json, show
from admin.credentials import warn_if_open
from admin.group import group_of
from client.access import AccessRules, KnownUser
from model.errors import ConfigError, Refused

PASSWORD_BYTES_MAX = 4096
SUPER = ("Super", "enable")
"""As servers tell the type and the status of one who may do everything."""

_password_file = click.option(
    "--password-file", metavar="FILE", help="Its first line is the password; - is stdin [asked for]."
)
_even_last = click.option(
    "--even-last", is_flag=True, help="Also when nobody is left to change users and policies."
)


@click.command("list", short_help="The users each server knows.")
@click.option("--filter", "part", default="", metavar="TEXT", help="Of names with this in them.")
@at_servers
def list_(
    part: str,
    servers: Servers,
    as_json: bool,
) -> int:
    """List the users of every master, or of other servers: name, type, status; no password.

    Example: keelmq user list --nameservers
    """

    async def work(rules: AccessRules, server: str) -> list[KnownUser]:
        return await rules.users(server, part)

    found = servers.each(work)
    rows = sorted(merged(found).items())
    if as_json:
        say_json(
            [{"username": u.name, "userType": u.kind, "userStatus": u.status, "at": at} for u, at in rows]
        )
    elif answered(found):
        show([(u.name, u.kind, u.status, at) for u, at in rows], ("user", "type", "status", "at"))
    return problems_of(found)


@click.command(short_help="Make a user; its password is asked for.")
@click.argument("name")
@click.option("--super", "is_super", is_flag=True, help="One who may do everything.")
@_password_file
@at_servers
def create(
    name: str,
    is_super: bool,
    password_file: str | None,
    servers: Servers,
    as_json: bool,
) -> int:
    """Make a user at every master. It has no right until keelmq policy create gives it one.

    Example: keelmq user create shop --password-file shop.password --nameservers
    """
    password, kind = password_of(password_file), "Super" if is_super else "Normal"

    async def work(rules: AccessRules, server: str) -> None:
        await rules.create_user(server, name, password, kind)

    return say_done(servers.each(work), f"{name} is made", in_json=as_json)


@click.command(short_help="Change a user's password, type or status.")
@click.argument("name")
@click.option("--password", "ask_password", is_flag=True, help="Ask for a new password.")
@_password_file
@click.option("--super/--normal", "is_super", default=None, help="May it do everything?")
@click.option("--enable/--disable", "enabled", default=None, help="May it do anything?")
@_even_last
@at_servers
def update(
    name: str,
    ask_password: bool,
    password_file: str | None,
    is_super: bool | None,
    enabled: bool | None,
    even_last: bool,
    servers: Servers,
    as_json: bool,
) -> int:
    """Change a user at every master; what is not named stays.

    Example: keelmq user update shop --disable
    """
    wants_password = ask_password or password_file is not None
    if not wants_password and is_super is None and enabled is None:
        raise click.UsageError("nothing to change: give --password, --super, --normal, --enable or --disable")
    password = password_of(password_file) if wants_password else None
    kind = None if is_super is None else "Super" if is_super else "Normal"

    async def work(rules: AccessRules, server: str) -> None:
        if (is_super is False or enabled is False) and not even_last:
            await _check_not_last(rules, server, name)
        await rules.update_user(server, name, password=password, kind=kind, enabled=enabled)

    return say_done(servers.each(work), f"{name} is changed", in_json=as_json)


@click.command(short_help="Delete a user, and its policies.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_even_last
@at_servers
def delete(
    name: str,
    yes: bool,
    even_last: bool,
    servers: Servers,
    as_json: bool,
) -> int:
    """Delete a user at every master, and its policies with it. Where there is none of that name nothing
    happens: exit code 3.

    Example: keelmq user delete shop --yes
    """
    need_yes(f"Delete the user {name}, and its policies?", yes)

    async def work(rules: AccessRules, server: str) -> None:
        # A server says yes to a name that is not there, as RocketMQ's do.
        if all(user.name != name for user in await rules.users(server, name)):
            raise Refused(f"there is no user {name}")
        if not even_last:
            await _check_not_last(rules, server, name)
        await rules.delete_user(server, name)

    return say_done(servers.each(work), f"{name} is deleted", in_json=as_json)


async def _check_not_last(rules: AccessRules, server: str, name: str) -> None:
    """Raises Refused when nobody but ``name`` could change users and policies at ``server``."""
    may_all = {user.name for user in await rules.users(server) if (user.kind, user.status) == SUPER}
    if may_all == {name}:
        raise Refused(f"{name} is the last super user: make another one, or add --even-last")


def password_of(path: str | None) -> str:
    """Of a file, or as the user types it, twice. Raises ConfigError for none."""
    if path is None:
        if not sys.stdin.isatty():
            raise ConfigError("nobody is there to type a password: give --password-file FILE, or - for stdin")
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if path != "-":
        warn_if_open(path)
    try:
        with click.open_file(path, encoding="utf-8") as file:
            password = str(file.readline(PASSWORD_BYTES_MAX)).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--password-file {path}: {why}") from None
    if not password.strip():
        raise ConfigError(f"--password-file {path}: its first line is empty")
    return password


user = group_of("user", "Users of ACL 2.0: list, create, update, delete.", list_, create, update, delete)
