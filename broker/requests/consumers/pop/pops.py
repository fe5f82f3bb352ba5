"""What does a broker need for consumers that pop, and which codes do its parts answer?"""

from __future__ import annotations

from typing import Any

from broker.context import BrokerContext
from broker.requests.consumers.assignment import AssignmentProcessor
from broker.requests.consumers.pop.ack import AckProcessor
from broker.requests.consumers.pop.log import PopLog
from broker.requests.consumers.pop.looking import LookProcessor, has_messages
from broker.requests.consumers.pop.order import OrderTable
from broker.requests.consumers.pop.order_acks import OrderAcks
from broker.requests.consumers.pop.polling import Polling
from broker.requests.consumers.pop.pop import PopProcessor, nothing_more
from broker.requests.consumers.pop.revive import ReviveService
from broker.requests.send import SendProcessor
from model.codes import Request
from remoting.service import Connection, Handler, RemotingClient
from runtime.turns import Leaving, Turns


class Pops:
    """All parts. ``revive`` runs on a master."""

    def __init__(self, context: BrokerContext, sender: SendProcessor) -> None:
        self._context = context
        self.log = PopLog(context, sender)
        self.polling = Polling(context, nothing_more)
        self.notifications = Polling(context, lambda request: has_messages(request, False))
        self.turns = Turns(context.env.monotonic_ms)
        """Of looks into very many queues: a heartbeat of few bytes, or a lock, waits for none of them."""
        self._leaving = Leaving("ended pops", context.env.monotonic_ms, self._drop)
        self.orders = OrderTable()
        self.revive = ReviveService(context, sender, self.log, self._ready)
        self._pop = PopProcessor(context, sender, self.log, self.polling, self.orders, self.turns)
        self._ack = AckProcessor(
            context, sender, self.log, OrderAcks(context, self.log, self.orders, self._freed)
        )
        self._look = LookProcessor(
            context, self.log, self.orders, self.polling, self.notifications, self.turns
        )

    def handlers(self, client: RemotingClient) -> dict[int, Handler]:
        assignment = AssignmentProcessor(self._context, client)
        return {
            int(Request.POP_MESSAGE): self._pop.pop,
            int(Request.ACK_MESSAGE): self._ack.ack,
            int(Request.BATCH_ACK_MESSAGE): self._ack.ack_batch,
            int(Request.CHANGE_MESSAGE_INVISIBLETIME): self._ack.change_invisible_time,
            int(Request.PEEK_MESSAGE): self._look.peek,
            int(Request.NOTIFICATION): self._look.notify,
            int(Request.POLLING_INFO): self._look.polling_info,
            int(Request.QUERY_ASSIGNMENT): assignment.query,
            int(Request.SET_MESSAGE_REQUEST_MODE): assignment.set_mode,
        }

    def status(self) -> dict[str, Any]:
        """JSON-ready: the revive topic and what is not confirmed of it."""
        return {
            **self.log.counts.to_json(),
            "behind": self.revive.behind(),
            "offsets": len(self.log.positions),
        }

    def role_ended(self) -> None:
        """Neither what waits nor what is not confirmed counts any more."""
        self.polling.release_all()
        self.notifications.release_all()
        self.log.clear()
        self.orders.clear()

    def closed(self, connection: Connection) -> None:
        """A connection ended: what of it waits for its turn, or for messages, does not any more."""
        self.turns.forget(connection)
        self._leaving.begin(connection)

    def _drop(self, connection: Connection) -> bool:
        return self.polling.drop(connection) or self.notifications.drop(connection)

    async def answered(self) -> None:
        """Return when all that waited when the role ended are answered."""
        await self.polling.answered()
        await self.notifications.answered()

    def tick(self) -> None:
        """Called each second: time, and no message, makes room and frees a queue in order."""
        self.orders.forget_old(self._context.env.monotonic_ms())
        self._pop.tick()
        self.polling.look_again()
        self.notifications.look_again()

    def _ready(self) -> None:
        self.polling.look_at_all()
        self.notifications.look_at_all()

    def _freed(self, topic: str, group: str, queue_id: int) -> None:
        self.polling.unblocked(topic, group, queue_id)
        self.notifications.unblocked(topic, group, queue_id)
