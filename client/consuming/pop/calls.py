"""How does a consumer pop messages, acknowledge them, keep them for longer, and bury those that never work?

POP_MESSAGE (200050), ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053)
and CONSUMER_SEND_MSG_BACK (36), all at the master that is known now. What is not safe there is not answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from client.consuming.pull import ANSWER_S, parse_records
from client.consuming.subscriptions import kind_of
from client.message import NoMaster, Received
from client.session import Session
from model.codes import Request, Response
from model.errors import PeerError, Refused, Unknown
from model.pop import (
    ALL_QUEUES,
    INIT_MAX,
    INIT_MIN,
    POP_CK,
    ExtraInfo,
    offsets_key,
    parse_message_offsets,
    parse_start_offsets,
    real_topic,
)
from remoting.codec import Command
from remoting.headers import need_int
from remoting.pop_acks import BatchAck, encode_batch_acks
from remoting.pop_headers import AckHeader, PopAnswer, PopHeader
from runtime.env import Env

POP_CODES: Final = (
    Response.SUCCESS,
    Response.POLLING_TIMEOUT,
    Response.POLLING_FULL,
    Response.PULL_NOT_FOUND,
)
ACKS_MAX: Final = 64
"""Messages one request acknowledges."""
DEAD: Final = -1
"""The delay level of a message that goes to the dead letters at once."""


@dataclass(slots=True, eq=False)
class Popped:
    """A message in flight. ``info`` names the pop it is of, or the last change of its time; it is hidden from
    others until ``until_ms`` (monotonic). ``settled``: it is known what is to become of it."""

    message: Received
    topic: str
    broker_name: str
    info: ExtraInfo
    until_ms: float
    settled: bool = False

    def place(self, group: str) -> str:
        """The topic it lies in: its own, or a retry topic of the group."""
        return real_topic(self.topic, group, self.info.kind)


class PopCalls:
    """The requests of one consumer group's member. Each raises Refused (the broker said no), Unknown (no
    answer), OSError (not reached), NoRoute, NoMaster or PeerError."""

    def __init__(self, env: Env, session: Session, group: str) -> None:
        self.session = session
        self._env = env
        self._group = group

    async def pop(
        self,
        topic: str,
        broker_name: str,
        count: int,
        *,
        invisible_ms: int,
        poll_ms: int,
        expression: str = "*",
        from_first: bool = False,
    ) -> list[Popped]:
        """Up to ``count`` messages of all queues; none when none came within ``poll_ms``."""
        header = PopHeader(
            self._group,
            topic,
            ALL_QUEUES,
            count,
            invisible_ms,
            poll_ms,
            self._env.now_ms(),
            INIT_MIN if from_first else INIT_MAX,
            kind_of(expression),
            str(expression),
        )
        answer = await self._ask(
            topic,
            broker_name,
            Request.POP_MESSAGE,
            header.to_ext(),
            timeout_s=poll_ms / 1000 + ANSWER_S,
            accept=POP_CODES,
        )
        if answer.code != Response.SUCCESS:
            return []
        return self._popped(answer, topic, broker_name)

    async def ack(self, popped: Sequence[Popped]) -> None:
        """Acknowledge messages of one topic at one group of brokers, ``ACKS_MAX`` at most."""
        first = popped[0]
        if len(popped) == 1:
            header = self._header(first)
            await self._ask(first.topic, first.broker_name, Request.ACK_MESSAGE, header.to_ext())
            return
        body = encode_batch_acks(first.broker_name, batches(self._group, popped))
        await self._ask(first.topic, first.broker_name, Request.BATCH_ACK_MESSAGE, {}, body)

    async def change(self, popped: Popped, invisible_ms: int, *, suspend: bool = False) -> None:
        """Hide it for ``invisible_ms`` from now on; then it comes to any member of the group. ``suspend``:
        that is no try of it (from RocketMQ 5.5 on; others count it)."""
        ext = self._header(popped, invisible_ms).to_ext() | ({"suspend": "true"} if suspend else {})
        answer = await self._ask(popped.topic, popped.broker_name, Request.CHANGE_MESSAGE_INVISIBLETIME, ext)
        info, offset = popped.info, popped.message.queue_offset
        popped.info = ExtraInfo(
            offset,
            need_int(answer.ext, "popTime"),
            need_int(answer.ext, "invisibleTime"),
            need_int(answer.ext, "reviveQid"),
            info.kind,
            info.broker,
            info.queue_id,
            offset,
        )
        popped.until_ms = self._env.monotonic_ms() + invisible_ms

    async def bury(self, popped: Popped) -> None:
        """Let the broker store it among the group's dead letters; it is to be acknowledged then."""
        message = popped.message
        ext = {
            "offset": str(message.physical_offset),
            "group": self._group,
            "delayLevel": str(DEAD),
            "originMsgId": message.msg_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(message.reconsume_times),
        }
        await self._ask(popped.topic, popped.broker_name, Request.CONSUMER_SEND_MSG_BACK, ext)

    def _header(self, popped: Popped, invisible_ms: int | None = None) -> AckHeader:
        return AckHeader(
            self._group,
            popped.place(self._group),
            popped.info.queue_id,
            popped.info.to_text(),
            popped.message.queue_offset,
            invisible_ms,
        )

    def _popped(self, answer: Command, topic: str, broker_name: str) -> list[Popped]:
        """The messages with what acknowledges them: their own property, or the texts of the answer."""
        until_ms = self._env.monotonic_ms()
        try:
            told = PopAnswer.parse(answer.ext)
            starts = parse_start_offsets(told.start_offsets)
            offsets = parse_message_offsets(told.message_offsets)
            found = []
            for message in parse_records(answer.body, broker_name):
                info = _info(message, told, starts, offsets, broker_name)
                found.append(Popped(message, topic, broker_name, info, until_ms + info.invisible_ms))
        except (ValueError, Refused) as error:
            raise PeerError(f"{broker_name} answered a pop with what is none: {error}") from None
        return found

    async def _ask(
        self,
        topic: str,
        broker_name: str,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_s: float = ANSWER_S,
        accept: Sequence[int] = (Response.SUCCESS,),
    ) -> Command:
        routes = self.session.routes
        address = (await routes.get(topic)).master(broker_name)
        if address is None:
            raise NoMaster(f"group {broker_name} has no master")
        try:
            answer = await self.session.call(
                address, code, {**ext, "bname": broker_name}, body, timeout_s=timeout_s, accept=accept
            )
        except (OSError, Unknown) as error:
            routes.suspect(address, silent=isinstance(error, Unknown))
            raise
        except Refused as error:
            if error.code not in _SAID_BY_A_MASTER:
                routes.suspect(address)
            raise
        routes.trust(address)
        return answer


