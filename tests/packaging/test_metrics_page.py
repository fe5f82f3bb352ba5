"""The promise of docs/operations.md: all metrics are in its table, its alerts ask for none but those."""

from __future__ import annotations

import ast
import copy
import re
from typing import Any

import pytest
import yaml

from admin.host.metrics import SLAVE_STATES, Metrics
from ha.slave.follower import State
from runtime.events import KINDS
from tests import ROOT
from tests.admin.statuses import BROKER, NAMESRV, Server, names_in

PAGE = (ROOT / "docs" / "operations.md").read_text()
ROWS = re.findall(r"^\| `(keelmq_\w+)` \|([^|]*)\| [^|]{5,} \|$", PAGE.partition("### Every metric")[2], re.M)
TABLE = {name: label.strip(" `") for name, label in ROWS}
(ALERTS,) = re.findall(r"```yaml\n(groups:.*?)```", PAGE, re.S)
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS)["groups"][0]["rules"]


def emitted() -> set[str]:
    """The names of a broker's and of a NameServer's metrics, with all that they may know."""
    namesrv = copy.deepcopy(NAMESRV)
    namesrv["controller"]["raft"]["appendAgeMs"] = 5
    broker = Metrics("broker", Server(BROKER)).text()
    return names_in(broker) | names_in(Metrics("namesrv", Server(namesrv)).text())


def written() -> set[str]:
    """The names in the code; a counter's is written there without ``_total``."""
    tree = ast.parse((ROOT / "admin" / "host" / "metrics.py").read_text())
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"keelmq_\w+", text)}


def test_every_name_in_the_code_is_emitted_here() -> None:
    assert written() == {name.removesuffix("_total") for name in emitted()}


def test_the_table_has_every_metric_and_no_other() -> None:
    assert set(TABLE) == emitted()
    assert len(ROWS) == len(TABLE)


def test_the_table_has_the_labels() -> None:
    text = b"".join(
        Metrics(role, Server(of)).text() for role, of in (("broker", BROKER), ("namesrv", NAMESRV))
    )
    found = dict(re.findall(r"^(keelmq_\w+)\{(\w+)=", text.decode(), re.M))
    assert {name: label for name, label in TABLE.items() if label} == found


def test_every_metric_named_on_the_page_is_emitted() -> None:
    assert set(re.findall(r"keelmq_\w+", PAGE)) - emitted() == set()


def test_there_are_nine_alerts_each_with_what_prometheus_asks_for() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) == 9
    for rule in RULES:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_labels_and_values_that_there_are(rule: dict[str, Any]) -> None:
    asked = re.findall(r"keelmq_\w+", rule["expr"])
    assert asked
    assert set(asked) - emitted() == set()
    for name, label, values in re.findall(r'(keelmq_\w+)\{(\w+)=~?"([^"]*)"\}', rule["expr"]):
        assert TABLE[name] == label
        assert label != "state" or set(values.split("|")) <= set(SLAVE_STATES)
    labels = {TABLE[name] for name in asked} | {"instance"}
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels


def test_the_states_of_a_slave_are_all_shown_and_explained() -> None:
    assert set(SLAVE_STATES) == {state.value for state in State}
    (row,) = re.findall(r"^\| `keelmq_broker_slave_state` .*$", PAGE, re.M)
    assert [name for name in SLAVE_STATES if f"`{name}`" not in row] == []


def test_the_kinds_of_events_are_all_shown() -> None:
    (row,) = re.findall(r"^\| `keelmq_events_total` .*$", PAGE, re.M)
    assert [kind for kind in KINDS if f"`{kind}`" not in row] == []
