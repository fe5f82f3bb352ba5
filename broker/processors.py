"""Which processors answer a broker's requests, and which of them work by themselves?"""

from __future__ import annotations

from broker.acl.requests import AclProcessor
from broker.context import BrokerContext
from broker.requests.codes import handlers
from broker.requests.consumers.heartbeats import ClientProcessor
from broker.requests.consumers.lite import LiteProcessor
from broker.requests.consumers.locks import LockProcessor
from broker.requests.consumers.offsets import OffsetProcessor
from broker.requests.consumers.pop.pops import Pops
from broker.requests.consumers.pull import PullProcessor
from broker.requests.operators.admin import AdminProcessor
from broker.requests.operators.configuration import ConfigProcessor
from broker.requests.operators.inspection import InspectionProcessor
from broker.requests.operators.maintenance import MaintenanceProcessor
from broker.requests.operators.passing_on import PassingOn
from broker.requests.operators.query import QueryProcessor
from broker.requests.operators.spared import SparedProcessor
from broker.requests.operators.tables import TableProcessor
from broker.requests.reply import ReplyProcessor
from broker.requests.send import SendProcessor
from broker.requests.transactions import Transactions
from broker.state.resting import Resting
from broker.timers.delivery import TimerService
from broker.timers.progress import TimerProgress
from broker.timers.requests import TimerProcessor
from broker.upkeep.delay import DelayOffsets, DelayService
from broker.upkeep.services import Upkeep
from model.message import SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.service import Handler, RemotingClient


class Processors:
    """``handlers``: request code -> what answers it. ``delay``, ``timers``, ``transactions`` and
    ``pops.revive`` also run on a master."""

    def __init__(self, context: BrokerContext, delays: DelayOffsets, timed: TimerProgress) -> None:
        self.sender = SendProcessor(context)
        self.replies = ReplyProcessor(context, self.sender)
        self.pulls = PullProcessor(context)
        self.pops = Pops(context, self.sender)
        self.clients = ClientProcessor(context)
        resting = Resting(context.store.on_arrive)
        self.timers = TimerService(context, timed, self.sender, resting.of(TIMER_TOPIC))
        self.sender.timers.waiting = self.timers.waiting
        self.admin = AdminProcessor(context, delays, self.timers)
        self.configuration = ConfigProcessor(context)
        self.delay = DelayService(context, delays, self.sender, resting.of(SCHEDULE_TOPIC))
        self._timed = timed
        self.transactions = Transactions(context, self.sender)
        self.handlers: dict[int, Handler] = {}
        self._context = context

    def answer(
        self, upkeep: Upkeep, role_changed: Handler, acl: AclProcessor, client: RemotingClient
    ) -> None:
        """From now on ``handlers`` has every code that a broker answers."""
        context = self._context
        self.handlers = handlers(
            send=self.sender,
            replies=self.replies,
            pull=self.pulls,
            offsets=OffsetProcessor(context),
            query=QueryProcessor(context),
            clients=self.clients,
            locks=LockProcessor(context),
            tables=TableProcessor(context),
            admin=self.admin,
            configuration=self.configuration,
            inspection=InspectionProcessor(context),
            passing_on=PassingOn(context),
            maintenance=MaintenanceProcessor(context),
            spared=SparedProcessor(context),
            lite=LiteProcessor(context),
            transactions=self.transactions,
            timers=TimerProcessor(context, self._timed, self.timers, self.sender),
            copies=context.copies,
            repair=upkeep.repair,
            compare=upkeep.compare,
            sources=upkeep.table_sources,
            role_changed=role_changed,
        )
        self.handlers |= self.pops.handlers(client)
        self.handlers |= acl.handlers()
