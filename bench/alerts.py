"""Do the alerts fire and end as the runbook says? A real Prometheus scrapes a cluster under load and faults.

    python bench/alerts.py [--prometheus FILE] [--factor 20] [--json OUT]

The rules are ``deploy/prometheus/keelmq.rules.yml``. Only their times (``for`` and the ranges in brackets)
are divided by ``--factor``, and Prometheus scrapes and judges each second. Faults come one after the other;
each is mended once its alerts fire. Exit code 2 when an alert that a fault must raise did not fire, or when
one did not end. Of a fault with an alert that was not expected the result has what Controllers said
meanwhile, second by second. ``--boards`` asks each panel of the dashboards at the end: which have no value?
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.provenance import machine  # noqa: E402

RULES: Final = ROOT / "deploy" / "prometheus" / "keelmq.rules.yml"
TOPIC: Final = "Bench"
POLL_S: Final = 0.5
FIRE_MAX_S: Final = 120.0
"""Beyond the longest ``for`` of a fault's alerts."""
T = TypeVar("T")
UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}

OPTIONS: Final = (
    "--config.file=prometheus.yml",
    "--storage.tsdb.path=data",
    "--web.listen-address=127.0.0.1:0",
    "--log.format=json",
)

FAULTS: Final = {
    "a slave is killed": ("KeelmqNotHealthy", "KeelmqReplicaMissing"),
    "the master is killed": ("KeelmqNotHealthy", "KeelmqReplicaMissing"),
    "all brokers are killed": ("KeelmqGroupWithoutMaster", "KeelmqNotHealthy"),
    "a Controller is killed": ("KeelmqControllerSilent", "KeelmqNotHealthy"),
    "two Controllers are killed": ("KeelmqNoControllerLeads", "KeelmqNotHealthy"),
}
"""What must fire at each. Others may: a failover is a group without master for a moment."""

EVIDENCE: Final = (
    "keelmq_controller_is_leader",
    "keelmq_controller_term",
    "keelmq_controller_tick_late_max_seconds",
    "keelmq_controller_append_age_seconds",
)
BOARDS: Final = ROOT / "deploy" / "grafana" / "dashboards"


def shorter(rules: str, factor: float) -> str:
    """The rules with each ``for`` and range divided by ``factor``; ranges stay at least 10 s long."""

    def duration_ms(text: str) -> int:
        return int(float(text[:-1]) * UNITS_S[text[-1]] * 1000 / factor)

    rules = re.sub(r"(?m)^(\s+for: )(\w+)$", lambda m: f"{m[1]}{duration_ms(m[2])}ms", rules)
    return re.sub(r"\[(\d+[smhd])\]", lambda m: f"[{max(10_000, duration_ms(m[1]))}ms]", rules)


def keelmq(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=180
    )
    if done.returncode:
        raise RuntimeError(f"keelmq {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Cluster:
    """A cluster of ``keelmq cluster up`` whose servers are ended with SIGKILL, and started again."""

    def __init__(self, directory: Path) -> None:
        self._at = ("--dir", str(directory))
        self.start()

    def start(self) -> None:
        keelmq("cluster", "up", *self._at)

    def end(self) -> None:
        keelmq("cluster", "down", *self._at)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(keelmq("cluster", "status", *self._at, "--json"))
        return found

    def targets(self) -> list[str]:
        """HOST:PORT of each server's ``/metrics``."""
        files = (Path(self._at[1]) / "conf").glob("*.conf")
        ports = [re.search(r"(?m)^adminPort\s*=\s*(\d+)", file.read_text()) for file in files]
        return sorted(f"127.0.0.1:{port[1]}" for port in ports if port)

    def break_by(self, fault: str) -> None:
        status = self.status()
        brokers, controllers = self._brokers(status), status["controllers"]
        victims = {
            "a slave is killed": [one for one in brokers if one["role"] == "slave"][:1],
            "the master is killed": [one for one in brokers if one["role"] == "master"],
            "all brokers are killed": brokers,
            "a Controller is killed": [one for one in controllers if not one["leader"]][:1],
            "two Controllers are killed": controllers[:2],
        }[fault]
        for victim in victims:
            os.kill(victim["pid"], signal.SIGKILL)

    @staticmethod
    def _brokers(status: dict[str, Any]) -> list[dict[str, Any]]:
        return [broker for group in status["groups"] for broker in group["brokers"]]

    @contextmanager
    def load(self, rate: int) -> Iterator[None]:
        keelmq("topic", "create", TOPIC, *self._at)
        pace = ("--rate", str(rate), "--seconds", "3600", "--json")
        sender = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "bench", "send", TOPIC, *self._at, *pace],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            sender.kill()
            sender.wait()


