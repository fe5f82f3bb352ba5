"""The promise of upgrades: every server is replaced once, in the documented order, by what was asked for."""

from __future__ import annotations

import os
import random
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from admin.local import processes, rolling
from admin.local.layout import Node
from chaos import faults
from chaos.drills.live import scenario
from chaos.faults import Step
from chaos.history import History
from chaos.live import releases
from chaos.live.executor import Executor
from chaos.live.ground import Ground
from chaos.live.onlooker import Onlooker
from chaos.live.releases import NoRelease, Release, previous
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(releases.NAMED_BY, raising=False)


def git(clone: Path, *arguments: str, at: str = "2026-01-01T00:00:00Z") -> None:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null"}
    who |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "GIT_COMMITTER_DATE": at}
    path = {"PATH": os.environ["PATH"]}
    subprocess.run(["git", "-C", str(clone), *arguments], check=True, capture_output=True, env=who | path)


def grown(clone: Path) -> None:
    """A clone of three commits: two of one day, and one a week later."""
    git(clone, "init", "-q")
    for number, at in enumerate(("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "2026-01-08T00:00:00Z")):
        (clone / "admin").mkdir(exist_ok=True)
        (clone / "admin" / "release.py").write_text(f"{number}")
        git(clone, "add", ".")
        git(clone, "commit", "-q", "-m", f"{number}", at=at)


def released(found: Release) -> str:
    return (found.path / "admin" / "release.py").read_text()


def test_the_previous_release_is_the_newest_tag_before_or_what_is_a_day_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    grown(clone)
    monkeypatch.setattr(releases, "PACKAGES", clone)
    found = previous(None, tmp_path / "untagged")
    assert released(found) == "1"
    assert len(found.name) >= 7, "a commit says which"
    git(clone, "tag", "v1", "HEAD~2")
    git(clone, "tag", "v9")
    found = previous(None, tmp_path / "tagged")
    assert (released(found), found.name, releases.this()) == ("0", "v1", "v9")


def test_a_path_names_a_source_tree_or_a_wheel(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "admin").mkdir(parents=True)
    assert previous(tree, tmp_path / "x") == Release("tree", tree)
    wheel = tmp_path / "keelmq-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("keelmq/admin/__main__.py", "")
    found = previous(wheel, tmp_path / "wheel")
    assert (found.name, (found.path / "keelmq" / "admin").is_dir()) == (wheel.name, True)


@pytest.mark.parametrize("given", ["no clone", "an empty folder", "no wheel"])
def test_without_another_release_the_reason_says_what_to_do(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.whl").write_text("no archive")
    monkeypatch.setattr(releases, "PACKAGES", tmp_path / "empty")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    path = {"no clone": None, "an empty folder": tmp_path / "empty", "no wheel": tmp_path / "text.whl"}[given]
    with pytest.raises(NoRelease, match=r"--previous|wheel"):
        previous(path, tmp_path / "x")


@pytest.mark.parametrize(("folder", "module"), [("admin", "admin"), ("keelmq/admin", "keelmq.admin")])
def test_a_server_of_another_release_is_imported_from_there(
    folder: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    begun: list[Any] = []

    def begin(command: list[str], **options: Any) -> SimpleNamespace:
        begun.append((command, options["env"]["PYTHONPATH"].split(":")[0]))
        return SimpleNamespace(pid=1 << 30)

    monkeypatch.setattr("admin.local.processes.subprocess.Popen", begin)
    processes.start_server("broker", tmp_path / "c", tmp_path / "log", code=str(tmp_path))
    processes._children.pop(1 << 30)
    ((command, first),) = begun
    assert (command[command.index("-m") + 1], first) == (module, str(tmp_path))


class Upgraded:
    """A cluster of names whose servers lack nothing, on the ground of a previous release."""

    def __init__(self, directory: Path, executor_on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = FakeCluster(directory, stops_after=0)
        self.ground = Ground(self.cluster)
        self.executor: Executor = executor_on(self.cluster, self.ground)
        self.lacking = ""

        async def views() -> dict[str, Any]:
            roles = {"broker-a-0": "master", "broker-a-1": "slave", "broker-a-2": "slave"}
            return {node.name: {"role": roles.get(node.name)} for node in self.cluster.layout.nodes}

        monkeypatch.setattr(self.cluster, "views", views)
        monkeypatch.setattr(rolling, "lacking", lambda cluster, views: self.lacking)

    async def do(self, fault: faults.Fault) -> None:
        await self.executor.act(Step(0, fault))
        await self.executor._operator.wait()

    def code(self) -> set[str]:
        return {node.code for node in self.cluster.layout.nodes}


@pytest.fixture
def upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upgraded:
    def executor_on(cluster: FakeCluster, ground: Ground) -> Executor:
        env, history = OsEnv(seed=1), History()
        onlooker = Onlooker(env, cluster, history, lambda: 1.0)
        onlooker.views = {"broker-a-0": {"role": "master", "epoch": 1}}
        return Executor(env, cluster, ground, onlooker, history, lambda: 1.0, random.Random(1))

    return Upgraded(tmp_path, executor_on, monkeypatch)


async def test_an_upgrade_replaces_every_server_namesrvs_first_and_the_master_last(
    upgraded: Upgraded, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "admin").mkdir(parents=True)
    upgraded.ground.begin_with(tree)
    assert upgraded.code() == {str(tree)}, "the cluster begins with the previous release"
    await upgraded.do(faults.Upgrade("master"))
    assert upgraded.code() == {""}
    assert upgraded.cluster.started == [
        *("namesrv-0", "namesrv-1", "namesrv-2"),
        *("broker-a-1", "broker-a-2", "broker-a-0"),
    ]
    await upgraded.do(faults.Upgrade("master", back=True))
    assert upgraded.code() == {str(tree)}
    assert upgraded.executor.outcome.to_json()["refused"] == []


async def test_an_upgrade_that_stops_half_way_or_has_no_release_is_told(
    upgraded: Upgraded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgraded.ground.begin_with(tmp_path / "nothing")
    await upgraded.do(faults.Upgrade("master"))
    (tmp_path / "tree" / "admin").mkdir(parents=True)
    upgraded.ground.begin_with(tmp_path / "tree")
    monkeypatch.setattr("chaos.live.operator.WHOLE_S", 0.0)
    upgraded.lacking = "waiting for a master"
    await upgraded.do(faults.Upgrade("master"))
    reasons = [one["reason"] for one in upgraded.executor.outcome.refused]
    assert "wheel" in reasons[0]
    assert "waiting for a master" in reasons[1]
    assert upgraded.cluster.started == []


def test_a_node_keeps_its_release_in_the_state_file(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    node: Node = cluster.layout.node("broker-a-1")
    node.code = "/previous"
    again = type(cluster.layout).from_json(cluster.layout.to_json())
    assert again.node("broker-a-1").code == "/previous"


def test_what_is_not_committed_is_part_of_the_exact_release_but_for_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path)
    monkeypatch.setattr(releases, "PACKAGES", tmp_path)
    commit = releases.exact()
    assert commit.startswith(releases.this())
    git(tmp_path, "tag", "v9")
    (tmp_path / "page.md").write_text("1")
    git(tmp_path, "add", ".")
    assert releases.exact() == commit, "a tag is no other code, nor is a page"
    (tmp_path / "admin" / "release.py").write_text("changed")
    changed = releases.exact()
    assert changed.startswith(f"{commit}-changed.")
    (tmp_path / "admin" / "release.py").write_text("changed again")
    assert releases.exact() not in (changed, commit)
    git(tmp_path, "checkout", "-q", "--", ".")
    (tmp_path / "admin" / "added.py").write_text("1")
    assert releases.exact().startswith(f"{commit}-added.")
    (tmp_path / "admin" / "added.py").unlink()
    (tmp_path / ".git" / "info" / "exclude").write_text("*.so\n")
    (tmp_path / "admin" / "fast.so").write_text("1")
    assert releases.exact().startswith(f"{commit}-compiled.")


@pytest.mark.parametrize("lacks", ["git", "a clone", "its own", "leave"])
def test_code_whose_commit_cannot_be_told_has_no_name(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of its folder is none: it would be the same for every commit."""
    grown(tmp_path)
    monkeypatch.setattr(releases, "PACKAGES", tmp_path)
    if lacks == "git":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif lacks == "leave":  # as of another user's clone
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    else:
        inner = tmp_path / "inner"
        inner.mkdir()
        monkeypatch.setattr(releases, "PACKAGES", inner)
        if lacks == "its own":
            (inner / ".git").mkdir()
    with pytest.raises(NoRelease, match=r"nobody can say which commit|git takes it for a part"):
        releases.exact()
    assert scenario.named() is None


def test_an_environment_that_names_another_repository_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path)
    monkeypatch.setattr(releases, "PACKAGES", tmp_path)
    commit = releases.exact()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert releases.exact() == commit


def test_a_change_that_is_taken_back_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(tmp_path)
    monkeypatch.setattr(releases, "PACKAGES", tmp_path)
    before, path = releases.code(), tmp_path / "admin" / "release.py"
    assert releases.code() == before
    text = path.read_text()
    path.write_text("changed")
    path.write_text(text)
    after = releases.code()
    assert after.name == before.name
    assert after.written != before.written


@pytest.mark.parametrize(
    ("begun", "ended", "of"),
    [
        ("a", "a", "a"),
        ("a", "b", "a, at its end b"),
        ("a", None, "a, at its end no name"),
        (None, None, None),
    ],
)
def test_a_run_is_of_one_code_or_says_so(begun: str | None, ended: str | None, of: str | None) -> None:
    assert scenario.of_one(begun, ended) == of


def test_where_no_clone_tells_it_a_result_is_named_by_what_is_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "PACKAGES", tmp_path)
    (tmp_path / "admin").mkdir()
    code = tmp_path / "admin" / "release.py"
    code.write_text("1")
    before = releases.named()
    os.utime(code, (1, 1))
    assert releases.named() == before, "the same text is the same code"
    code.write_text("2")
    assert releases.named() != before
    assert before.startswith("files.")


def test_a_result_is_named_by_the_commit_and_by_what_is_changed_in_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path)
    monkeypatch.setattr(releases, "PACKAGES", tmp_path)
    commit = releases.named()
    assert commit == releases.exact()
    (tmp_path / "result.json").write_text("{}")
    git(tmp_path, "add", "result.json")
    assert releases.named() == commit, "its own file is no code"
    (tmp_path / "admin" / "release.py").write_text("changed")
    assert releases.named().startswith(f"{commit}-changed.")
