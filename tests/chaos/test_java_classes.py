"""Two that compile Java beside each other, each its own source: what the one runs the other never writes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from chaos.worlds import rocketmq


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The calls of a javac whose class is its source."""
    calls: list[list[str]] = []

    def javac(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        text = Path(command[-1]).read_text()
        Path(command[command.index("-d") + 1], "A.class").write_text(text)
        return subprocess.CompletedProcess(command, int("wrong" in text), "", "A.java:1: wrong")

    monkeypatch.setenv("KEELMQ_ROCKETMQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(rocketmq, "fetch", lambda: tmp_path / "home" / "lib")
    monkeypatch.setattr(subprocess, "run", javac)
    return calls


def source(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "A.java").write_text(text)
    return directory / "A.java"


def test_each_source_has_classes_of_its_own(compiled: list[list[str]], tmp_path: Path) -> None:
    one = rocketmq.compile_java(source(tmp_path / "a", "one"))
    two = rocketmq.compile_java(source(tmp_path / "b", "two"))
    assert [(path / "A.class").read_text() for path in (one, two)] == ["one", "two"]
    assert rocketmq.compile_java(source(tmp_path / "b", "one")) == one
    assert len(compiled) == 2


def test_classes_arrive_whole_or_not_at_all(
    compiled: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "home" / "classes"
    with pytest.raises(RuntimeError, match=r"javac A\.java: A\.java:1: wrong"):
        rocketmq.compile_java(source(tmp_path / "a", "wrong"))
    assert list(place.iterdir()) == []
    done = subprocess.run

    def slower(command: list[str], **more: Any) -> Any:
        """Another one compiles the same meanwhile, and is first."""
        monkeypatch.setattr(subprocess, "run", done)
        rocketmq.compile_java(tmp_path / "a" / "A.java")
        return done(command, **more)

    monkeypatch.setattr(subprocess, "run", slower)
    found = rocketmq.compile_java(source(tmp_path / "a", "one"))
    assert list(place.iterdir()) == [found]
    assert [path.name for path in found.iterdir()] == ["A.class"]
    assert len(compiled) == 3
