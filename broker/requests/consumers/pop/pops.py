"""What does a broker need for consumers that pop, and which codes do its parts answer?"""

from __future__ import annotations

from broker.context import BrokerContext
from broker.requests.consumers.pop.ack import AckProcessor
from broker.requests.consumers.pop.log import PopLog
from broker.requests.consumers.pop.polling import Polling
from broker.requests.consumers.pop.pop import PopProcessor
from broker.requests.consumers.pop.revive import ReviveService
from broker.requests.send import SendProcessor
from model.codes import Request
from remoting.service import Handler


class Pops:
    """All parts. ``revive`` runs on a master."""

    def __init__(self, context: BrokerContext, sender: SendProcessor) -> None:
        self.log = PopLog(context, sender)
        self.polling = Polling(context)
        self.revive = ReviveService(context, sender, self.log)
        self._pop = PopProcessor(context, sender, self.log, self.polling)
        self._ack = AckProcessor(context, sender, self.log)

    def handlers(self) -> dict[int, Handler]:
        return {
            int(Request.POP_MESSAGE): self._pop.pop,
            int(Request.ACK_MESSAGE): self._ack.ack,
            int(Request.BATCH_ACK_MESSAGE): self._ack.ack_batch,
            int(Request.CHANGE_MESSAGE_INVISIBLETIME): self._ack.change_invisible_time,
        }

    def role_ended(self) -> None:
        """Neither what waits nor what is not confirmed counts any more."""
        self.polling.release_all()
        self.log.clear()
