"""The promise of the examples for schedulers: the verdict's exit code decides."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit.pages.report import save
from audit.run import Report
from tests import ROOT
from tests.audit.plants import run_local
from tests.client.servers import Pair, run

EXAMPLES = ROOT / "docs" / "examples"
KEELMQ = """#!/bin/sh
echo "$@" >> {log}
[ "$2" = diff ] && exit 2
while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; shift; done
code=$(cat {code})
[ $code = 64 ] || {{ mkdir -p "$out"; cp {summary} "$out/summary.json"; }}
exit $code
"""


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A ``keelmq`` that writes down how it is called; sets the exit code of its audits."""
    folder = tmp_path / "bin"
    folder.mkdir()
    code = tmp_path / "code"
    summary = tmp_path / "summary.json"
    of = Report("clean", "local", [], [], {}, "", [], 0, 0, 0, 0)
    (folder / "keelmq").write_text(KEELMQ.format(log=tmp_path / "log", code=code, summary=summary))
    os.chmod(folder / "keelmq", 0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def end_with(number: int) -> None:
        code.write_text(str(number))
        save(replace(of, unreadable={"b": "no such folder"} if number == 3 else {}), tmp_path / "made")
        (tmp_path / "made" / "summary.json").rename(summary)

    return end_with


def test_cron_gets_the_audits_code_and_the_difference(
    tmp_path: Path, ended: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = tmp_path / "reports" / "broker-b"
    reports.mkdir(parents=True)
    textfiles = tmp_path / "node_exporter"
    for day in range(1, 32):
        (reports / f"2020-01-{day:02d}T030000Z-1").mkdir()

    def night() -> int:
        script = [str(EXAMPLES / "nightly-audit.sh"), str(reports), "a=/mnt/a", "b=/mnt/b"]
        return subprocess.run(script, capture_output=True, check=False).returncode

    ended(1)
    monkeypatch.setenv("TEXTFILES", str(textfiles))
    assert night() == 64, "no exporter would read it"
    textfiles.mkdir()
    assert night() == 1
    first = (reports / "latest").readlink()
    kept = sorted(path.name for path in reports.iterdir() if path.name.startswith("20"))
    assert (len(kept), kept[-1]) == (30, str(first))
    ended(64)
    assert night() == 64
    assert (reports / "latest").readlink() == first, "an audit without a report is none to compare with"
    (reports / str(first)).rename(reports / "2020-02-01T030000Z-1")
    (reports / "latest").unlink()
    (reports / "latest").symlink_to("2020-02-01T030000Z-1")
    ended(2)
    assert night() == 2
    asked = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[1] for line in asked] == ["a=/mnt/a", "a=/mnt/a", "a=/mnt/a", "diff"]
    assert asked[0].endswith(f"--textfile {textfiles}/broker-b.prom")


def test_the_last_report_is_one_that_read_all(
    tmp_path: Path, ended: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next difference would call gone, and then new, what was found on a replica that was not read."""
    reports = tmp_path / "broker-b"
    monkeypatch.setenv("TEXTFILES", str(tmp_path))
    script = [str(EXAMPLES / "nightly-audit.sh"), str(reports), "a=/mnt/a", "b=/mnt/b"]
    ended(3)
    assert subprocess.run(script, check=False).returncode == 3
    assert not (reports / "latest").is_symlink()
    ended(2)
    assert subprocess.run(script, check=False).returncode == 2
    read = (reports / "latest").readlink()
    for day in range(1, 32):
        (reports / f"2099-01-{day:02d}T030000Z-1").mkdir()
    ended(3)
    assert subprocess.run(script, check=False).returncode == 3
    assert (reports / "latest").readlink() == read
    assert (reports / "latest" / "summary.json").exists(), "kept, however many nights ago it was"


def test_cron_says_where_keelmq_is_not(tmp_path: Path) -> None:
    script = EXAMPLES / "nightly-audit.sh"
    done = subprocess.run(
        [str(script), str(tmp_path / "reports"), "a=/mnt/a"],
        env={"PATH": "/usr/bin:/bin", "TEXTFILES": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 127
    assert "keelmq is not in PATH, which is /usr/bin:/bin" in done.stderr
    for told in (script.read_text(), (ROOT / "docs" / "audit.md").read_text()):
        assert re.search(r"PATH=/\S+/bin:\S*/usr/bin:/bin\n#?\s+17 3 \* \* \*", told), (
            "cron's own knows no keelmq"
        )
        assert "127" in told


def test_the_examples_write_the_metrics_that_the_alert_asks_for() -> None:
    page = (ROOT / "docs" / "audit.md").read_text()
    asked = set(re.findall(r'keelmq_audit_\w+\{audit="([^"]+)"', page))
    assert asked == {"broker-a"}
    (label,) = asked
    written = f"/var/lib/node_exporter/{label}.prom"
    assert f"--textfile {written}" in page
    dag = (EXAMPLES / "audit_dag.py").read_text()
    assert f'TEXTFILE = "{written}"' in dag
    script = (EXAMPLES / "nightly-audit.sh").read_text()
    (folder,) = re.findall(r"nightly-audit\.sh (/\S+) a=", script)
    assert Path(folder).name == label
    assert "${TEXTFILES:-/var/lib/node_exporter}" in script


def test_airflow_tries_again_what_may_end_otherwise(
    tmp_path: Path, ended: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailedError(Exception):
        """Is tried again."""

    class FailedForGoodError(FailedError):
        pass

    called: list[Any] = []

    def as_is(**_: Any) -> Callable[[Any], Any]:
        return lambda function: (
            lambda *given, **named: (
                called.append(function) if function.__name__ == "audit" else function(*given, **named)
            )
        )

    decorators = types.SimpleNamespace(dag=as_is, task=as_is)
    exceptions = types.SimpleNamespace(AirflowException=FailedError, AirflowFailException=FailedForGoodError)
    monkeypatch.setitem(sys.modules, "airflow", types.ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.decorators", decorators)
    monkeypatch.setitem(sys.modules, "airflow.exceptions", exceptions)
    runpy.run_path(str(EXAMPLES / "audit_dag.py"), {"REPORTS": "unused"})
    (audit,) = called
    audit.__globals__["REPORTS"] = os.environ["PATH"].partition(":")[0]
    for code in (0, 1):
        ended(code)
        assert audit(ds="2026-11-24") == code
    for code, kind in ((2, FailedForGoodError), (64, FailedForGoodError), (3, FailedError)):
        ended(code)
        with pytest.raises(FailedError) as caught:
            audit(ds="2026-11-24")
        assert type(caught.value) is kind
    (command, *_) = (tmp_path / "log").read_text().splitlines()
    assert command.endswith(f"--out {tmp_path / 'bin'}/2026-11-24 --textfile {audit.__globals__['TEXTFILE']}")


def test_the_ledger_of_the_example_is_one(tmp_path: Path) -> None:
    """A broker's store is audited with it: clean as it is, and not with a line of something else."""
    ledger, store = tmp_path / "acked.jsonl", tmp_path / "store"

    async def work(servers: Pair) -> None:
        command = [sys.executable, str(EXAMPLES / "acked_ledger.py"), servers.namesrv, "Orders", str(ledger)]
        sends = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, cwd=ROOT)
        await sends.communicate(b"one two " + b"three" * 100)
        assert sends.returncode == 0

    run(store, work)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert len(lines) == 3
    report = run_local([store], ledger)
    assert (report.verdict, report.ledger_lines, report.findings) == ("clean", 3, [])
    for name, value in (("body_crc", lines[0]["body_crc"] ^ 1), ("phys_offset", lines[1]["phys_offset"])):
        ledger.write_text(json.dumps({**lines[0], name: value}) + "\n")
        assert [f.kind for f in run_local([store], ledger).findings] == ["acked_mismatch"], name
    ledger.write_text(json.dumps({**lines[0], "uniq_key": "unknown"}) + "\n")
    assert [f.kind for f in run_local([store], ledger).findings] == ["acked_missing"]
