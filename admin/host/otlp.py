"""How do a server's figures reach a collector that does not scrape? They are pushed, by OTLP over gRPC.

What ``/metrics`` shows (admin.host.metrics) is turned into OpenTelemetry's points as it is: nothing is
counted twice. The SDK's exporter sends them, and tries again as it does; it needs the extra ``otlp``.
Counters are cumulative from the start of the process, names and labels those of ``/metrics``.

Source: github.com/open-telemetry/opentelemetry-proto, metrics/v1; the keys are RocketMQ 5's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from model.config.server import ServerConfig, pairs_in
from model.errors import ConfigError
from runtime.report.lasting import lasting
from runtime.tasks import every

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

EXPORTER: Final = "opentelemetry.exporter.otlp.proto.grpc"
SCOPE: Final = "keelmq"
_UNKNOWN: Final[dict[str, Any]] = {"min": None, "max": None}


@dataclass(frozen=True, slots=True)
class Target:
    """Where figures are pushed to. ``address``: a URL."""

    address: str
    header: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    interval_s: float = 60.0
    timeout_s: float = 3.0


def target_of(config: ServerConfig) -> Target | None:
    """None: nothing is to be pushed. Raises ConfigError where the extra is not installed."""
    if config.metrics_exporter_type != "OTLP_GRPC":
        return None
    if not _installed():
        raise ConfigError("metricsExporterType=OTLP_GRPC needs an extra: pip install 'keelmq[otlp]'")
    address = config.metrics_target
    return Target(
        address if address.startswith("http") else f"https://{address}",
        pairs_in(config.metrics_header) or {},
        pairs_in(config.metrics_label) or {},
        config.metrics_interval_ms / 1000,
        config.metrics_timeout_ms / 1000,
    )


def _installed() -> bool:
    try:
        return find_spec(EXPORTER) is not None
    except ModuleNotFoundError:  # of a parent
        return False


class Pusher:
    """Pushes a server's figures again and again. ``families``: gathers them, on the event loop; ``about``:
    what is said of the server; ``now_ms``: ms since 1970."""

    def __init__(
        self,
        target: Target,
        families: Callable[[], Iterable[Metric]],
        about: Mapping[str, str],
        now_ms: Callable[[], int],
    ) -> None:
        self._target = target
        self._families = families
        self._about = dict(about)
        self._now_ms = now_ms
        self._begun_ms = now_ms()
        # Of its own: one that nobody answers may not take a thread from those who sync the disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otlp")
        self._exporter: Any = None

    @lasting
    async def run(self) -> None:
        """Push until cancelled."""
        try:
            await every(self._target.interval_s, self._turn, what="pushing metrics")
        finally:
            if self._exporter is not None:
                self._exporter.shutdown()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _turn(self) -> None:
        families = list(self._families())
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._push, families, self._now_ms())

    def _push(self, families: Sequence[Metric], now_ms: int) -> None:
        if self._exporter is None:
            self._exporter = _exporter(self._target)
        points = data_of(families, self._about, self._target.labels, (self._begun_ms, now_ms))
        self._exporter.export(points)  # it logs what does not arrive


def _exporter(target: Target) -> Any:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(
        endpoint=target.address,
        insecure=target.address.startswith("http://"),
        headers=tuple((name.lower(), value) for name, value in target.header.items()),
        timeout=target.timeout_s,
    )


def data_of(
    families: Iterable[Metric],
    about: Mapping[str, str],
    labels: Mapping[str, str],
    times_ms: tuple[int, int],
) -> MetricsData:
    """Prometheus' families as OpenTelemetry's. ``times_ms``: the process's start, and now."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    times = (times_ms[0] * 1_000_000, times_ms[1] * 1_000_000)
    metrics = [_metric(family, labels, times) for family in families if family.samples]
    scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, schema_url="")
    return MetricsData([ResourceMetrics(Resource(dict(about)), [scope], schema_url="")])


def _metric(family: Metric, labels: Mapping[str, str], times: tuple[int, int]) -> Any:
    from opentelemetry.sdk.metrics import export

    if family.type == "histogram":
        points = [_histogram(of, labels, times) for of in _by_labels(family.samples)]
        data: Any = export.Histogram(points, export.AggregationTemporality.CUMULATIVE)
        return export.Metric(family.name, family.documentation, "", data)
    begun, now = times
    numbers = [
        export.NumberDataPoint({**sample.labels, **labels}, begun, now, float(sample.value))
        for sample in family.samples
    ]
    if family.type == "counter":
        data = export.Sum(numbers, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return export.Metric(f"{family.name}_total", family.documentation, "", data)
    return export.Metric(family.name, family.documentation, "", export.Gauge(numbers))


def _by_labels(samples: Iterable[Sample]) -> Iterable[list[Sample]]:
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        place = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        found.setdefault(place, []).append(sample)
    return found.values()


def _histogram(samples: Sequence[Sample], labels: Mapping[str, str], times: tuple[int, int]) -> Any:
    """Prometheus counts what is at most a bound, OpenTelemetry what is between two."""
    from opentelemetry.sdk.metrics import export

    buckets = sorted((float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket"))
    upto = [int(count) for _, count in buckets]
    place = {name: value for name, value in samples[0].labels.items() if name != "le"}
    return export.HistogramDataPoint(
        {**place, **labels},
        *times,
        count=upto[-1],
        sum=next((s.value for s in samples if s.name.endswith("_sum")), 0.0),
        bucket_counts=[count - before for before, count in zip([0, *upto], upto, strict=False)],
        explicit_bounds=[bound for bound, _ in buckets[:-1]],
        **_UNKNOWN,
    )
