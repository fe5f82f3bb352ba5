"""How did one attempt of a send end, and is another one allowed? Pure.

The broker's answer decides. Codes given before anything is written mean "not stored"; a SYSTEM_ERROR may also
come after the write, so it counts as unknown unless its remark names a reason checked before the write.
"""

from __future__ import annotations

from typing import Final

from client.message import (
    Attempt,
    NameServersSilent,
    NoMaster,
    Queue,
    RouteRefused,
    SendResult,
    SendStatus,
)
from client.refusals import is_acl_1
from model.codes import Response
from model.errors import Refused, Unknown
from remoting.codec import Command
from remoting.headers import SendAnswer

RETRY_CODES: Final = frozenset(
    {
        Response.TOPIC_NOT_EXIST,
        Response.SERVICE_NOT_AVAILABLE,
        Response.SYSTEM_ERROR,
        Response.SYSTEM_BUSY,
        Response.NO_PERMISSION,
        Response.NO_BUYER_ID,
        Response.NOT_IN_CURRENT_UNIT,
        Response.GO_AWAY,
    }
)
"""Answers after which RocketMQ's producers try again (facts: ``retryResponseCodes``)."""

PER_BROKER_CODES: Final = frozenset(
    {Response.NO_PERMISSION, Response.NO_BUYER_ID, Response.NOT_IN_CURRENT_UNIT}
)
"""Of these, answers that say nothing about routes or roles: another broker may take the message, this one
will not."""

STORED_CODES: Final = frozenset(int(status) for status in SendStatus)
NOT_WRITTEN_REMARKS: Final = ("in-sync replicas not enough", "[REJECTREQUEST]")


def check(response: Command, queue: Queue, msg_id: str, attempts: tuple[Attempt, ...]) -> SendResult:
    """The result an answer carries. Raises Refused (not stored) or Unknown (may be stored)."""
    if response.code in STORED_CODES:
        try:
            answer = SendAnswer.parse(response.ext)
        except Refused as error:
            raise Unknown(f"answer {response.code} of a send: {error}") from None
        return SendResult(
            SendStatus(response.code),
            Queue(queue.topic, queue.broker_name, answer.queue_id),
            answer.queue_offset,
            msg_id,
            answer.message_id,
            attempts,
            response.ext.get("MSG_REGION") or "DefaultRegion",
            response.ext.get("TRACE_ON") != "false",
            response.ext.get("recallHandle"),
        )
    remark = response.remark or f"answer {int(response.code)}"
    written = not is_acl_1(response.code, remark) and not any(mark in remark for mark in NOT_WRITTEN_REMARKS)
    if response.code == Response.SYSTEM_ERROR and written:
        raise Unknown(f"SYSTEM_ERROR: {remark}")
    raise Refused(remark, response.code)


def is_per_broker(error: BaseException) -> bool:
    """Whether another broker may take the message, and this one will not."""
    return isinstance(error, Refused) and (
        error.code in PER_BROKER_CODES or is_acl_1(error.code, error.remark)
    )


def may_retry(error: BaseException, *, unknown_retries_left: int) -> bool:
    """Whether another attempt can help and is allowed; each retry of an unknown one may store a duplicate."""
    if isinstance(error, Unknown):
        return unknown_retries_left > 0
    if isinstance(error, RouteRefused):
        return False
    if isinstance(error, Refused):
        return error.code in RETRY_CODES
    return isinstance(error, OSError | NoMaster | NameServersSilent)
