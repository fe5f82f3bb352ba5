"""How records go from the log into queues and index, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from model.config import StoreConfig
from store.files.record import DispatchParser, delay_levels_ms
from store.files.store_files import StoreFiles
from store.flow.dispatching.arrivals import OnArrive
from store.flow.dispatching.dispatch import Dispatcher
from store.flow.dispatching.indexing import Indexer
from store.flow.dispatching.multi_dispatch import MultiDispatchParser
from store.flow.dispatching.walker import Walker
from store.flow.upkeep.throttle import Throttle


@dataclass(frozen=True, slots=True)
class StoreFlow:
    """``parser`` reads records, ``walker`` stretches of them; ``dispatcher`` fills queues, ``indexer`` the
    index."""

    parser: DispatchParser
    walker: Walker
    dispatcher: Dispatcher
    indexer: Indexer

    @classmethod
    def of(
        cls, files: StoreFiles, config: StoreConfig, throttle: Throttle, on_arrive: list[OnArrive]
    ) -> StoreFlow:
        kind = MultiDispatchParser if has_light_queues(config) else DispatchParser
        parser = kind(delay_levels_ms(config.delay_levels))
        walker = Walker(files.log, parser, files.damage)
        indexer = Indexer(files, walker, throttle)
        return cls(parser, walker, Dispatcher(files, indexer, parser, on_arrive), indexer)


def has_light_queues(config: StoreConfig) -> bool:
    """Do messages go into light queues as well?"""
    return config.lmq_enable and config.multi_dispatch_enable
