"""Keys of a broker for consumers that pop."""

from dataclasses import dataclass

from model.config.limits import LimitsConfig
from model.settings import key


@dataclass(kw_only=True)
class PopConfig(LimitsConfig):
    """RocketMQ's keys, and what one client may ask for."""

    revive_queues: int = key("reviveQueueNum", 8, "queues of the revive topic", least=1, most=64)
    revive_interval_ms: int = key(
        "reviveInterval", 1000, "how often is looked for what was not acknowledged in time, ms", least=10
    )
    pop_retry_percent: int = key(
        "popFromRetryProbability", 20, "of 100 pops so many look into the retry topic first", most=100
    )
    retry_topic_v2: bool = key(
        "enableRetryTopicV2", False, "pop retry topics are named %RETRY%group+topic; false: group_topic"
    )
    retry_topic_v1_too: bool = key(
        "retrieveMessageFromPopRetryTopicV1",
        True,
        "with enableRetryTopicV2: what lies in the retry topic of version 1 is popped, too",
    )
    pop_actual_retry_topic: bool = key(
        "popResponseReturnActualRetryTopic",
        False,
        "what comes from a pop retry topic says so; false: it has the topic it was sent to",
    )
    checkpoints_max: int = key(
        "popCkMaxBufferSize",
        200000,
        "pops whose messages are not all acknowledged; beyond, nothing is popped",
        least=1,
    )
    held_pops_max: int = key(
        "maxPopPollingSize",
        100000,
        "pops held at the same time; beyond, each is answered POLLING_FULL",
        least=1,
    )
    held_pops_per_queue: int = key(
        "popPollingSize", 1024, "of these, those of one group for one queue of a topic", least=1
    )
    held_pops_per_connection: int = key(
        "maxHeldPopsPerConnection", 8192, "of these, those of one connection", least=1
    )
    held_pop_bytes_max: int = key(
        "maxHeldPopBytes",
        67108864,
        "bytes that the subscriptions of held pops take, about; beyond, each is answered POLLING_FULL",
        least=1,
    )
    invisible_ms_max: int = key(
        "maxInvisibleTimeMillis",
        259200000,
        "longest invisible time, ms; RocketMQ's timers allow as much (timerMaxDelaySec)",
        least=1000,
    )
    pop_share_queues: int = key(
        "defaultPopShareQueueNum", -1, "clients that share each queue in mode pop; -1 = all", least=-1
    )
    request_mode: str = key(
        "defaultMessageRequestMode", "PULL", "PULL or POP: how clients that ask are told to consume"
    )
    server_load_balancer: bool = key(
        "serverLoadBalancerEnable", True, "QUERY_ASSIGNMENT shares queues; false: names all of them"
    )