_SAID_BY_A_MASTER: Final = frozenset(
    {
        Response.TOPIC_NOT_EXIST,
        Response.SUBSCRIPTION_GROUP_NOT_EXIST,
        Response.SUBSCRIPTION_PARSE_FAILED,
        Response.INVALID_PARAMETER,
        Response.NO_MESSAGE,
        Response.MESSAGE_ILLEGAL,
        Response.REQUEST_CODE_NOT_SUPPORTED,
    }
)
"""Answers that another broker, or another try, would not change."""


def is_final(error: Exception) -> bool:
    """Whether the same request would be answered so again."""
    return isinstance(error, Refused) and error.code in _SAID_BY_A_MASTER


def batches(group: str, popped: Sequence[Popped]) -> list[BatchAck]:
    """One entry for each pop of each queue."""
    rows = [
        BatchAck(
            group,
            one.topic,
            one.info.kind,
            one.info.start,
            one.info.queue_id,
            one.info.revive_queue,
            one.info.pop_time_ms,
            one.info.invisible_ms,
            [one.message.queue_offset - one.info.start],
        )
        for one in popped
    ]
    rows.sort(key=_pop_of)
    found = []
    for _, same in groupby(rows, key=_pop_of):
        first, *others = same
        first.diffs += [other.diffs[0] for other in others]
        found.append(first)
    return found


def _pop_of(row: BatchAck) -> tuple[str, str, int, int, int, int, int]:
    return (
        row.topic,
        row.kind,
        row.queue_id,
        row.start,
        row.revive_queue,
        row.pop_time_ms,
        row.invisible_ms,
    )


def _info(
    message: Received,
    told: PopAnswer,
    starts: Mapping[str, int],
    offsets: Mapping[str, list[int]],
    broker_name: str,
) -> ExtraInfo:
    """Raises ValueError when the answer does not say where the message was popped."""
    text = message.properties.get(POP_CK)
    if text is not None:
        return ExtraInfo.parse(text)
    key = offsets_key(message.stored_topic, message.queue.queue_id)
    if key not in starts or message.queue_offset not in offsets.get(key, ()):
        raise ValueError(f"no place of {message.stored_topic} {key} {message.queue_offset}")
    return ExtraInfo(
        starts[key],
        told.pop_time_ms,
        told.invisible_ms,
        told.revive_queue,
        key.partition("@")[0],
        broker_name,
        message.queue.queue_id,
        message.queue_offset,
    )
