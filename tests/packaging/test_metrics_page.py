"""The promise of docs/operations.md: all metrics are in its table, its alerts ask for none but those."""

from __future__ import annotations

import ast
import copy
import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from admin.host.metrics import SLAVE_STATES, Metrics
from ha.slave.follower import State
from runtime.report.events import KINDS
from tests import ROOT
from tests.admin.statuses import BROKER, NAMESRV, Server, names_in

PAGE = (ROOT / "docs" / "operations.md").read_text()
NAME = r"(?:keelmq|rocketmq)_\w+"
ROWS = re.findall(rf"^\| `({NAME})` \|([^|]*)\| [^|]{{5,}} \|$", PAGE.partition("### Every metric")[2], re.M)
RUNBOOK = (ROOT / "docs" / "alerts.md").read_text()
TABLE = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in ROWS}
RULES: list[dict[str, Any]] = yaml.safe_load(
    (ROOT / "deploy" / "prometheus" / "keelmq.rules.yml").read_text()
)["groups"][0]["rules"]
DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text())
    for path in sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
}
PLAYED = yaml.safe_load((ROOT / "deploy" / "prometheus" / "keelmq.rules.test.yml").read_text())["tests"]
PARTS = ("_bucket", "_sum", "_count")
"""What a histogram is asked for by."""


def emitted() -> set[str]:
    """The names of a broker's and of a NameServer's metrics, with all that they may know."""
    namesrv = copy.deepcopy(NAMESRV)
    namesrv["controller"]["raft"]["appendAgeMs"] = 5
    broker = Metrics("broker", Server(BROKER)).text()
    return names_in(broker) | names_in(Metrics("namesrv", Server(namesrv)).text())


def written() -> set[str]:
    """The names in the code; a counter's is written there without ``_total``."""
    files = (ROOT / "admin" / "host" / name for name in ("metrics.py", "figures.py"))
    trees = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    texts = (node.value for node in trees if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch(NAME, text)}


def asked_by(expression: str) -> set[str]:
    """The metrics that an expression of PromQL asks for; a histogram by its own name."""
    found = set(re.findall(NAME, expression))
    known = emitted()
    bare = {name: next((name.removesuffix(p) for p in PARTS if name.endswith(p)), name) for name in found}
    return {name if name in known else bare[name] for name in found}


def test_every_name_in_the_code_is_emitted_here() -> None:
    assert written() == {name.removesuffix("_total") for name in emitted()}


def test_the_table_has_every_metric_and_no_other() -> None:
    assert set(TABLE) == emitted()
    assert len(ROWS) == len(TABLE)


def test_the_table_has_the_labels() -> None:
    found: dict[str, set[str]] = {}
    for role, of in (("broker", BROKER), ("namesrv", NAMESRV)):
        for family in text_string_to_metric_families(Metrics(role, Server(of)).text().decode()):
            for sample in family.samples:
                name = f"{family.name}_total" if family.type == "counter" else family.name
                found[name] = set(sample.labels) - {"le"}
    assert {name: set(labels) for name, labels in TABLE.items() if labels} == {
        name: labels for name, labels in found.items() if labels and name in emitted()
    }


