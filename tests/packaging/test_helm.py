"""The promise of deploy/helm/keelmq: it renders, its servers take their keys, and what it names is there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from admin.commands.backup import create, restore
from admin.commands.group import forget
from admin.host.serve import Plan, plan
from model.settings import parse_properties
from tests import ROOT

CHART = ROOT / "deploy" / "helm" / "keelmq"
HELM = shutil.which("helm") or shutil.which(str(ROOT / ".tools" / "helm"))
KUBERNETES = "1.31.0"
ALL = {
    "backup.enabled": "true",
    "backup.claimName": "kept",
    "serviceMonitor.enabled": "true",
    "prometheusRule.enabled": "true",
    "groups[1].name": "broker-b",
    "groups[1].replicas": "2",
    "groups[1].storage": "1Gi",
    "groups[0].name": "broker-a",
    "groups[0].replicas": "3",
    "groups[0].storage": "9Gi",
}
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm: make helm builds one")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60, check=False)


def rendered(*options: str, **values: str) -> list[dict[str, Any]]:
    settings = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    where = ("--namespace", "prod", "--kube-version", KUBERNETES)
    done = helm("template", "mq", str(CHART), *where, *options, *settings)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@pytest.fixture(scope="module")
def everything() -> list[dict[str, Any]]:
    return rendered(**ALL)


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def pods(found: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The name, the pod's spec and the spec of each StatefulSet."""
    for name, one in of_kind(found, "StatefulSet").items():
        yield name, one["spec"]["template"]["spec"], one["spec"]


def started(found: list[dict[str, Any]], name: str, pod: dict[str, Any]) -> Plan:
    """What its server would run."""
    role, option, path, setting = pod["containers"][0]["args"]
    text = of_kind(found, "ConfigMap")[name]["data"][Path(path).name]
    assert option == "-c"
    key, value = setting.removeprefix("--set=").split("=", 1)
    inside = {"$(POD_IP)": "10.1.2.3", "$(POD_INDEX)": "1"}
    for variable, its in inside.items():
        assert variable not in value or any(
            f"$({one['name']})" == variable for one in pod["containers"][0]["env"]
        )
        value = value.replace(variable, its)
    return plan(role, {**parse_properties(text), key: value})


def test_the_values_fit_their_schema_and_nothing_else_does() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    check = jsonschema.Draft7Validator(schema)
    check.check_schema(schema)
    check.validate(values)
    assert set(values) == set(schema["properties"]) - {"global"}
    others: list[dict[str, Any]] = [
        {"groups": []},
        {"namesrv": {"replicas": 2, "storage": "1Gi"}},
        {"brokers": 3},
        {"groups": [{"name": "namesrv", "replicas": 3, "storage": "1Gi"}]},
    ]
    for wrong in others:
        assert not check.is_valid({**values, **wrong})


def test_its_alert_rules_are_those_of_deploy_prometheus() -> None:
    rules = ROOT / "deploy" / "prometheus" / "keelmq.rules.yml"
    assert (CHART / "files" / "keelmq.rules.yml").read_bytes() == rules.read_bytes()