class Prometheus:
    """The real one on loopback, with the shortened rules; what it says of alerts."""

    def __init__(self, binary: str, directory: Path, targets: list[str], factor: float) -> None:
        (directory / "keelmq.rules.yml").write_text(shorter(RULES.read_text(), factor))
        scrape = {"job_name": "keelmq", "static_configs": [{"targets": targets}]}
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["keelmq.rules.yml"],
            "scrape_configs": [scrape],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        log = (directory / "prometheus.log").open("w")
        self._process = subprocess.Popen(
            [binary, *OPTIONS],
            cwd=directory,
            stdout=log,
            stderr=log,
        )
        self._log = directory / "prometheus.log"
        self._targets = len(targets)
        self._address = wait_for(self._listens, 60.0, "Prometheus does not listen")

    def _listens(self) -> str | None:
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if "Listening on" in line]
        return str(lines[0]["address"]) if lines else None

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def states(self) -> dict[str, str]:
        """Alert -> ``firing`` or ``pending``, the graver of its instances."""
        found: dict[str, str] = {}
        for alert in self.ask("alerts")["alerts"]:
            found[alert["labels"]["alertname"]] = min(
                alert["state"], found.get(alert["labels"]["alertname"], "pending")
            )
        return found

    def said(self, metric: str, since_s: float) -> dict[str, list[str]]:
        """Its value at each server, second by second, from ``since_s`` (since 1970) until now."""
        query = f"query={metric}&start={since_s:.0f}&end={time.time():.0f}&step=1"
        found = self.ask(f"query_range?{query}")["result"]
        return {one["metric"].get("instance", ""): [value for _, value in one["values"]] for one in found}

    def empty_panels(self) -> list[str]:
        """The panels of the dashboards of which no query has a value now."""
        found = []
        for file in sorted(BOARDS.glob("*.json")):
            for panel in json.loads(file.read_text())["panels"]:
                asked = [re.sub(r"\$\w+", ".*", target["expr"]) for target in panel.get("targets", ())]
                told = [
                    self.ask(f"query?{urllib.parse.urlencode({'query': one})}")["result"] for one in asked
                ]
                if asked and not any(told):
                    found.append(f"{file.stem}: {panel['title']}")
        return found

    def version(self) -> str:
        return str(self.ask("status/buildinfo")["version"])

    def healthy(self) -> bool:
        """Has every target answered a scrape, and is no alert there that a fault must raise? In its first
        seconds Prometheus knows no targets, and what it has no values of is absent, which raises alerts."""
        targets = self.ask("targets?state=active")["activeTargets"]
        up = [target for target in targets if target["health"] == "up"]
        known = {alert for must in FAULTS.values() for alert in must}
        return len(up) == self._targets and not known & self.states().keys()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def wait_for(ask: Callable[[], T | None], limit_s: float, complaint: str) -> T:
    """The first answer of ``ask`` that is true. Raises TimeoutError."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if answer := ask():
            return answer
        time.sleep(POLL_S)
    raise TimeoutError(complaint)


def watch(
    prometheus: Prometheus, seen: dict[str, dict[str, float]], since: float, until: Callable[[], bool]
) -> bool:
    """Note when each alert changed its state, in seconds after ``since``. Did ``until`` come true in time?"""
    end = time.monotonic() + FIRE_MAX_S
    while time.monotonic() < end:
        states, now = prometheus.states(), round(time.monotonic() - since, 1)
        for alert, state in states.items():
            seen.setdefault(alert, {}).setdefault(f"{state}_s", now)
        for alert, of in seen.items():
            if alert in states:
                of.pop("resolved_s", None)
            else:
                of.setdefault("resolved_s", now)
        if until():
            return True
        time.sleep(POLL_S)
    return False


def strike(cluster: Cluster, prometheus: Prometheus, fault: str) -> dict[str, Any]:
    """Break, wait until each alert of the fault fires, mend, wait until they have ended."""
    must = FAULTS[fault]
    seen: dict[str, dict[str, float]] = {}
    since, since_s = time.monotonic(), time.time()
    cluster.break_by(fault)
    fired = watch(prometheus, seen, since, lambda: all("firing_s" in seen.get(one, {}) for one in must))
    mended_s = round(time.monotonic() - since, 1)
    cluster.start()
    started_s = round(time.monotonic() - since, 1)
    ended = watch(prometheus, seen, since, lambda: not {*must} & prometheus.states().keys())
    print(f"{fault}: {'fired' if fired else 'NOT FIRED'}, {'ended' if ended else 'NOT ENDED'}", flush=True)
    for alert, of in sorted(seen.items()):
        print(f"  {alert}: {of}", flush=True)
    told = {"fault": fault, "must_fire": must, "fired": fired, "ended": ended, "alerts": seen}
    if set(seen) - set(must):
        told["controllers"] = {name: prometheus.said(name, since_s - 15) for name in EVIDENCE}
    return {**told, "mending_from_s": mended_s, "whole_again_s": started_s}


def run(binary: str, factor: float, rate: int, *, boards: bool, keep: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="keelmq-alerts-") as directory:
        cluster = Cluster(Path(directory) / "cluster")
        try:
            with cluster.load(rate):
                prometheus = Prometheus(binary, Path(directory), cluster.targets(), factor)
                try:
                    wait_for(prometheus.healthy, 120.0, "an alert is there before the first fault")
                    strikes = [strike(cluster, prometheus, fault) for fault in FAULTS]
                    told = {"empty_panels": prometheus.empty_panels()} if boards else {}
                    version = prometheus.version()
                finally:
                    prometheus.end()
        finally:
            cluster.end()
            if keep is not None:
                shutil.copytree(Path(directory) / "cluster" / "log", keep, dirs_exist_ok=True)
    return {**told, "prometheus": version, "factor": factor, "rate": rate, "strikes": strikes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prometheus", default="prometheus", help="the server's program [in the path]")
    parser.add_argument("--factor", type=float, default=20.0, help="divides the times in the rules")
    parser.add_argument("--rate", type=int, default=100, help="messages/s of the load")
    parser.add_argument("--boards", action="store_true", help="ask the dashboards' panels, too")
    parser.add_argument("--keep", type=Path, help="copy the servers' logs into this folder")
    parser.add_argument("--json", type=Path, help="write the result here")
    told = parser.parse_args()
    binary = shutil.which(told.prometheus)
    if binary is None:
        print("no Prometheus here: --prometheus names its program", file=sys.stderr)
        return 3
    result = {"machine": machine(), **run(binary, told.factor, told.rate, boards=told.boards, keep=told.keep)}
    if told.json:
        told.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(one["fired"] and one["ended"] for one in result["strikes"]) else 2


if __name__ == "__main__":
    raise SystemExit(main())
