"""What a server's status says in Prometheus' words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from admin.host.figures import add_histogram, broker_figures, histogram
from runtime.report.histogram import Histogram
from runtime.report.lasting import Dead
from runtime.version import version


class Observable(Protocol):
    """What is asked of a server."""

    def status(self) -> dict[str, Any]: ...

    def health(self) -> str | None:
        """None when healthy, else the reason."""


class Metrics:
    """The figures of one server, from a registry of its own. ``CONTENT_TYPE`` goes with ``text``."""

    CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

    def __init__(
        self, role: str, server: Observable, delays: Histogram | None = None, dead: Dead | None = None
    ) -> None:
        """``delays``: how late the event loop of this process was; ``dead``: its tasks that died."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_StatusCollector(role, server, delays or Histogram(), dead or Dead()))
        ProcessCollector(registry=self._registry)

    def families(self) -> list[Metric]:
        """The same figures, not written down yet."""
        return list(self._registry.collect())

    def text(self) -> bytes:
        """All figures as they are now."""
        return generate_latest(self._registry)


class _StatusCollector(Collector):
    """Turns a status into metrics at each scrape: nothing is counted twice, nothing can drift."""

    def __init__(self, role: str, server: Observable, delays: Histogram, dead: Dead) -> None:
        self._role = role
        self._server = server
        self._delays = delays
        self._dead = dead
        self._version = version()

    def collect(self) -> Iterable[Metric]:
        status = self._server.status()
        healthy = 0.0 if (self._server.health() or self._dead.reason()) else 1.0
        yield GaugeMetricFamily("keelmq_healthy", "1 while /healthz says ok", value=healthy)
        dead = len(self._dead.why)
        yield GaugeMetricFamily("keelmq_dead_tasks", "tasks that died, and do nothing any more", value=dead)
        release = GaugeMetricFamily("keelmq_build_info", "1, with the release", labels=["version"])
        release.add_metric([self._version], 1.0)
        yield release
        text = "how late the event loop came to what was due, 4 times a second"
        yield histogram("keelmq_event_loop_delay_seconds", text, self._delays.to_json())
        yield _events(status.get("eventTotals") or {})
        yield from _ports(status.get("ports") or {})
        yield from _tls(status.get("tls") or {}, _SERVER_TLS)
        if self._role == "broker":
            yield from _broker(status)
            yield from broker_figures(status)
        elif self._role == "controller":
            yield from _controller(status)
        else:
            yield from _namesrv(status)
            if isinstance(embedded := status.get("controller"), dict):
                yield from _controller(embedded)


def _events(totals: Mapping[str, int]) -> Metric:
    # From totals, not from the list of the last events: what leaves the list would be counted back.
    family = CounterMetricFamily("keelmq_events", "events since the start", labels=["kind"])
    for kind, total in sorted(totals.items()):
        family.add_metric([kind], total)
    return family


_PORT_GAUGES: Final = {
    "clients": ("keelmq_client_connections", "open connections of clients"),
    "peers": ("keelmq_peer_connections", "open connections of peers and operators"),
    "begunBytes": ("keelmq_begun_frame_bytes", "memory of frames that clients began and did not end"),
    "unreadBytes": ("keelmq_unread_answer_bytes", "bytes of answers that clients leave unread"),
}


def _ports(ports: Mapping[str, Any]) -> Iterator[Metric]:
    """What clients take of the server, and what held its event loop."""
    for key, (name, text) in _PORT_GAUGES.items():
        if isinstance(value := ports.get(key), int):
            yield GaugeMetricFamily(name, text, value=value)
    refused = CounterMetricFamily(
        "keelmq_refused", "connections refused or ended because of a cap", labels=["cap"]
    )
    for cap, total in sorted((ports.get("refused") or {}).items()):
        refused.add_metric([cap], total)
    yield refused
    answered = HistogramMetricFamily(
        "keelmq_request_seconds", "from a request to its answer", labels=["request"]
    )
    for what, seen in (ports.get("answered") or {}).items():
        add_histogram(answered, (what,), seen)
    yield answered
    yield from _audit(ports.get("audit") or {})
    if isinstance(slow := ports.get("slowTurns"), dict):
        turns = CounterMetricFamily(
            "keelmq_slow_turns", "times that the event loop was held for 20 ms or more", labels=["what"]
        )
        for what, total in sorted(slow["byWhat"].items()):
            turns.add_metric([what], total)
        yield turns
        worst_s = slow["worstMs"] / 1000
        yield GaugeMetricFamily("keelmq_slow_turn_worst_seconds", "the longest of them", value=worst_s)
    if isinstance(slow := ports.get("slowRequests"), dict):
        requests = CounterMetricFamily(
            "keelmq_slow_requests", "requests answered after slowRequestMillis or more", labels=["request"]
        )
        for request, total in sorted(slow["byRequest"].items()):
            requests.add_metric([request], total)
        yield requests


