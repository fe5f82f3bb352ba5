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
    bounds = [*(str(float(bound)) for bound in seen["bounds"]), "+Inf"]
    return HistogramMetricFamily(
        name,
        text,
        buckets=list(zip(bounds, map(float, seen["counts"]), strict=True)),
        sum_value=seen["sum"],
    )


_HISTOGRAMS: Final = {
    "sendWait": ("keelmq_broker_send_wait_seconds", "how long answers to sends waited for copies and disk"),
    "ageWhenRead": ("keelmq_broker_age_when_read_seconds", "age of the oldest message of a pull's answer"),
}


def broker_figures(status: Mapping[str, Any]) -> Iterator[Metric]:
    node = (str(status.get("cluster") or ""), "broker", str(status.get("group") or ""))
    figures = status.get("figures") or {}
    yield from _topics(figures, node)
    yield from _lags(figures.get("lags") or [], node)
    yield from _node(status, figures, node)
    if isinstance(total := status.get("putBytesTotal"), int):
        yield CounterMetricFamily("keelmq_broker_bytes_put", "bytes of the messages stored", value=total)
    for key, (name, text) in _HISTOGRAMS.items():
        if isinstance(seen := status.get(key), dict):
            yield histogram(name, text, seen)
    if isinstance(disk := figures.get("disk"), dict):
        total, free = disk["totalBytes"], disk["freeBytes"]
        yield GaugeMetricFamily("keelmq_broker_disk_size_bytes", "size of the store's disk", value=total)
        yield GaugeMetricFamily("keelmq_broker_disk_free_bytes", "what is free of it", value=free)


def _topics(figures: Mapping[str, Any], node: tuple[str, ...]) -> Iterator[Metric]:
    taken = CounterMetricFamily("rocketmq_messages_in", "messages stored, by topic", labels=[*NODE, "topic"])
    for topic, total in (figures.get("topics") or {}).items():
        taken.add_metric([*node, topic], total)
    given = CounterMetricFamily(
        "rocketmq_messages_out", "messages read, by group", labels=[*NODE, "topic", "consumer_group"]
    )
    for key, total in (figures.get("reads") or {}).items():
        topic, at, group = key.partition("@")
        given.add_metric([*node, topic, group if at else topic], total)
    yield from (taken, given)


def _lags(rows: list[Mapping[str, Any]], node: tuple[str, ...]) -> Iterator[Metric]:
    labels = [*NODE, "topic", "consumer_group"]
    lag = GaugeMetricFamily("rocketmq_consumer_lag_messages", "messages not read yet", labels=labels)
    late = GaugeMetricFamily(
        "rocketmq_consumer_lag_latency", "ms since the oldest of them was stored", labels=labels
    )
    for row in rows:
        place = [*node, row["topic"], row["group"]]
        lag.add_metric(place, row["messages"])
        if row["behindMs"] is not None or not row["messages"]:
            late.add_metric(place, row["behindMs"] or 0)
    yield from (lag, late)


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
    if isinstance(kept_ms := figures.get("keptMs"), int):
        yield _of_node(
            "rocketmq_storage_message_reserve_time", "ms since the oldest message was stored", kept_ms, node
        )


def _of_node(name: str, text: str, value: float, node: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=NODE)
    family.add_metric(node, value)
    return family
