"""How does a consumer read one queue: which broker, which offset, what did it hold?

The master is asked, or the broker a former answer suggested; while a group has no master any other member
serves, as consumers read only what is confirmed on all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from client.consuming.subscriptions import kind_of
from client.lifecycle import Lifecycle
from client.message import NoMaster, Queue, Received, received
from client.routes import Route
from client.session import POLL_MS, Session
from model.codes import Request, Response
from model.errors import DiskError, PeerError, Unknown
from remoting import bodies
from remoting.codec import Command
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullAnswer, PullHeader
from remoting.keys import Signer
from runtime.env import Env
from store.files.record import decode

log = logging.getLogger(__name__)

PULL_COUNT_MAX: Final = 32
ANSWER_S: Final = 4.0
"""Whatever became of the broker, a call is over after this time, routes and connects included; one that asked
to be held, so long after that time."""

LEFT_MIN_S: Final = 0.5
"""However long the route took, the broker is given so much."""

PULL_CODES: Final = (
    Response.SUCCESS,
    Response.PULL_NOT_FOUND,
    Response.PULL_RETRY_IMMEDIATELY,
    Response.PULL_OFFSET_MOVED,
)


RESET_REMARK: Final = "OFFSET_RESET"
RESET_COMMIT_REMARK: Final = "Offset has been previously reset"
"""How brokers of RocketMQ 5.5 say that an operator has the group go on elsewhere."""


class PullStatus(Enum):
    """FOUND; NO_NEW (nothing yet); NO_MATCH (ask again from ``next_offset``); MOVED (offset corrected)."""

    FOUND = "found"
    NO_NEW = "no new"
    NO_MATCH = "no match"
    MOVED = "moved"


_STATUS: Final = {
    Response.SUCCESS: PullStatus.FOUND,
    Response.PULL_NOT_FOUND: PullStatus.NO_NEW,
    Response.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCH,
    Response.PULL_OFFSET_MOVED: PullStatus.MOVED,
}


@dataclass(frozen=True, slots=True)
class Pulled:
    """One answer; offsets count messages of the queue, ``max_offset`` is the next one to be readable."""

    status: PullStatus
    messages: list[Received]
    next_offset: int
    min_offset: int
    max_offset: int
    reset: bool = False
    """MOVED, as an operator has the group go on there."""


def parse_records(body: bytes, broker_name: str) -> list[Received]:
    """The records of a pull's body. Raises PeerError when they are not whole or a checksum does not fit."""
    found: list[Received] = []
    at = 0
    while at < len(body):
        try:
            record = decode(body, at)
        except DiskError as error:
            raise PeerError(f"{broker_name} sent a damaged record at byte {at}: {error}") from None
        found.append(received(record, broker_name))
        at += record.size
    return found