def _audit(audit: Mapping[str, Any]) -> Iterator[Metric]:
    """Who was refused, and what operators changed."""
    for key, name, text in (
        ("denied", "keelmq_denied", "requests refused by ACL or for want of a key"),
        ("acts", "keelmq_acts", "acts of operators"),
    ):
        family = CounterMetricFamily(name, text, labels=["request"])
        for request, total in sorted((audit.get(key) or {}).items()):
            family.add_metric([request], total)
        yield family


_SERVER_TLS: Final = (
    "keelmq_tls_handshakes",
    "keelmq_tls_reloads",
    "keelmq_tls_files_wrong",
    "keelmq_tls_certificate_not_after_seconds",
)
_RAFT_TLS: Final = (
    "keelmq_raft_tls_handshakes",
    "keelmq_raft_tls_reloads",
    "keelmq_raft_tls_files_wrong",
    "keelmq_raft_tls_certificate_not_after_seconds",
)


def _tls(tls: Mapping[str, Any], names: tuple[str, str, str, str]) -> Iterator[Metric]:
    """Only of a server that has TLS."""
    if not tls:
        return
    handshakes_name, reloads_name, wrong_name, until_name = names
    handshakes = CounterMetricFamily(
        handshakes_name,
        "TLS handshakes that ended ok or failed, and connections refused because of tls.server.mode",
        labels=["outcome"],
    )
    for outcome, total in sorted(tls["handshakes"].items()):
        handshakes.add_metric([outcome], total)
    yield handshakes
    yield CounterMetricFamily(reloads_name, "times that new TLS files were read", value=tls["reloads"])
    yield GaugeMetricFamily(
        wrong_name,
        "1 while new TLS files cannot be used, and the former ones are",
        value=0.0 if tls["error"] is None else 1.0,
    )
    if (until_ms := tls["notAfterMs"]) is not None:
        yield GaugeMetricFamily(
            until_name,
            "end of the server's certificate, seconds since 1970",
            value=until_ms / 1000,
        )


_BROKER_GAUGES: Final = {
    "epoch": ("keelmq_broker_epoch", "epoch of the mastership this broker follows"),
    "syncStateSetEpoch": ("keelmq_broker_sync_state_set_epoch", "version of the SyncStateSet"),
    "minOffset": ("keelmq_broker_commitlog_min_bytes", "first byte of the CommitLog"),
    "maxOffset": ("keelmq_broker_commitlog_max_bytes", "end of the CommitLog"),
    "confirmOffset": ("keelmq_broker_commitlog_confirmed_bytes", "end of what every in-sync replica holds"),
    "flushedOffset": ("keelmq_broker_commitlog_flushed_bytes", "end of what is synced to disk"),
    "dispatchedOffset": ("keelmq_broker_commitlog_dispatched_bytes", "end of what the queues index"),
    "parked": ("keelmq_broker_parked_answers", "batches of answers that wait for slaves or the disk"),
    "connections": ("keelmq_broker_connections", "open connections of clients and peers"),
}

SLAVE_STATES: Final = (
    "no_master",
    "connecting",
    "handshake",
    "unproven",
    "following",
    "needs_reseed",
    "broken",
)
"""``ha.slave.follower.State``, by name: a NameServer shows metrics as well and loads no store for that."""


