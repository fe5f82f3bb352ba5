"""``keelmq drill heal --hosts``: what a drill left on a cluster that others run."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from admin import ending
from admin.exits import DONE, UNFINISHED
from admin.host.serve import loop_factory
from admin.tls import client_env
from chaos.remote import hosts as files
from chaos.remote import topics
from chaos.remote.cluster import RemoteCluster
from model.errors import MqError
from runtime.env import Env

AGAIN_S: Final = 15.0
"""So long servers that were just started may take until they can be asked."""
LOOK_S: Final = 0.5


def heal_staging(path: Path) -> int:
    """Have every server run, and delete the topics of drills; told as it is done."""
    hosts = files.read(path)
    with tempfile.TemporaryDirectory() as own, ending.in_order():
        cluster = RemoteCluster(hosts, Path(own))
        wrong = cluster.mend(click.echo)
        click.echo(f"{len(hosts.servers) - len(wrong)} of {len(hosts.servers)} servers were told to run")
        namesrv = [node.address for node in cluster.layout.namesrvs]
        wrong = ending.run(_delete(client_env(seed=0), namesrv), loop_factory()) + wrong
    return UNFINISHED if wrong else DONE


async def _delete(env: Env, namesrv: Sequence[str]) -> list[str]:
    """What stays, which is told, too."""
    until_ms = env.monotonic_ms() + AGAIN_S * 1000
    gone: set[str] = set()
    while True:
        try:
            there = await topics.left(env, namesrv)
            wrong = await topics.delete(env, namesrv, there)
            gone |= {topic for topic in there if not any(topic in text for text in wrong)}
        except (MqError, OSError) as error:
            wrong = [
                f"nobody can say which topics {topics.PREFIX}... are left: {error}; "
                f"keelmq topic list --namesrv '{';'.join(namesrv)}' shows them"
            ]
        if not wrong or env.monotonic_ms() > until_ms:
            break
        await asyncio.sleep(LOOK_S)
    for topic in sorted(gone):
        click.echo(f"topic {topic} was deleted")
    for text in wrong:
        click.echo(text, err=True)
    return wrong
