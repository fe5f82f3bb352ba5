"""The topics of drills on a cluster that others run: made for the load, and deleted after."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Final

from admin import credentials
from client.admin import AdminClient
from model.errors import MqError
from runtime.env import Env

PREFIX: Final = "keelmq-drill-"
_OURS: Final = re.compile(rf"{PREFIX}[0-9a-f]{{8}}")


def named() -> str:
    """A new one each time: what an earlier drill left in its queues is not this one's."""
    return PREFIX + secrets.token_hex(4)


async def left(env: Env, namesrv: Sequence[str]) -> list[str]:
    """Those that are there. Raises MqError, OSError."""
    async with AdminClient(env, namesrv, credentials=credentials.read()) as admin:
        return [topic for topic in await admin.topics() if _OURS.fullmatch(topic)]


async def delete(env: Env, namesrv: Sequence[str], topics: Sequence[str]) -> list[str]:
    """What stays of them, in words, with the command that removes it."""
    wrong = []
    for topic in topics:
        try:
            async with AdminClient(env, namesrv, credentials=credentials.read()) as admin:
                await admin.delete_topic(topic)
        except (MqError, OSError) as error:
            command = f"keelmq topic delete {topic} --yes --namesrv '{';'.join(namesrv)}'"
            wrong.append(f"topic {topic} stays: {error}; {command} removes it")
    return wrong