class PullConsumer(Lifecycle):
    """Reads queues by offset, and commits offsets for its group. Use as ``async with``, or ``start`` and
    ``stop``.

    Methods raise Refused (the broker said no), Unknown (no answer), OSError (not reached), NoRoute, NoMaster,
    each within ``ANSWER_S``; after that another member of the group is asked, where one may serve.
    """

    def __init__(
        self,
        env: Env,
        group: str,
        namesrv: str | Sequence[str] = (),
        *,
        session: Session | None = None,
        poll_ms: int = POLL_MS,
        credentials: Signer | None = None,
    ) -> None:
        """``credentials``: what a session of its own signs with, as a cluster with ACL wants it."""
        self.group = group
        self.session = session or Session(env, namesrv, poll_ms=poll_ms, credentials=credentials)
        self._routes = self.session.routes
        self._suggested: dict[Queue, int] = {}

    async def start(self) -> None:
        await self.session.start()

    async def stop(self) -> None:
        await self.session.stop()

    async def queues(self, topic: str) -> list[Queue]:
        """The readable queues of ``topic``."""
        return list((await self._routes.get(topic)).readable)

    async def pull(
        self,
        queue: Queue,
        offset: int,
        *,
        count_max: int = PULL_COUNT_MAX,
        expression: str = "*",
        sub_version: int = 0,
        suspend_ms: int = 0,
        master_only: bool = False,
    ) -> Pulled:
        """Messages of ``queue`` from ``offset`` on, those of ``expression`` (tags, or ``Sql``); with
        ``suspend_ms`` the broker holds an empty answer that long. Raises within that time and ``ANSWER_S``.
        """
        sys_flag = PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0)
        header = PullHeader(
            self.group,
            queue.topic,
            queue.queue_id,
            offset,
            count_max,
            sys_flag=sys_flag,
            suspend_timeout_ms=suspend_ms,
            subscription=str(expression),
            expression_type=kind_of(expression),
            sub_version=sub_version,
        )
        timeout_s = suspend_ms / 1000 + ANSWER_S
        response = await self._ask(
            queue, Request.PULL_MESSAGE, header.to_ext(), timeout_s, PULL_CODES, master_only=master_only
        )
        answer = PullAnswer.parse(response.ext)
        self._suggested[queue] = answer.suggest_broker_id
        status = _STATUS[Response(response.code)]
        messages = parse_records(response.body, queue.broker_name) if status is PullStatus.FOUND else []
        reset = status is PullStatus.MOVED and response.remark == RESET_REMARK
        return Pulled(status, messages, answer.next_offset, answer.min_offset, answer.max_offset, reset)

    async def committed(self, queue: Queue, *, or_zero: bool = True) -> int | None:
        """The group's offset of ``queue``, or None when it has none. With ``or_zero`` brokers say 0 then,
        while the whole queue is still there."""
        ext = self._group_queue(queue) | ({} if or_zero else {"setZeroIfNotFound": "false"})
        response = await self._ask(
            queue,
            Request.QUERY_CONSUMER_OFFSET,
            ext,
            accept=(Response.SUCCESS, Response.QUERY_NOT_FOUND),
        )
        return int(response.ext["offset"]) if response.code == Response.SUCCESS else None

    async def commit(self, queue: Queue, offset: int) -> bool:
        """Set the group's offset of ``queue``: the next message to read. Returns when the master has it, or
        with False: an operator has the group go on elsewhere (``committed``), and this was not noted."""
        ext = {**self._group_queue(queue), "commitOffset": str(offset)}
        response = await self._ask(queue, Request.UPDATE_CONSUMER_OFFSET, ext, master_only=True)
        return response.remark != RESET_COMMIT_REMARK

    async def min_offset(self, queue: Queue) -> int:
        return await self._offset(queue, Request.GET_MIN_OFFSET, {})

    async def max_offset(self, queue: Queue) -> int:
        return await self._offset(queue, Request.GET_MAX_OFFSET, {"committed": "true"})

    async def offset_by_time(self, queue: Queue, timestamp_ms: int) -> int:
        """The first message stored at ``timestamp_ms`` or later."""
        return await self._offset(queue, Request.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(timestamp_ms)})

    async def read_all(self, queue: Queue, *, count_max: int = PULL_COUNT_MAX) -> list[Received]:
        """Everything the master's queue holds now, from its smallest offset on."""
        offset, end = await self.min_offset(queue), await self.max_offset(queue)
        found: list[Received] = []
        while offset < end:
            pulled = await self.pull(queue, offset, count_max=count_max, master_only=True)
            found += [message for message in pulled.messages if message.queue_offset < end]
            if pulled.next_offset <= offset:
                break
            offset = pulled.next_offset
        return found

    async def lock(self, queues: Sequence[Queue], address: str) -> list[Queue]:
        """Ask a master for the right to consume ``queues`` in order; the ones granted (for 60 s)."""
        response = await self.session.call(address, Request.LOCK_BATCH_MQ, body=self._lock_body(queues))
        answer = bodies.believed_object(response.body)
        granted = {
            Queue(str(q["topic"]), str(q["brokerName"]), int(q["queueId"]))
            for q in answer.get("lockOKMQSet") or []
        }
        return [queue for queue in queues if queue in granted]

    async def unlock(self, queues: Sequence[Queue], address: str) -> None:
        await self.session.call(address, Request.UNLOCK_BATCH_MQ, body=self._lock_body(queues))

    def _lock_body(self, queues: Sequence[Queue]) -> bytes:
        return bodies.dumps(
            {
                "clientId": self.session.client_id,
                "consumerGroup": self.group,
                "mqSet": [queue.to_json() for queue in queues],
                "onlyThisBroker": False,
            }
        )

    def _group_queue(self, queue: Queue) -> dict[str, str]:
        return {"consumerGroup": self.group, "topic": queue.topic, "queueId": str(queue.queue_id)}

    async def _offset(self, queue: Queue, code: int, ext: dict[str, str]) -> int:
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), **ext}
        response = await self._ask(queue, code, ext, master_only=True)
        try:
            return int(response.ext["offset"])
        except (KeyError, ValueError):
            raise PeerError(f"{queue.broker_name} answered {code} without an offset") from None

    async def _ask(
        self,
        queue: Queue,
        code: int,
        ext: dict[str, str],
        timeout_s: float = ANSWER_S,
        accept: Sequence[int] = (Response.SUCCESS,),
        *,
        master_only: bool = False,
    ) -> Command:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        route = await self._routes.get(queue.topic)
        address = self._address(route, queue, master_only=master_only)
        ext["bname"] = queue.broker_name
        try:
            left_s = max(until_s - loop.time(), LEFT_MIN_S)
            response = await self.session.call(address, code, ext, timeout_s=left_s, accept=accept)
        except (OSError, Unknown) as error:
            self._routes.suspect(address, silent=isinstance(error, Unknown))
            self._suggested.pop(queue, None)
            raise
        self._routes.trust(address)
        return response

    def _address(self, route: Route, queue: Queue, *, master_only: bool) -> str:
        members = route.brokers.get(queue.broker_name, {})
        suggested = None if master_only else members.get(self._suggested.get(queue, 0))
        address = suggested or members.get(0)
        if not master_only and (address is None or self._routes.is_suspect(address)):
            # Consumers read only what every member has: another one serves as well.
            sound = (other for other in members.values() if not self._routes.is_suspect(other))
            address = next(sound, address or next(iter(members.values()), None))
        if address is None:
            raise NoMaster(f"group {queue.broker_name} has no master")
        return address