ROCKETMQ_LABELS = {
    "rocketmq_pop_revive_in_message_total": {"consumer_group", "topic", "revive_message_type", "put_status"},
    "rocketmq_pop_revive_out_message_total": {"consumer_group", "topic", "queue_id", "revive_message_type"},
    "rocketmq_pop_revive_retry_messages_total": {"consumer_group", "topic", "put_status"},
    "rocketmq_pop_revive_lag": {"queue_id"},
    "rocketmq_pop_revive_latency": {"queue_id"},
    "rocketmq_pop_offset_buffer_size": set(),
    "rocketmq_pop_checkpoint_buffer_size": set(),
    "rocketmq_rpc_latency": {
        "protocol_type",
        "request_code",
        "response_code",
        "is_long_polling",
        "result",
    },
}
"""Beside those of the node: PopMetricsManager and NettyRemotingAbstract.writeResponse of 5.x."""
ROCKETMQ_OTHERS = """broker_permission topic_number consumer_group_number messages_in_total messages_out_total
throughput_in_total throughput_out_total message_size producer_connections consumer_connections
consumer_lag_messages consumer_lag_latency consumer_inflight_messages consumer_queueing_latency
consumer_ready_messages send_to_dlq_messages_total commit_messages_total rollback_messages_total half_messages
storage_size storage_flush_behind_bytes storage_dispatch_behind_bytes storage_message_reserve_time
timing_messages processor_watermark topic_create_execution_time consumer_group_create_execution_time
finish_message_latency pop_buffer_scan_time_consume timer_enqueue_lag timer_enqueue_latency timer_dequeue_lag
timer_dequeue_latency timer_enqueue_total timer_dequeue_total timer_message_snapshot delay_message_latency
rocksdb_... tiered_store_... proxy_up"""
"""What else BrokerMetricsConstant, DefaultStoreMetricsConstant and the modules beside them name."""


def test_each_name_of_rocketmq_is_emitted_or_on_the_page_with_the_reason() -> None:
    part = PAGE.partition("#### Names of RocketMQ that are not here")[2].partition("\n###")[0]
    rows = re.findall(r"^\| ([^|`][^|]{6,}) \| (`[^|]+`) \|[^|]*\|$", part, re.M)
    missing = [name for _, names in rows for name in re.findall(r"`([\w.]+)`", names)]
    here = {name.removeprefix("rocketmq_") for name in emitted() if name.startswith("rocketmq_")}
    theirs = {name.removeprefix("rocketmq_") for name in ROCKETMQ_LABELS} | set(ROCKETMQ_OTHERS.split())
    assert len(missing) == len(set(missing))
    assert set(missing) & here == set()
    assert set(missing) | here == theirs


def test_pops_and_answers_have_the_labels_of_rocketmq() -> None:
    node = {"cluster", "node_type", "node_id"}
    assert {name: set(TABLE[name]) - node for name in ROCKETMQ_LABELS} == ROCKETMQ_LABELS
    text = Metrics("broker", Server(BROKER)).text().decode()
    of = 'topic="orders"'
    assert re.search(
        rf'revive_in_message_total{{.*put_status="PUT_OK",revive_message_type="CK",{of}}} 6', text
    )
    assert re.search(rf'revive_out_message_total{{.*queue_id="3",revive_message_type="ACK",{of}}} 5', text)
    assert re.search(r'pop_revive_latency{.*queue_id="3"} 750', text)
    assert re.search(r'rpc_latency_bucket{.*le="3.0",.*request_code="pull_message".*} 4', text)


@pytest.mark.parametrize("metrics", [Metrics("broker", Server(BROKER)), Metrics("namesrv", Server(NAMESRV))])
def test_the_exposition_is_what_prometheus_reads(metrics: Metrics) -> None:
    """The parser of Prometheus' own client; histograms are whole, and grow from bound to bound."""
    families = list(text_string_to_metric_families(metrics.text().decode()))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.documentation
        assert family.samples or family.type in ("counter", "gauge")
        if family.type == "histogram":
            counts = [s.value for s in family.samples if s.name.endswith("_bucket")]
            assert counts == sorted(counts)
            assert family.samples[len(counts) - 1].labels["le"] == "+Inf"
            assert counts[-1] == next(s.value for s in family.samples if s.name.endswith("_count"))


