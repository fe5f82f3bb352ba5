"""The promise of .github/workflows/release.yml: it is read as meant, and all that it asks for is there."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TEXT = (ROOT / ".github" / "workflows" / "release.yml").read_text()
FLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, dict[str, Any]] = FLOW["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STEPS: list[dict[str, Any]] = [step for job in JOBS.values() for step in job["steps"]]
RUNS = [step["run"] for step in STEPS if "run" in step]


def test_it_runs_for_tags_of_versions_and_one_job_alone_may_write() -> None:
    assert FLOW[True] == {"push": {"tags": ["v*"]}}, "YAML 1.1 takes the key for a boolean"
    assert FLOW["permissions"] == {"contents": "read"}
    assert {name: job.get("permissions") for name, job in JOBS.items()} == {
        "tested": None,
        "built": None,
        "published": {"contents": "write"},
    }
    assert [JOBS[name].get("needs") for name in ("tested", "built", "published")] == [None, "tested", "built"]
    assert all(job["timeout-minutes"] <= 90 for job in JOBS.values())


def test_each_action_is_one_commit_of_a_named_version() -> None:
    used = re.findall(r"uses: (.*)$", TEXT, re.M)
    assert len(used) == sum("uses" in step for step in STEPS)
    for one in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one), one
    versions = {one.partition("@")[0]: one.partition("@")[2] for one in used}
    assert all(f"{name}@{of}" in used for name, of in versions.items())
    assert len(set(used)) == len(versions), "one version of each"


def test_it_asks_make_for_what_there_is() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.M)
    asked = [name for run in RUNS for name in re.findall(r"\bmake ([\w-]+)", run)]
    assert asked == ["check", "test", "release"]
    assert set(asked) <= set(phony.split())
    variables = {name for run in RUNS for name in re.findall(r"make release.*?([A-Z]+)=", run)}
    assert all(name in makefile for name in variables)


def test_each_machine_and_python_has_a_wheel_and_all_are_published_with_their_sums() -> None:
    matrix = JOBS["built"]["strategy"]["matrix"]
    assert matrix["machine"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    said = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert set(said) <= set(matrix["python"])
    (joined,) = [run for run in RUNS if "sha256sum" in run]
    assert f'"$(ls dist/*.whl | wc -l)" = {len(matrix["machine"]) * len(matrix["python"])}' in joined
    first = f"{matrix['machine'][0]}-{matrix['python'][0]}"
    assert set(re.findall(r"built/(ubuntu[\w.-]+)/", joined)) == {first}, (
        "of one machine: it is the same of all"
    )
    for kind in ("*.whl", "*.tar.gz", "*.cdx.json", "CHANGES-*.md", "SHA256SUMS"):
        assert kind in joined, kind
    (publish,) = [run for run in RUNS if "gh release create" in run]
    assert " dist/* " in publish
