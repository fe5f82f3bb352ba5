"""Clients that ignore routes: each sends to one broker all the time, whatever the NameServers say of it.

So a master that was deposed, and does not know it yet, is asked to acknowledge as long as it can: clients
that follow routes leave it at once, and would never see what it promises alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from admin.local.cluster import LocalCluster
from chaos.checks.liveness import STUBBORN
from chaos.clients import Acked
from chaos.drills.load import DrillLoad
from chaos.history import History
from chaos.workload import Load
from client.message import Attempt, Message, Queue, SendFailed, SendStatus, SendUnknown
from client.sending.composing import Composer
from client.sending.options import SendOptions
from client.sending.outcome import check
from client.session import Session
from model.codes import Response
from model.errors import PeerError, Refused, Unknown
from model.message import parse_message_id
from runtime.env import Env

PER_SECOND: Final = 10.0
ANSWER_S: Final = 3.0
CLIENT: Final = 950
"""The number of the first one's Env: those of the load are small."""


class StubbornSender:
    """Sends to ``address`` alone, once: what is not taken there is not tried elsewhere."""

    def __init__(self, env: Env, name: str, namesrv: Sequence[str], address: str) -> None:
        self._address = address
        self._session = Session(env, namesrv)
        self._compose = Composer(env, f"GID_{name}", SendOptions(timeout_s=ANSWER_S))

    async def start(self) -> None:
        await self._session.start()

    async def stop(self) -> None:
        await self._session.stop()

    async def send(self, key: str, queue: Queue, body: bytes) -> Acked:
        """Raises SendFailed, SendUnknown."""
        message = Message(topic=queue.topic, body=body, keys=[key], properties={"UNIQ_KEY": key})
        command = self._compose.single(message, queue, None, None).command(queue)
        try:
            response = await self._session.remoting.call(self._address, command, ANSWER_S)
            result = check(response, queue, key, (Attempt(self._address, "ok", "", 0.0),))
        except (Unknown, PeerError) as error:
            raise SendUnknown(str(error), ()) from error
        except Refused as error:
            raise SendFailed(error.remark, error.code, ()) from error
        except OSError as error:
            raise SendFailed(f"nothing was sent: {error}", Response.SERVICE_NOT_AVAILABLE, ()) from error
        if result.status is not SendStatus.SEND_OK:
            raise SendUnknown(f"answered {result.status.name}", ())
        _, physical_offset = parse_message_id(result.offset_msg_id)
        return Acked(result.queue, result.queue_offset, physical_offset, self._address)


def join(load: DrillLoad, env_of: Callable[[int], Env], cluster: LocalCluster, each: Load, seed: int) -> None:
    """One for each broker, to the queues of ``load``, which has not begun. ``each``: how messages look."""
    layout, chance = cluster.layout, random.Random(f"{seed}/{STUBBORN}")
    namesrv = [node.address for node in layout.namesrvs]
    own = Load(each.topic, per_second=PER_SECOND, queues=each.queues, body_bytes=each.body_bytes)
    for number, node in enumerate(layout.broker_nodes):
        name = f"{STUBBORN}{number}"
        load.beside(name, StubbornSender(env_of(CLIENT + number), name, namesrv, node.address), own, chance)


def counted(history: History) -> dict[str, int]:
    """How the sends that ignore routes ended: ``ok``, ``fail``, ``unknown``."""
    found = {"ok": 0, "fail": 0, "unknown": 0}
    for send in history.sends():
        if send.process.startswith(STUBBORN):
            found[send.outcome] += 1
    return found


def routed(history: History) -> History:
    """What the clients saw that follow routes: an outage of theirs is none of those that do not ask."""
    return History(event for event in history.events if not _is_stubborn(event))


def _is_stubborn(event: Any) -> bool:
    process = getattr(event, "process", None)
    return isinstance(process, str) and process.startswith(STUBBORN)
