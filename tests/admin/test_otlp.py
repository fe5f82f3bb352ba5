"""The promise of admin.host.otlp: a collector gets the figures that a scrape would get, and a server that
cannot push says so before it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from admin.host import otlp
from admin.host.metrics import Metrics
from admin.host.otlp import Pusher, Target, target_of
from admin.host.serve import plan
from model.config import BrokerConfig
from model.errors import ConfigError
from runtime.os_env import OsEnv
from tests.admin.statuses import BROKER, Server
from tests.waiting import until

KEYS = {"metricsExporterType": "OTLP_GRPC", "metricsGrpcExporterTarget": "collector:4317"}
SERVICE = "opentelemetry.proto.collector.metrics.v1.MetricsService"
NS = 1_000_000


class Collector:
    """What was pushed, and what came along with it."""

    def __init__(self) -> None:
        self.pushed: list[Any] = []
        self.headers: list[dict[str, str]] = []


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector on loopback, and its address."""
    grpc = pytest.importorskip("grpc", reason="needs keelmq[otlp]")
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service

    found = Collector()

    def export(request: Any, context: Any) -> Any:
        found.headers.append(dict(context.invocation_metadata()))
        found.pushed.append(request)
        return service.ExportMetricsServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=service.ExportMetricsServiceRequest.FromString,
        response_serializer=service.ExportMetricsServiceResponse.SerializeToString,
    )
    threads = ThreadPoolExecutor(1)
    server = grpc.server(threads)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield found, f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
        threads.shutdown()


def labels_of(point: Any) -> frozenset[tuple[str, str]]:
    return frozenset((one.key, one.value.string_value) for one in point.attributes)


def received(request: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], Any]:
    """By name and labels: a value, or of a histogram its (bounds, counts up to each, sum)."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], Any] = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            place = (metric.name, labels_of(point))
            assert place not in found
            if kind == "histogram":
                upto = [sum(point.bucket_counts[: at + 1]) for at in range(len(point.bucket_counts))]
                assert point.count == upto[-1]
                found[place] = (list(point.explicit_bounds), upto, point.sum)
            else:
                assert kind == ("sum" if metric.name.endswith("_total") else "gauge")
                found[place] = point.as_double
    return found


def scraped(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], Any]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], Any] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            place = frozenset((name, value) for name, value in sample.labels.items() if name != "le")
            if family.type != "histogram":
                found[sample.name, place] = sample.value
                continue
            bounds, upto, total = found.get((family.name, place), ([], [], 0.0))
            if sample.name.endswith("_bucket"):
                bounds = [*bounds, float(sample.labels["le"])]
                upto = [*upto, int(sample.value)]
            elif sample.name.endswith("_sum"):
                total = sample.value
            found[family.name, place] = (bounds, upto, total)
    finite = {
        place: (value[0][:-1], *value[1:]) if isinstance(value, tuple) else value
        for place, value in found.items()
    }
    # What a process takes is not the same a moment later.
    return {place: value for place, value in finite.items() if not place[0].startswith("process_")}


def test_a_collector_gets_what_a_scrape_shows() -> None:
    metrics = Metrics("broker", Server(BROKER))

    async def body(collector: Collector, address: str) -> None:
        target = Target(f"http://{address}", {"Token": "secret"}, interval_s=0.01)
        env = OsEnv()
        pusher = Pusher(target, metrics.families, {"service.name": "keelmq-broker"}, env.now_ms)
        pushing = asyncio.get_running_loop().create_task(pusher.run())
        try:
            await until(lambda: len(collector.pushed) >= 2)
        finally:
            pushing.cancel()
            await asyncio.wait((pushing,))

    with collecting() as (collector, address):
        asyncio.run(body(collector, address))
    first, second = collector.pushed[:2]
    assert {
        place: v for place, v in received(first).items() if not place[0].startswith("process_")
    } == scraped(metrics.text())
    assert collector.headers[0]["token"] == "secret"
    (about,) = first.resource_metrics[0].resource.attributes
    assert (about.key, about.value.string_value) == ("service.name", "keelmq-broker")
    points = [
        next(
            m for m in request.resource_metrics[0].scope_metrics[0].metrics if m.name == "keelmq_events_total"
        ).sum.data_points[0]
        for request in (first, second)
    ]
    assert points[0].start_time_unix_nano == points[1].start_time_unix_nano
    assert points[0].time_unix_nano < points[1].time_unix_nano


def test_labels_of_the_configuration_are_on_each_point() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs keelmq[otlp]")
    data = otlp.data_of(Metrics("broker", Server(BROKER)).families(), {}, {"region": "r1"}, (1, 2))
    (resource,) = data.resource_metrics
    points = [point for metric in resource.scope_metrics[0].metrics for point in metric.data.data_points]
    assert points
    assert {(point.attributes or {})["region"] for point in points} == {"r1"}
    assert {(point.start_time_unix_nano, point.time_unix_nano) for point in points} == {(NS, 2 * NS)}


def test_the_keys_are_rocketmqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_installed", lambda: True)
    keys = KEYS | {
        "metricsGrpcExporterHeader": "a:1,b:2",
        "metricsLabel": "region:r1",
        "metricGrpcExporterIntervalInMills": "5000",
        "metricGrpcExporterTimeOutInMills": "700",
    }
    expected = Target("https://collector:4317", {"a": "1", "b": "2"}, {"region": "r1"}, 5.0, 0.7)
    for role in ("broker", "namesrv"):
        assert plan(role, keys).push == expected
    assert plan("namesrv", KEYS | {"metricsGrpcExporterTarget": "http://c:1"}).push == Target("http://c:1")
    for other in ("DISABLE", "PROM", "LOG"):
        assert plan("broker", {"metricsExporterType": other}).push is None


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"metricsExporterType": "OTLP"}, "metricsExporterType"),
        ({"metricsExporterType": "OTLP_GRPC"}, "metricsGrpcExporterTarget"),
        (KEYS | {"metricsGrpcExporterHeader": "token"}, "metricsGrpcExporterHeader"),
        (KEYS | {"metricsLabel": ":x"}, "metricsLabel"),
        (KEYS | {"metricGrpcExporterIntervalInMills": "1"}, "metricGrpcExporterIntervalInMills"),
    ],
)
def test_a_wrong_key_is_named(keys: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BrokerConfig.from_mapping(keys)


def test_without_the_extra_a_server_does_not_start_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otlp, "EXPORTER", "no_such_package.at.all")
    with pytest.raises(ConfigError, match=r"pip install 'keelmq\[otlp\]'"):
        target_of(BrokerConfig.from_mapping(KEYS))