def _broker(status: Mapping[str, Any]) -> Iterator[Metric]:
    role = GaugeMetricFamily("keelmq_broker_role", "1 for the role held now", labels=["role"])
    for name in ("master", "slave", "fenced"):
        role.add_metric([name], 1.0 if status.get("role") == name else 0.0)
    yield role
    for key, (name, text) in _BROKER_GAUGES.items():
        if isinstance(value := status.get(key), int):
            yield GaugeMetricFamily(name, text, value=value)
    members = status.get("syncStateSet") or []
    yield GaugeMetricFamily(
        "keelmq_broker_in_sync_replicas", "members of the SyncStateSet", value=len(members)
    )
    if isinstance(total := status.get("putTotal"), int):
        yield CounterMetricFamily(
            "keelmq_broker_messages_put", "messages stored since the start", value=total
        )
    yield from _send_path(status)
    yield from _trouble(status)
    lag = GaugeMetricFamily("keelmq_broker_slave_lag_bytes", "bytes a slave is behind", labels=["id"])
    for slave in status.get("slaves") or []:
        lag.add_metric([str(slave.get("id"))], float(slave.get("lagBytes") or 0))
    yield lag


def _send_path(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Which way plain sends take: a host where nothing was compiled is seen from outside."""
    if isinstance(taken := status.get("sendPath"), str):
        path = GaugeMetricFamily(
            "keelmq_broker_send_path", "1 for the way that plain sends take", labels=["path"]
        )
        for name in ("compiled", "Python", "ordinary"):
            path.add_metric([name], 1.0 if taken.split(maxsplit=1)[:1] == [name] else 0.0)
        yield path
    if isinstance(total := status.get("putFastTotal"), int):
        yield CounterMetricFamily(
            "keelmq_broker_messages_put_fast", "messages stored by the fast path", value=total
        )


def _trouble(status: Mapping[str, Any]) -> Iterator[Metric]:
    """What somebody is to be told of; a figure that the status does not have is not shown."""
    if "writable" in status:
        writable = 1.0 if status["writable"] is None else 0.0
        yield GaugeMetricFamily("keelmq_broker_writable", "1 while the store takes messages", value=writable)
    if isinstance(damaged := status.get("damaged"), list):
        yield GaugeMetricFamily(
            "keelmq_broker_damaged_ranges", "ranges of the log that are damaged", value=len(damaged)
        )
    if isinstance(undecided := (status.get("compared") or {}).get("undecided"), int):
        yield GaugeMetricFamily(
            "keelmq_broker_compare_undecided_ranges",
            "ranges that differ from a replica's with nothing to tell which is right; begins at 0 each pass",
            value=undecided,
        )
    if isinstance(found := (status.get("scrub") or {}).get("found"), int):
        yield CounterMetricFamily(
            "keelmq_broker_scrub_findings", "damage found by reading the log again", value=found
        )
    if "acting" in status:
        yield GaugeMetricFamily(
            "keelmq_broker_acting",
            "1 while a slave serves consumers in place of a master",
            value=1.0 if status["acting"] else 0.0,
        )
    if isinstance(turned := status.get("turnedAway"), int):
        yield CounterMetricFamily(
            "keelmq_broker_ha_links_turned_away", "HA links that did not prove themselves", value=turned
        )
    following = (status.get("life") or {}).get("following") or {}
    state = GaugeMetricFamily(
        "keelmq_broker_slave_state", "1 for how a slave gets on with its master's log", labels=["state"]
    )
    for name in SLAVE_STATES:
        state.add_metric([name], 1.0 if following.get("state") == name else 0.0)
    yield state


_RAFT_GAUGES: Final = {
    "tickAgeMs": ("keelmq_controller_tick_age_seconds", "since the last Raft tick", 1e-3),
    "tickLateMaxMs": (
        "keelmq_controller_tick_late_max_seconds",
        "the latest Raft tick of the last one to two minutes",
        1e-3,
    ),
    "appliedIndex": ("keelmq_controller_applied_index", "Raft index of the last applied entry", 1),
    "lagEntries": (
        "keelmq_controller_lag_entries",
        "entries known to be committed (a follower: by its leader's last word) and not applied here",
        1,
    ),
    "unmovedMs": ("keelmq_controller_unmoved_seconds", "since when it lags and applied nothing", 1e-3),
    "appendAgeMs": ("keelmq_controller_append_age_seconds", "since a leader's last word; followers", 1e-3),
    "journalEntries": ("keelmq_controller_journal_entries", "entries kept since the last snapshot", 1),
    "journalBytes": ("keelmq_controller_journal_bytes", "bytes of the journal", 1),
}


def _raft(raft: Mapping[str, Any]) -> Iterator[Metric]:
    yield from _tls(raft.get("tls") or {}, _RAFT_TLS)
    for key, (name, text, unit) in _RAFT_GAUGES.items():
        if isinstance(value := raft.get(key), int):
            yield GaugeMetricFamily(name, text, value=value * unit)
    if "compactionError" in raft:
        yield GaugeMetricFamily(
            "keelmq_controller_compaction_failing",
            "1 while the disk refuses compaction",
            value=0.0 if raft["compactionError"] is None else 1.0,
        )
    lag = GaugeMetricFamily(
        "keelmq_controller_peer_lag_entries", "entries a member lacks; on the leader", labels=["peer"]
    )
    answer = GaugeMetricFamily(
        "keelmq_controller_peer_answer_age_seconds",
        "since a member's last answer; on the leader",
        labels=["peer"],
    )
    for peer, seen in sorted((raft.get("peers") or {}).items()):
        lag.add_metric([peer], float(seen.get("lagEntries") or 0))
        if isinstance(age_ms := seen.get("answerAgeMs"), int):
            answer.add_metric([peer], age_ms * 1e-3)
    yield from (lag, answer)


def _controller(status: Mapping[str, Any]) -> Iterator[Metric]:
    leader = 1.0 if status.get("isLeader") else 0.0
    yield GaugeMetricFamily("keelmq_controller_is_leader", "1 on the leader", value=leader)
    for key, name, text in (
        ("term", "keelmq_controller_term", "Raft term"),
        ("commitIndex", "keelmq_controller_commit_index", "Raft commit index"),
    ):
        if isinstance(value := status.get(key), int):
            yield GaugeMetricFamily(name, text, value=value)
    yield from _raft(status.get("raft") or {})
    epoch = GaugeMetricFamily("keelmq_group_epoch", "elections of a broker group", labels=["group"])
    master = GaugeMetricFamily("keelmq_group_has_master", "1 while the group has a master", labels=["group"])
    in_sync = GaugeMetricFamily("keelmq_group_in_sync_replicas", "SyncStateSet members", labels=["group"])
    unclean = CounterMetricFamily(
        "keelmq_group_unclean_elections", "masters from outside of the SyncStateSet", labels=["group"]
    )
    resting = GaugeMetricFamily(
        "keelmq_group_maintenance_brokers", "brokers that an operator wants not to lead", labels=["group"]
    )
    alive = GaugeMetricFamily("keelmq_group_alive_brokers", "brokers with a live session", labels=["group"])
    for name, group in sorted((status.get("groups") or {}).items()):
        epoch.add_metric([name], float(group.get("epoch") or 0))
        master.add_metric([name], 0.0 if group.get("master") is None else 1.0)
        in_sync.add_metric([name], float(len(group.get("syncStateSet") or [])))
        unclean.add_metric([name], float(group.get("uncleanElections") or 0))
        resting.add_metric([name], float(len(group.get("maintenance") or [])))
        brokers = (group.get("brokers") or {}).values()
        alive.add_metric([name], float(sum(bool(broker.get("alive")) for broker in brokers)))
    yield from (epoch, master, in_sync, unclean, resting, alive)
    if isinstance(without := status.get("withoutMaster"), dict):
        text = "from the loss of a master to the next one, as this Controller saw it while it led"
        yield histogram("keelmq_controller_without_master_seconds", text, without)


def _namesrv(status: Mapping[str, Any]) -> Iterator[Metric]:
    brokers = GaugeMetricFamily("keelmq_namesrv_brokers", "registered brokers of a group", labels=["group"])
    for name, members in sorted((status.get("brokers") or {}).items()):
        brokers.add_metric([name], float(len(members)))
    yield brokers
    if isinstance(topics := status.get("topics"), int):
        yield GaugeMetricFamily("keelmq_namesrv_topics", "topics with a route", value=topics)
    if isinstance(connections := status.get("connections"), int):
        yield GaugeMetricFamily(
            "keelmq_namesrv_connections", "open connections of clients and brokers", value=connections
        )
