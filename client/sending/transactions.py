"""How does a message become visible only together with work of the application's own?

A prepared message (a half) is stored where no consumer reads it; the work is done; the broker is told to
commit it or to roll it back. When it is told nothing (the producer died, the work's outcome is unknown, the
end got lost), it asks a live producer of the group again and again, which answers by its ``check``.

Properties, sysFlag and the end (END_TRANSACTION 37, CHECK_TRANSACTION_STATE 39) are those of RocketMQ's
``TransactionMQProducer``.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from client.message import Message, NoMaster, Received, SendResult, SendStatus, received
from client.session import Session
from model.codes import Request
from model.errors import MqError
from model.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED_PROPERTY,
    TRANSACTION_ROLLBACK,
    parse_message_id,
)
from remoting.codec import Command
from remoting.headers import EndTransactionHeader, need_int
from remoting.service import Connection
from runtime.tasks import Tasks
from store.files.record import decode

log = logging.getLogger(__name__)

PRODUCER_GROUP: Final = "PGROUP"
CHECKS_MAX: Final = 2000
"""Checks under way; the broker asks again about those that came when there were more."""
TRIES: Final = 3
CHANGED_S: Final = 1.0


class Decision(enum.Enum):
    """What becomes of a prepared message. UNKNOWN: the broker asks later."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = 0


Work = Callable[[SendResult], Awaitable[Decision]]
"""Done once the message is prepared."""
Check = Callable[[Received], Awaitable[Decision]]
"""What became of the work of a message prepared earlier, perhaps by another producer of the group."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """``told``: the master took the decision. If not, ``why``, and it asks ``check`` later."""

    sent: SendResult
    decision: Decision
    told: bool
    why: str = ""


class Transactions:
    """The prepared messages of one producer."""

    def __init__(self, session: Session, group: str, check: Check | None) -> None:
        self._session = session
        self._group = group
        self._check = check
        self._tasks = Tasks(f"transactions {group}")
        self._checking: set[str] = set()
        if check is not None:
            session.handle(Request.CHECK_TRANSACTION_STATE, self._on_asked)

    async def stop(self) -> None:
        await self._tasks.cancel()

    def prepared(self, message: Message) -> Message:
        """``message`` as it is sent first. Raises ValueError when nobody could be asked, or it is delayed."""
        if self._check is None:
            raise ValueError(
                "a transaction needs a producer with check=...: brokers ask it what became of it"
            )
        if message.is_delayed:
            raise ValueError("a message of a transaction cannot be delayed")
        half = {TRANSACTION_PREPARED_PROPERTY: "true", PRODUCER_GROUP: self._group}
        return dataclasses.replace(message, properties={**message.properties, **half})

    async def complete(self, sent: SendResult, work: Work) -> Transaction:
        """Do the work, and tell the master. What ``work`` raises goes on to the caller: whether the work was
        done is not known then, and ``check`` says it later."""
        if sent.status is not SendStatus.SEND_OK:
            decision = Decision.ROLLBACK  # a failover might lose it
        else:
            decision = _decided("work", await work(sent))
        if decision is Decision.UNKNOWN:
            return Transaction(sent, decision, told=False, why="the work's outcome is unknown")
        end = EndTransactionHeader(
            self._group,
            sent.queue_offset,
            parse_message_id(sent.offset_msg_id)[1],
            decision.value,
            sent.msg_id,
            sent.msg_id,
            topic=sent.queue.topic,
        )
        why = await self._tell(sent.queue.topic, sent.queue.broker_name, end)
        return Transaction(sent, decision, told=not why, why=why)

    async def _tell(self, topic: str, broker_name: str, end: EndTransactionHeader) -> str:
        """Empty once the master has it; else why not."""
        routes, why = self._session.routes, ""
        for tries in range(TRIES):
            if tries:
                await routes.changed(topic, CHANGED_S)
            try:
                address = (await routes.get(topic)).master(broker_name)
                if address is None:
                    raise NoMaster(f"{broker_name} has no master now")
                await self._session.call(address, Request.END_TRANSACTION, end.to_ext())
                return ""
            except (MqError, OSError) as error:
                why = str(error) or type(error).__name__
                log.debug("end of transaction %s: %s", end.message_id, why)
        return why

    async def _on_asked(self, connection: Connection, command: Command) -> None:
        """CHECK_TRANSACTION_STATE: answered by an END_TRANSACTION of its own to the broker that asks."""
        record = decode(command.body)
        message = received(record, command.ext.get("bname", ""))
        if message.properties.get(PRODUCER_GROUP) != self._group or message.msg_id in self._checking:
            return
        if len(self._checking) >= CHECKS_MAX:
            log.warning("transactions %s: %d checks are under way, one more is left", self._group, CHECKS_MAX)
            return
        end = EndTransactionHeader(
            self._group,
            need_int(command.ext, "tranStateTableOffset", 0),
            need_int(command.ext, "commitLogOffset", 0),
            0,
            message.msg_id,
            command.ext.get("transactionId", ""),
            from_check=True,
            topic=message.topic,
        )
        self._checking.add(message.msg_id)
        self._tasks.spawn(self._answer(connection.address, message, end), name=f"check.{message.msg_id}")

    async def _answer(self, address: str, message: Received, end: EndTransactionHeader) -> None:
        assert self._check is not None, "questions are heard only where they can be answered"
        try:
            decision = _decided("check", await self._check(message))
            if decision is not Decision.UNKNOWN:
                end.decision = decision.value
                await self._session.call(address, Request.END_TRANSACTION, end.to_ext())
        except (MqError, OSError) as error:
            log.info("transaction %s, %s asks again: %s", end.message_id, address, error)
        finally:
            self._checking.discard(end.message_id)


def _decided(what: str, decision: object) -> Decision:
    """Raises TypeError: whoever returned it is asked by the broker again."""
    if not isinstance(decision, Decision):
        raise TypeError(f"{what} of a transaction returned {decision!r}, not a Decision")
    return decision
