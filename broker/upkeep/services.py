"""What keeps a broker's tables and log as they should be, beside the requests?"""

from __future__ import annotations

from broker.context import BrokerContext
from broker.discovery.registration import Registration
from broker.tables.table_files import TableFiles
from broker.upkeep.acting import Acting
from broker.upkeep.log_compare import LogCompare
from broker.upkeep.log_repair import LogRepair
from broker.upkeep.sampling import Sampling
from broker.upkeep.table_sources import TableSources
from broker.upkeep.table_sync import MetadataSync
from remoting.service import RemotingClient
from runtime.tasks import Tasks


class Upkeep:
    """Five loops, each for the life of the broker."""

    def __init__(
        self,
        context: BrokerContext,
        tables: TableFiles,
        client: RemotingClient,
        registration: Registration,
    ) -> None:
        ha = context.ha
        self.metadata = MetadataSync(context, tables, client)
        self.table_sources = TableSources(context, tables, client, self.metadata)
        self.acting = Acting(context, client, registration.member_ids, lambda: ha.follows)
        self.repair = LogRepair(context, client, registration.members)
        self.compare = LogCompare(context, client, self.repair)
        self.sampling = Sampling(context)

    def start(self, tasks: Tasks) -> None:
        tasks.spawn(self.metadata.run(), name="metadata")
        tasks.spawn(self.repair.run(), name="repair")
        tasks.spawn(self.compare.run(), name="compare")
        tasks.spawn(self.acting.run(), name="acting")
        tasks.spawn(self.sampling.run(), name="sampling")
