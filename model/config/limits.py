"""Keys of a broker that bound what its clients may ask for (docs/security.md)."""

from dataclasses import dataclass

from model.config.timers import TimerConfig
from model.settings import key


@dataclass(kw_only=True)
class LimitsConfig(TimerConfig):
    """Bounds. Beyond one a request is refused; the connection and all others go on."""

    stats_queues_max: int = key(
        "maxQueuesInStats", 32768, "queues one question about a group's progress may be about", least=1
    )
    batch_messages_max: int = key(
        "maxMessagesInBatch", 4096, "messages of one batch; more are MESSAGE_ILLEGAL", least=1
    )
    lock_queues_max: int = key("maxQueuesInLock", 4096, "queues one request may lock or unlock", least=1)
    locks_max: int = key(
        "maxQueueLocks", 100000, "queues locked at the same time; no more get locked", least=1
    )
    heartbeat_bytes_max: int = key(
        "maxHeartbeatBytes", 1048576, "longest heartbeat of a client, bytes", least=1
    )
    heartbeat_groups_max: int = key("maxGroupsInHeartbeat", 1000, "groups one heartbeat may name", least=1)
    auto_topics_max: int = key(
        "autoCreateTopicMax", 20000, "with so many topics none is made by a send any more", least=1
    )
    auto_topics_rate: int = key(
        "autoCreateTopicPerSecond",
        50,
        "topics that sends may make each second; twice as many at once",
        least=1,
    )
    auto_groups_max: int = key(
        "autoCreateGroupMax", 10000, "with so many groups none is made by its first use any more", least=1
    )
    auto_groups_rate: int = key(
        "autoCreateGroupPerSecond",
        50,
        "groups that may be made by their first use each second; twice as many at once",
        least=1,
    )
    offset_pairs_max: int = key(
        "maxConsumerOffsetPairs",
        100000,
        "pairs of a topic and a group that have consumer offsets, one of a wide topic counted once for every"
        " 16 queues; beyond, commits, pulls and pops make none",
        least=1,
    )
    client_bytes_max: int = key(
        "maxClientBytes",
        268435456,
        "bytes that clients, their groups and subscriptions take, about; beyond, no heartbeat is taken that"
        " adds to them",
        least=1,
    )
    held_pulls_max: int = key(
        "maxHeldPulls", 100000, "pulls held at the same time; beyond, each is answered at once", least=1
    )
    held_pulls_per_connection: int = key(
        "maxHeldPullsPerConnection", 8192, "of these, those of one connection", least=1
    )
    held_pull_bytes_max: int = key(
        "maxHeldPullBytes",
        134217728,
        "bytes that the subscriptions of held pulls take, about; beyond, each is answered at once",
        least=1,
    )
    suspend_ms_max: int = key(
        "maxSuspendTimeoutMillis", 60000, "a pull is held at most, ms, whatever it asks for", least=1
    )
    subscription_bytes_max: int = key(
        "maxSubscriptionBytes", 32768, "longest subscription in a pull, a pop or a heartbeat, bytes", least=1
    )
