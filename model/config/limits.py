"""Keys of a broker that bound what its clients may ask for (docs/security.md)."""

from dataclasses import dataclass

from model.config.store import StoreConfig
from model.settings import key


@dataclass(kw_only=True)
class LimitsConfig(StoreConfig):
    """Bounds. Beyond one a request is refused; the connection and all others go on."""

    stats_queues_max: int = key(
        "maxQueuesInStats", 32768, "queues one question about a group's progress may be about", least=1
    )
