"""The promise: tests and what they start find modules compiled, and none comes to lie beside its source."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.compiled import KEPT, keep_compiled


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A run on a machine that keeps no compiled modules; its cache is ``tmp_path``."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")
    return SimpleNamespace(cache=SimpleNamespace(mkdir=lambda name: tmp_path / name))


def test_a_run_keeps_its_own_where_the_machine_keeps_none(run: Any, tmp_path: Path) -> None:
    keep_compiled(cast(pytest.Config, run))
    assert sys.pycache_prefix == os.environ["PYTHONPYCACHEPREFIX"] == str(tmp_path / KEPT)
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_a_machine_that_keeps_them_goes_on_as_it_is(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    keep_compiled(cast(pytest.Config, run))
    assert sys.pycache_prefix is None
    assert not os.environ["PYTHONPYCACHEPREFIX"]


def test_without_a_cache_nothing_is_kept(run: Any) -> None:
    keep_compiled(cast(pytest.Config, SimpleNamespace()))
    assert sys.dont_write_bytecode
    assert sys.pycache_prefix is None
