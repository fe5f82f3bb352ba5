"""What a broker's topics, consumer groups, answers and disk say in Prometheus' words.

Where RocketMQ 5 has a metric for it, its name and labels are used, so its dashboards and rules work. Topics
and groups have a bounded number of rows (broker.state.figures).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

NODE: Final = ("cluster", "node_type", "node_id")


def histogram(name: str, text: str, seen: Mapping[str, Any]) -> Metric:
    """Of ``runtime.report.histogram.Histogram.to_json``."""
    family = HistogramMetricFamily(name, text, labels=())
    add_histogram(family, (), seen)
    return family


def add_histogram(family: HistogramMetricFamily, labels: tuple[str, ...], seen: Mapping[str, Any]) -> None:
    """One more of a family whose labels have these values."""
    bounds = [*(str(float(bound)) for bound in seen["bounds"]), "+Inf"]
    buckets = list(zip(bounds, map(float, seen["counts"]), strict=True))
    family.add_metric(labels, buckets, sum_value=seen["sum"])


_HISTOGRAMS: Final = {
    "flush": ("keelmq_broker_flush_seconds", "how long each sync of the CommitLog took"),
    "sendWait": ("keelmq_broker_send_wait_seconds", "how long answers to sends waited for copies and disk"),
    "ageWhenRead": ("keelmq_broker_age_when_read_seconds", "age of the oldest message of a pull's answer"),
}


def broker_figures(status: Mapping[str, Any]) -> Iterator[Metric]:
    node = (str(status.get("cluster") or ""), "broker", str(status.get("group") or ""))
    figures = status.get("figures") or {}
    yield from _topics(figures, node)
    yield from _lags(figures.get("lags") or [], node)
    yield _queue_lags(figures.get("queueLags") or [])
    yield from _node(status, figures, node)
    yield from _waiting(status, node)
    yield from _pops(status, node)
    if isinstance(sizes := status.get("sizes"), dict):
        family = HistogramMetricFamily("rocketmq_message_size", "bytes of the records stored", labels=NODE)
        add_histogram(family, node, sizes)
        yield family
    if isinstance(total := status.get("putBytesTotal"), int):
        yield CounterMetricFamily("keelmq_broker_bytes_put", "bytes of the messages stored", value=total)
    yield _rpcs((status.get("ports") or {}).get("rpcs") or [], node)
    for key, (name, text) in _HISTOGRAMS.items():
        if isinstance(seen := status.get(key), dict):
            yield histogram(name, text, seen)
    if isinstance(disk := figures.get("disk"), dict):
        total, free = disk["totalBytes"], disk["freeBytes"]
        yield GaugeMetricFamily("keelmq_broker_disk_size_bytes", "size of the store's disk", value=total)
        yield GaugeMetricFamily("keelmq_broker_disk_free_bytes", "what is free of it", value=free)


def _by_topic(name: str, text: str, rows: list[Mapping[str, Any]] | None, node: tuple[str, ...]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[*NODE, "topic"])
    for row in rows or []:
        add_histogram(family, (*node, row["topic"]), row)
    return family


def _rpcs(rows: list[Mapping[str, Any]], node: tuple[str, ...]) -> Metric:
    """Without what is held on purpose, and sends of the fast path: those are answered elsewhere."""
    labels = ["protocol_type", "request_code", "response_code", "is_long_polling", "result"]
    family = HistogramMetricFamily(
        "rocketmq_rpc_latency", "ms from a request to its answer", labels=[*NODE, *labels]
    )
    for row in rows:
        add_histogram(family, (*node, "remoting", row["request"], row["answer"], "false", "success"), row)
    return family


_BY_TOPIC: Final = {
    "topics": ("rocketmq_messages_in", "messages stored, by topic"),
    "topicBytes": ("rocketmq_throughput_in", "bytes of the records stored, by topic"),
    "commits": ("rocketmq_commit_messages", "transactions committed, by topic"),
    "rollbacks": ("rocketmq_rollback_messages", "transactions rolled back, by topic"),
    "timersIn": ("rocketmq_timer_enqueue", "timer messages taken up, by topic"),
    "timersOut": ("rocketmq_timer_dequeue", "timer messages delivered, by topic"),
}
_BY_GROUP: Final = {
    "reads": ("rocketmq_messages_out", "messages read, by group"),
    "readBytes": ("rocketmq_throughput_out", "bytes of the records read, by group"),
}
_DEAD: Final = "%DLQ%"


def _topics(figures: Mapping[str, Any], node: tuple[str, ...]) -> Iterator[Metric]:
    for key, (name, text) in _BY_TOPIC.items():
        taken = CounterMetricFamily(name, text, labels=[*NODE, "topic"])
        for topic, total in (figures.get(key) or {}).items():
            taken.add_metric([*node, topic], total)
        yield taken
    for key, (name, text) in _BY_GROUP.items():
        given = CounterMetricFamily(name, text, labels=[*NODE, "topic", "consumer_group"])
        for place, total in (figures.get(key) or {}).items():
            topic, at, group = place.partition("@")
            given.add_metric([*node, topic, group if at else topic], total)
        yield given
    dead = CounterMetricFamily(
        "rocketmq_send_to_dlq_messages", "messages given up, by group", labels=[*NODE, "consumer_group"]
    )
    for topic, total in (figures.get("dead") or {}).items():
        dead.add_metric([*node, topic.removeprefix(_DEAD)], total)
    yield dead


def _queue_lags(rows: list[Mapping[str, Any]]) -> Metric:
    labels = ["topic", "consumer_group", "queue_id"]
    lag = GaugeMetricFamily("keelmq_broker_queue_lag_messages", "messages not read yet", labels=labels)
    for row in rows:
        lag.add_metric([row["topic"], row["group"], str(row["queueId"])], row["messages"])
    return lag


_WAITING: Final = {
    "heldPulls": ("keelmq_broker_held_pulls", "pulls that wait for messages"),
    "heldPops": ("keelmq_broker_held_pops", "pops that wait for messages"),
    "openCheckpoints": ("keelmq_broker_open_checkpoints", "pops that are not acknowledged in full"),
    "offsetPairs": (
        "keelmq_broker_consumer_offset_pairs",
        "pairs of a topic and a group with offsets, of at most maxConsumerOffsetPairs",
    ),
}


def _waiting(status: Mapping[str, Any], node: tuple[str, ...]) -> Iterator[Metric]:
    """What waits: requests, pops, transactions, timer messages; and for how long this broker may lead."""
    for key, (name, text) in _WAITING.items():
        if isinstance(value := status.get(key), int):
            yield GaugeMetricFamily(name, text, value=value)
    if isinstance(revived := status.get("revivedTotal"), int):
        yield CounterMetricFamily("keelmq_broker_revived", "messages that came back unpopped", value=revived)
    if isinstance(halves := status.get("halfMessages"), int):
        yield _of_node("rocketmq_half_messages", "transactions that have not ended", halves, node)
    timers = status.get("timers") or {}
    timing = GaugeMetricFamily(
        "rocketmq_timing_messages", "timer messages that wait", labels=[*NODE, "topic"]
    )
    for topic, count in (timers.get("waiting") or {}).items():
        timing.add_metric([*node, topic], count)
    yield timing
    lag = GaugeMetricFamily("rocketmq_timer_enqueue_lag", "timer messages not taken up yet", labels=NODE)
    if isinstance(behind := timers.get("behindMessages"), int):
        lag.add_metric(node, behind)
    yield lag
    yield _by_topic(
        "rocketmq_delay_message_latency", "s that timer messages wait", timers.get("delays"), node
    )
    yield _by_topic("rocketmq_finish_message_latency", "s to a commit", status.get("finished"), node)
    if isinstance(late := timers.get("late"), dict):
        yield histogram("keelmq_broker_timers_late_seconds", "how late timer messages were delivered", late)
    if isinstance(late_ms := timers.get("behindMs"), int):
        text = "how late the next timer message is"
        yield GaugeMetricFamily("keelmq_broker_timers_behind_seconds", text, value=late_ms / 1000)
    lease = (status.get("life") or {}).get("lease") or {}
    left = GaugeMetricFamily("keelmq_broker_lease_left_seconds", "a master may lead for so long", labels=())
    if isinstance(left_ms := lease.get("leftMs"), int):
        left.add_metric((), left_ms / 1000)
    yield left


_POPS: Final = {
    "put": (
        "rocketmq_pop_revive_in_message",
        "records written to the revive topic",
        ("revive_message_type",),
    ),
    "read": (
        "rocketmq_pop_revive_out_message",
        "records read from the revive topic",
        ("queue_id", "revive_message_type"),
    ),
    "revived": ("rocketmq_pop_revive_retry_messages", "messages put into a pop retry topic", ()),
}
_ROW_OF: Final = {"queue_id": "queueId", "revive_message_type": "kind"}


def _pops(status: Mapping[str, Any], node: tuple[str, ...]) -> Iterator[Metric]:
    """The revive topic. What is refused is not counted, hence one ``put_status``."""
    pops = status.get("pops") or {}
    for key, (name, text, more) in _POPS.items():
        of_status = () if key == "read" else ("put_status",)
        labels = [*NODE, "topic", "consumer_group", *more, *of_status]
        counted = CounterMetricFamily(name, text, labels=labels)
        for row in pops.get(key) or []:
            own = [str(row[_ROW_OF[label]]) for label in more]
            counted.add_metric(
                [*node, row["topic"], row["group"], *own, *("PUT_OK" for _ in of_status)], row["total"]
            )
        yield counted
    for key, name, text in (
        ("messages", "rocketmq_pop_revive_lag", "records not read yet, or due and not brought back"),
        ("behindMs", "rocketmq_pop_revive_latency", "ms since the first of them was due"),
    ):
        behind = GaugeMetricFamily(name, text, labels=[*NODE, "queue_id"])
        for row in pops.get("behind") or []:
            behind.add_metric([*node, str(row["queueId"])], row[key])
        yield behind
    if isinstance(offsets := pops.get("offsets"), int):
        yield _of_node("rocketmq_pop_offset_buffer_size", "offsets of pops not confirmed yet", offsets, node)
    if isinstance(held := status.get("openCheckpoints"), int):
        yield _of_node("rocketmq_pop_checkpoint_buffer_size", "checkpoints in memory", held, node)


def _lags(rows: list[Mapping[str, Any]], node: tuple[str, ...]) -> Iterator[Metric]:
    labels = [*NODE, "topic", "consumer_group"]
    lag = GaugeMetricFamily("rocketmq_consumer_lag_messages", "messages not read yet", labels=labels)
    late = GaugeMetricFamily(
        "rocketmq_consumer_lag_latency", "ms since the oldest of them was stored", labels=labels
    )
    got = GaugeMetricFamily(
        "rocketmq_consumer_inflight_messages", "messages pulled and not confirmed", labels=labels
    )
    ready = GaugeMetricFamily("rocketmq_consumer_ready_messages", "messages not pulled yet", labels=labels)
    waits = GaugeMetricFamily(
        "rocketmq_consumer_queueing_latency", "ms since the oldest of them was stored", labels=labels
    )
    for row in rows:
        place, left = [*node, row["topic"], row["group"]], row["messages"] - row["inflight"]
        lag.add_metric(place, row["messages"])
        got.add_metric(place, row["inflight"])
        ready.add_metric(place, left)
        if row["behindMs"] is not None or not row["messages"]:
            late.add_metric(place, row["behindMs"] or 0)
        if row["waitsMs"] is not None or not left:
            waits.add_metric(place, row["waitsMs"] or 0)
    yield from (lag, late, got, ready, waits)


_NODE_GAUGES: Final = {
    "topicNumber": ("rocketmq_topic_number", "topics"),
    "groupNumber": ("rocketmq_consumer_group_number", "consumer groups"),
    "producers": ("rocketmq_producer_connections", "connections of producers, by group"),
    "consumers": ("rocketmq_consumer_connections", "connections of consumers, by group"),
}


def _node(status: Mapping[str, Any], figures: Mapping[str, Any], node: tuple[str, ...]) -> Iterator[Metric]:
    for key, (name, text) in _NODE_GAUGES.items():
        if isinstance(value := figures.get(key), int):
            yield _of_node(name, text, value, node)
    for name, text, ahead, behind in (
        ("rocketmq_storage_flush_behind_bytes", "bytes of the log not synced", "maxOffset", "flushedOffset"),
        (
            "rocketmq_storage_dispatch_behind_bytes",
            "bytes of the log that may be read and are in no queue yet",
            "confirmOffset",
            "dispatchedOffset",
        ),
    ):
        end, done = status.get(ahead), status.get(behind)
        if isinstance(end, int) and isinstance(done, int):
            yield _of_node(name, text, max(0, end - done), node)
    begin, end = status.get("minOffset"), status.get("maxOffset")
    if isinstance(begin, int) and isinstance(end, int):
        yield _of_node("rocketmq_storage_size", "bytes of the CommitLog", end - begin, node)
    if isinstance(permission := status.get("permission"), int):
        yield _of_node("rocketmq_broker_permission", "4 read, 2 write, 6 both", permission, node)
    if isinstance(kept_ms := figures.get("keptMs"), int):
        yield _of_node(
            "rocketmq_storage_message_reserve_time", "ms since the oldest message was stored", kept_ms, node
        )


def _of_node(name: str, text: str, value: float, node: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=NODE)
    family.add_metric(node, value)
    return family
