"""What ``runtime/native/build.py`` promises: it says why nothing was compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.native import build as building

pytest.importorskip("Cython", reason="no Cython: make setup installs it")


def test_why_the_compiler_failed_is_said_however_many_flags_it_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError(f"Command '['/opt/bin/gcc', {'-fPIC, ' * 200}]' returned non-zero exit status 77.")

    monkeypatch.setattr(building, "fresh_in", lambda directory: None)
    monkeypatch.setattr("Cython.Build.cythonize", fail)
    problem = building.build(tmp_path)
    assert problem.startswith("RuntimeError: Command '['/opt/bin/gcc'")
    assert problem.endswith("returned non-zero exit status 77.")
    assert len(problem) < 300
    assert not list(tmp_path.iterdir())