def test_groups_and_topics_that_are_too_many_have_one_row_together() -> None:
    text = Metrics("broker", Server(BROKER)).text().decode()
    label = "consumer_group"
    node = 'cluster="DefaultCluster",node_id="broker-a",node_type="broker"'
    assert f'rocketmq_messages_in_total{{{node},topic="(others)"}} 3.0' in text
    assert re.search(rf'rocketmq_consumer_lag_messages{{.*{label}="\(others\)".*}} 9.0', text)
    assert not re.search(rf'rocketmq_consumer_lag_latency{{.*{label}="\(others\)"', text)
    assert re.search(rf'rocketmq_consumer_lag_latency{{.*{label}="done".*}} 0.0', text)
    assert re.search(rf'rocketmq_consumer_ready_messages{{.*{label}="billing".*}} 1.0', text)
    assert re.search(rf'rocketmq_consumer_queueing_latency{{.*{label}="billing".*}} 900.0', text)


@pytest.mark.parametrize("page", [PAGE, RUNBOOK], ids=["operations", "alerts"])
def test_every_metric_named_on_the_pages_is_emitted(page: str) -> None:
    assert {name for name in re.findall(rf"\b{NAME}", page) if name not in emitted()} == set()


def test_each_alert_has_what_prometheus_asks_for_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) == 21
    runbook = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S))
    assert list(runbook) == [rule["alert"] for rule in RULES], "a section for each, in their order"
    for rule in RULES:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["annotations"]["summary"]
        page = "https://docs.example/alerts.html"
        assert rule["annotations"]["runbook_url"] == f"{page}#{rule['alert'].lower()}"
        text = runbook[rule["alert"]]
        assert text.startswith(f"{rule['labels']['severity']}. ")
        assert re.findall(r"^- (\w+): .", text, re.M) == ["Look", "Do", "Ends"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_labels_and_values_that_there_are(rule: dict[str, Any]) -> None:
    asked = asked_by(rule["expr"])
    assert asked
    assert asked - emitted() == set()
    for name, label, values in re.findall(r'(keelmq_\w+)\{(\w+)=~?"([^"]*)"\}', rule["expr"]):
        assert label in TABLE[name]
        assert label != "state" or set(values.split("|")) <= set(SLAVE_STATES)
    labels = {label for name in asked for label in TABLE[name]} | {"instance"}
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels


def test_promtool_plays_each_alert_and_its_end() -> None:
    """What test_alert_rules.py runs where there is a promtool."""
    fired: set[str] = set()
    ended: set[str] = set()
    for case in (case for test in PLAYED for case in test["alert_rule_test"]):
        (fired if case.get("exp_alerts") else ended).add(case["alertname"])
    assert fired == ended == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_of_a_dashboard_asks_for_metrics_and_labels_that_there_are(name: str) -> None:
    board = DASHBOARDS[name]
    assert (board["uid"], board["tags"]) == (name, ["keelmq"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    variables = {one["name"]: one for one in board["templating"]["list"]}
    for one in variables.values():
        assert one["type"] == "datasource" or asked_by(one["definition"]) <= emitted()
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) >= 12
    for panel in panels:
        assert panel["title"]
        for target in panel["targets"]:
            asked = asked_by(target["expr"])
            assert asked, target
            assert asked - emitted() == set()
            labels = {label for name in asked for label in TABLE[name]} | {"instance", "le"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))) <= labels
            named = re.findall(r"(?:by|on) \(([^)]*)\)", target["expr"])
            assert {word for words in named for word in words.split(", ")} <= labels
            chosen = dict(re.findall(r'(\w+)=~"\$(\w+)"', target["expr"]))
            assert all(label == variable and label in labels for label, variable in chosen.items())
            assert set(chosen.values()) <= set(variables)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_no_two_panels_lie_on_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_states_of_a_slave_are_all_shown_and_explained() -> None:
    assert set(SLAVE_STATES) == {state.value for state in State}
    (row,) = re.findall(r"^\| `keelmq_broker_slave_state` .*$", PAGE, re.M)
    assert [name for name in SLAVE_STATES if f"`{name}`" not in row] == []


def test_the_kinds_of_events_are_all_shown() -> None:
    (row,) = re.findall(r"^\| `keelmq_events_total` .*$", PAGE, re.M)
    assert [kind for kind in KINDS if f"`{kind}`" not in row] == []
