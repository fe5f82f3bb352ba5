"""What does a processor of a broker work with? The parts of one broker, wired by ``broker/service``."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.clients import Clients
from broker.copies import Copies
from broker.groups import Groups
from broker.locks import QueueLocks
from broker.offset_table import OffsetTable
from broker.parking import Parking
from broker.standing import Standing
from broker.stats import Stats
from broker.topics import Topics
from ha.service import HaService
from model.config import BrokerConfig
from model.errors import Refused
from model.message import encode_host
from remoting.codes import Response
from runtime.env import Env
from store.message_store import MessageStore


def not_available(reason: str) -> str:
    """The remark RocketMQ gives with code 14, with our reason where it has the fill levels."""
    return (
        "service not available now. It may be caused by one of the following reasons: "
        f"the broker's disk is full [{reason}], messages are put to the slave, "
        "message store has been shut down, etc."
    )


@dataclass
class Parts:
    env: Env
    config: BrokerConfig
    store: MessageStore
    ha: HaService
    standing: Standing
    topics: Topics
    groups: Groups
    offsets: OffsetTable
    parking: Parking
    clients: Clients = field(default_factory=Clients)
    locks: QueueLocks = field(default_factory=QueueLocks)
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.store_host = encode_host(self.config.address)
        self.copies = Copies(self.env, self.config, self.standing, self.ha)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue that is there to be read."""
        return max(self.store.min_queue_offset(topic, queue_id), self.topics.first_offset(topic, queue_id))

    def refuse_write(self) -> Refused | None:
        """Why no write can be taken now, or None."""
        refused = self.standing.refuse()
        if refused is not None:
            return refused
        reason = self.store.writable
        if reason is not None:
            return Refused(not_available(reason), Response.SERVICE_NOT_AVAILABLE)
        return self.ha.refuse()
