"""``keelmq topic alter``: what becomes of a topic, and is anything lost by it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from admin.commands.reach import as_json, reaches, say_json, site
from admin.terminal import say
from client.admin import AdminClient, ConsumeStats
from model.attributes import altered
from model.errors import ConfigError, Refused
from model.topic import PERM_READ, PERM_WRITE, TopicConfig, topic_name_error

PERMS = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ | PERM_WRITE}
_QUEUES = click.IntRange(1, 65535)


def need_name(name: str) -> None:
    """Raises UsageError for a name that no topic can have."""
    problem = topic_name_error(name)
    if problem is not None:
        raise click.UsageError(problem)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be another way; None and empty: it stays. ``attributes``: +name to value, -name to ""."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    attributes: Mapping[str, str] | None = None

    @property
    def is_empty(self) -> bool:
        others = (self.read_queues, self.write_queues, self.perm, self.order)
        return all(value is None for value in others) and not self.attributes

    def applied(self, held: TopicConfig) -> TopicConfig:
        """Raises Refused for attributes that cannot be changed like this."""
        return replace(
            held,
            read_queues=held.read_queues if self.read_queues is None else self.read_queues,
            write_queues=held.write_queues if self.write_queues is None else self.write_queues,
            perm=held.perm if self.perm is None else self.perm,
            order=held.order if self.order is None else self.order,
            attributes=altered(held.attributes, self.attributes or {}, None),
        )

    @property
    def attributes_text(self) -> str:
        """As it travels."""
        return ",".join(f"{k}={v}" if k[0] == "+" else k for k, v in (self.attributes or {}).items())


def loss(group: str, before: TopicConfig, after: TopicConfig, lags: Mapping[str, list[ConsumeStats]]) -> str:
    """What nobody could read after the change, and what to do first; empty when there is nothing.
    ``lags``: of each consumer group in the queues of broker group ``group``."""
    if after.perm & PERM_READ and after.write_queues > after.read_queues:
        return (
            f"{group}: {after.write_queues} queues would be written to and {after.read_queues} read:"
            " --queues changes both"
        )
    for reader, stats in lags.items():
        lag = sum(s.lag for s in stats if s.queue.queue_id >= after.read_queues)
        if lag and after.read_queues < before.read_queues:
            return (
                f"{group}: {reader} has {lag:,} messages to read in queues from {after.read_queues} on:"
                f" alter --write-queues {after.read_queues} alone, and --read-queues when it has read them"
            )
    return ""


def in_words(config: TopicConfig) -> str:
    """One line about a topic."""
    perm = next((name for name, bits in PERMS.items() if bits == config.perm), str(config.perm))
    queues = f"{config.read_queues} queues"
    if config.read_queues != config.write_queues:
        queues = f"{config.read_queues} queues to read, {config.write_queues} to write"
    words = [queues, f"perm {perm}", *(["ordered"] if config.order else [])]
    return ", ".join([*words, *(f"{name}={value}" for name, value in sorted(config.attributes.items()))])


def _attributes(added: tuple[str, ...], dropped: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in added:
        name, separator, value = text.partition("=")
        if not separator or name[:1] in ("", "+", "-") or "," in text:
            raise click.UsageError(f"--attribute {text!r}: expected NAME=VALUE, as message.type=FIFO")
        found[f"+{name}"] = value
    return found | {f"-{name}": "" for name in dropped}


def _shown(group: str, before: TopicConfig, after: TopicConfig) -> dict[str, Any]:
    return {"brokerName": group, "before": before.to_json(), "after": after.to_json()}


@click.command(short_help="Change queues, permissions or attributes of a topic.")
@click.argument("name")
@click.option("--queues", type=_QUEUES, help="To read and to write.")
@click.option("--read-queues", type=_QUEUES, help="To read alone.")
@click.option("--write-queues", type=_QUEUES, help="To write alone.")
@click.option("--perm", type=click.Choice(sorted(PERMS)))
@click.option("--order/--no-order", default=None, help="An ordered topic, or not.")
@click.option("--attribute", "added", multiple=True, metavar="NAME=VALUE", help="As message.type=FIFO.")
@click.option("--drop-attribute", "dropped", multiple=True, metavar="NAME")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Broker groups [all that have it].")
@click.option("--force", is_flag=True, help="Although messages are left that nobody could read.")
@click.option("--dry-run", is_flag=True, help="Only show the change.")
@as_json
@reaches
def alter(
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    order: bool | None,
    added: tuple[str, ...],
    dropped: tuple[str, ...],
    groups: tuple[str, ...],
    force: bool,
    dry_run: bool,
    as_json: bool,
    directory: Path,
    namesrv: str | None,
    credentials_file: str | None,
) -> None:
    """Change a topic that is there; what is not named stays. Fewer queues are refused while a consumer group
    has something to read in those that go.

    Example: keelmq topic alter orders --queues 16 --dry-run
    """
    need_name(name)
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise click.UsageError("--queues is for both: leave out --read-queues and --write-queues")
    change = Change(
        read_queues if queues is None else queues,
        write_queues if queues is None else queues,
        None if perm is None else PERMS[perm],
        order,
        _attributes(added, dropped),
    )
    if change.is_empty:
        raise click.UsageError("nothing to change: give --queues, --perm, --order or --attribute")

    async def work(admin: AdminClient) -> list[tuple[str, TopicConfig, TopicConfig]]:
        return await _alter(admin, name, change, groups, force=force, dry_run=dry_run)

    done = site(directory, namesrv, credentials_file).ask(work)
    if as_json:
        say_json({"executed": not dry_run, "topic": name, "groups": [_shown(*one) for one in done]})
        return
    for group, before, after in done:
        say(f"{group}: {in_words(before)}  ->  {in_words(after)}")
    say("nothing is changed yet: leave out --dry-run" if dry_run else "done")


async def _alter(
    admin: AdminClient, name: str, change: Change, groups: tuple[str, ...], *, force: bool, dry_run: bool
) -> list[tuple[str, TopicConfig, TopicConfig]]:
    """Each broker group, and the topic before and after. All are looked at before one is changed."""
    held = await admin.topic_configs(name)
    lags = {reader: await admin.consume_stats(reader, name) for reader in await admin.groups_of(name)}
    chosen = _planned(held, change, groups, lags, force=force)
    if not dry_run:
        for group, _, after in chosen:
            await admin.put_topic(held[group][0], after, change.attributes_text)
    return chosen


def _planned(
    held: Mapping[str, tuple[str, TopicConfig]],
    change: Change,
    groups: tuple[str, ...],
    lags: Mapping[str, list[ConsumeStats]],
    *,
    force: bool,
) -> list[tuple[str, TopicConfig, TopicConfig]]:
    """Raises ConfigError for a change that cannot be, or would hide messages."""
    for group in groups:
        if group not in held:
            raise ConfigError(f"{group} does not have the topic; those that do: {', '.join(held)}")
    found = []
    for group in groups or held:
        before = held[group][1]
        try:
            after = change.applied(before)
        except Refused as error:
            raise ConfigError(str(error)) from None
        here = {r: [s for s in stats if s.queue.broker_name == group] for r, stats in lags.items()}
        lost = loss(group, before, after, here)
        if lost and not force:
            raise ConfigError(f"{lost}; --force does it nevertheless")
        found.append((group, before, after))
    return found