@pytest.mark.more
@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    done = helm("lint", "--strict", str(CHART), "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stdout


@pytest.mark.more
@needs_helm
def test_there_is_a_set_of_each_kind(everything: list[dict[str, Any]]) -> None:
    names = {"mq-namesrv", "mq-broker-a", "mq-broker-b"}
    for kind in ("StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget"):
        assert set(of_kind(everything, kind)) == names, kind
    assert set(of_kind(everything, "ServiceMonitor")) == {"mq"}
    rules = of_kind(everything, "PrometheusRule")["mq"]["spec"]["groups"][0]["rules"]
    assert len(rules) == 21
    (missing,) = [rule["expr"] for rule in rules if rule["alert"] == "KeelmqReplicaMissing"]
    of = "max by (group) (keelmq_group_in_sync_replicas{group="
    assert missing == f'{of}"broker-a"}}) < 3 or {of}"broker-b"}}) < 2'
    assert set(of_kind(everything, "CronJob")) == {"mq-broker-a-0-backup", "mq-broker-b-0-backup"}
    plain = {one["kind"] for one in rendered()}
    assert plain == {"StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget"}


@pytest.mark.more
@needs_helm
def test_its_servers_take_their_keys_and_find_each_other(everything: list[dict[str, Any]]) -> None:
    services = of_kind(everything, "Service")
    for name, pod, spec in pods(everything):
        made = started(everything, name, pod)
        assert made.ignored == ()
        assert (made.admin_address, spec["serviceName"]) == ("0.0.0.0", name)
        text = "".join(of_kind(everything, "ConfigMap")[name]["data"].values())
        named = re.findall(r"([\w-]+)\.([\w-]+)\.prod\.svc:(\d+)", text)
        assert len(named) >= 3
        for host, service, port in named:
            assert host.removeprefix("n0-").removeprefix("n1-").removeprefix("n2-").startswith(service)
            ports = services[service]["spec"]["ports"]
            assert int(port) in [one["port"] for one in ports]
            assert services[service]["spec"]["publishNotReadyAddresses"] is True
    a = of_kind(everything, "ConfigMap")["mq-broker-b"]["data"]["broker.conf"]
    assert "totalReplicas=2" in a
    assert "brokerName=broker-b" in a


@pytest.mark.more
@needs_helm
def test_a_whole_number_of_a_file_of_values_stays_one(tmp_path: Path) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    keys = {"maxMessageSize": 4194304, "enableFastPort": False, "brokerPermission": "6"}
    values["groups"][0]["config"] = keys
    values["namesrv"]["config"] = {"brokerChannelExpiredTime": 1000000}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    found = rendered("-f", str(tmp_path / "values.yaml"))
    text = "".join("".join(one["data"].values()) for one in of_kind(found, "ConfigMap").values())
    said = dict(line.split("=", 1) for line in text.splitlines())
    wanted = {**keys, "enableFastPort": "false", "brokerChannelExpiredTime": 1000000}
    assert {name: said[name] for name in wanted} == {name: str(value) for name, value in wanted.items()}
    for name, pod, _ in pods(found):
        started(found, name, pod)


@pytest.mark.more
@needs_helm
def test_alerts_lead_to_the_pages_where_it_is_said_where_those_are() -> None:
    def annotations(**values: str) -> dict[str, str]:
        found = rendered(**{"prometheusRule.enabled": "true", **values})
        rules = of_kind(found, "PrometheusRule")["mq"]["spec"]["groups"][0]["rules"]
        told: dict[str, str] = rules[0]["annotations"]
        return told

    url = annotations(**{"prometheusRule.docs": "https://wiki.test/keelmq"})["runbook_url"]
    assert url == "https://wiki.test/keelmq/alerts.html#keelmqgroupwithoutmaster"
    plain = annotations()
    assert plain["runbook"] == "docs/alerts.md#keelmqgroupwithoutmaster"
    assert "runbook_url" not in plain


@pytest.mark.more
@needs_helm
def test_labels_volumes_and_ports_that_are_named_are_there(everything: list[dict[str, Any]]) -> None:
    for name, pod, spec in pods(everything):
        labels = spec["template"]["metadata"]["labels"]
        selectors = [spec["selector"]["matchLabels"]]
        selectors.append(of_kind(everything, "Service")[name]["spec"]["selector"])
        selectors.append(of_kind(everything, "PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"])
        (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        selectors.append(term["labelSelector"]["matchLabels"])
        for selector in selectors:
            assert selector.items() <= labels.items()
            others = [other for other, _, _ in pods(everything) if other != name]
            for other in others:
                theirs = of_kind(everything, "StatefulSet")[other]["spec"]["template"]["metadata"]["labels"]
                assert not selector.items() <= theirs.items(), "no other set's pods"
        volumes = {one["name"] for one in pod["volumes"]} | {"data"}
        for container in pod["containers"]:
            assert {one["name"] for one in container["volumeMounts"]} <= volumes
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
        ports = {one["name"] for one in pod["containers"][0]["ports"]}
        assert pod["containers"][0]["livenessProbe"]["tcpSocket"]["port"] in ports
        assert pod["containers"][0]["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
        probe = pod["containers"][0]["readinessProbe"]
        assert spec["minReadySeconds"] > probe["failureThreshold"] * probe["periodSeconds"] + 1, (
            "a dip is seen"
        )
        assert pod["securityContext"]["runAsNonRoot"] is True


@pytest.mark.more
@needs_helm
def test_a_change_of_any_key_restarts_the_pods_it_concerns(everything: list[dict[str, Any]]) -> None:
    def hashes(found: list[dict[str, Any]]) -> dict[str, str]:
        return {n: spec["template"]["metadata"]["annotations"]["keelmq/config"] for n, _, spec in pods(found)}

    before = hashes(everything)
    for change, concerns in (
        ({"groups[0].config.minInSyncReplicas": "1"}, {"mq-broker-a"}),
        ({"groups[1].replicas": "3"}, {"mq-broker-b"}),
        ({"clusterName": "other"}, {"mq-broker-a", "mq-broker-b"}),
        ({"namesrv.replicas": "5"}, {"mq-namesrv", "mq-broker-a", "mq-broker-b"}),
    ):
        after = hashes(rendered(**{**ALL, **change}))
        assert {name for name in before if before[name] != after[name]} == concerns


def backups(found: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The broker's pod and the job's pod of each."""
    for name, one in of_kind(found, "CronJob").items():
        assert one["spec"]["concurrencyPolicy"] == "Forbid"
        yield name.removesuffix("-backup"), one["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def stored(arguments: list[str], store: Path) -> dict[str, Any]:
    """What ``keelmq`` reads from the arguments of a backup or a restore, whose store is this one."""
    group, name, *rest = arguments
    assert group == "backup"
    command = {"create": create, "restore": restore}[name]
    rest = [str(store) if one == "/data/store" else one for one in rest]
    return command.make_context(name, rest).params


@pytest.mark.more
@needs_helm
def test_a_backup_is_made_beside_the_broker_of_its_store(
    everything: list[dict[str, Any]], tmp_path: Path
) -> None:
    sets = of_kind(everything, "StatefulSet")
    assert [broker for broker, _ in backups(everything)] == ["mq-broker-a-0", "mq-broker-b-0"]
    for broker, pod in backups(everything):
        (container,) = pod["containers"]
        asked = stored(container["args"], tmp_path)
        assert (asked["target"], asked["keep"]) == (Path("/backup") / broker, 24)
        owner = sets[broker.rpartition("-")[0]]["spec"]
        (claim,) = owner["volumeClaimTemplates"]
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert (
            volumes["data"]["persistentVolumeClaim"]["claimName"] == f"{claim['metadata']['name']}-{broker}"
        )
        assert volumes["backup"]["persistentVolumeClaim"]["claimName"] == "kept"
        mounts = {one["name"]: one for one in container["volumeMounts"]}
        assert set(mounts) == set(volumes)
        assert (mounts["data"]["mountPath"], mounts["data"]["readOnly"]) == ("/data", True)
        (near,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert near["labelSelector"]["matchLabels"] == {"statefulset.kubernetes.io/pod-name": broker}
        theirs = owner["template"]["spec"]
        assert pod["securityContext"] == theirs["securityContext"], "it may read what the broker wrote"
        assert container["securityContext"] == theirs["containers"][0]["securityContext"]
        assert container["image"] == theirs["containers"][0]["image"]


@pytest.mark.more
@needs_helm
def test_a_backup_goes_to_an_object_store_with_its_own_keys_and_image(tmp_path: Path) -> None:
    found = rendered(
        **{
            "backup.enabled": "true",
            "backup.target": "s3://kept/mq/",
            "backup.replicas": "9",
            "backup.schedule": "@daily",
            "backup.secretName": "keys",
            "backup.image": "with-s3:1",
        }
    )
    assert {one["spec"]["schedule"] for one in of_kind(found, "CronJob").values()} == {"@daily"}
    assert [broker for broker, _ in backups(found)] == [f"mq-broker-a-{n}" for n in range(3)]
    for broker, pod in backups(found):
        (container,) = pod["containers"]
        assert stored(container["args"], tmp_path)["target"] == f"s3://kept/mq/{broker}"
        assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
        assert container["image"] == "with-s3:1"
        assert [one["name"] for one in pod["volumes"]] == ["data", "tmp"]
    own = {"backup.enabled": "true", "backup.target": "s3://kept", "image.repository": "here/with-s3"}
    for _, pod in backups(rendered(**own)):
        assert pod["containers"][0]["image"].startswith("here/with-s3:"), "one image for all"


def test_the_page_restores_what_the_chart_backs_up(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert stored(container["args"], tmp_path / "store")["target"] == "s3://kept/mq/mq-broker-a-0"
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "data-mq-broker-a-0"
    chart = (CHART / "templates" / "backup.yaml").read_text()
    assert "claimName: data-{{ $pod }}" in chart
    assert "create, /data/store," in chart
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    for name, its in (
        ("podSecurity", [pod]),
        ("containerSecurity", pod["initContainers"] + pod["containers"]),
    ):
        (text,) = re.findall(rf'define "keelmq.{name}" -}}}}\n(.*?)\n{{{{- end', helpers, re.S)
        for one in its:
            assert one["securityContext"] == yaml.safe_load(text), "a namespace that is restricted takes both"
    (asked,) = re.findall(r"exec mq-namesrv-0 -- keelmq group forget (.*)", page)
    assert forget.make_context("forget", shlex.split(asked)).params["name"] == "broker-a"


def test_the_page_names_the_chart_and_the_oldest_image_that_it_works_with() -> None:
    page, chart = (
        (ROOT / "docs" / "kubernetes.md").read_text(),
        yaml.safe_load((CHART / "Chart.yaml").read_text()),
    )
    assert re.findall(r"of commit [0-9a-f]{8} .*? or later: chart ([\d.]+)", page) == [chart["version"]]


def test_the_page_adds_to_the_image_by_a_pip_that_is_there() -> None:
    page, image = ((ROOT / name).read_text() for name in ("docs/kubernetes.md", "Dockerfile"))
    assert "venv --without-pip /opt/keelmq" in image
    assert re.findall(r"RUN (.*?) install ", page) == ["pip --python /opt/keelmq/bin/python"]


@pytest.mark.more
@needs_helm
def test_what_cannot_be_is_refused() -> None:
    for setting, named in (
        ("namesrv.replicas=2", "replicas"),
        ("backup.enabled=true", "backup.target or backup.claimName"),
        ("backup.enabled=true,backup.target=s3://a/b,backup.claimName=c", "one of both"),
        ("backup.schedule=hourly", "schedule"),
        ("backup.target=/mnt/kept", "target"),
        ("backup.enabled=true,backup.target=s3://a/b", "backup.target needs backup.image"),
        ("groups[0].name=namesrv", "name"),
        ("groups[0].name=Broker_A", "name"),
        ("typo=1", "typo"),
    ):
        done = helm("template", "mq", str(CHART), "--kube-version", KUBERNETES, "--set", setting)
        assert done.returncode != 0, setting
        assert named in done.stderr, setting
    backup = "backup.enabled=true,backup.claimName=kept"
    done = helm("template", "a" * 45, str(CHART), "--kube-version", KUBERNETES, "--set", backup)
    assert "too long for a CronJob" in done.stderr
