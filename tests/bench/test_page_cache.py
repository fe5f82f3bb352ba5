"""Before each work of a bench the stores leave the page cache."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from bench.page_cache import forget, touch


def test_files_at_any_depth_are_written_back_and_forgotten_whatever_lies_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "checkpoint", tmp_path / "store" / "commitlog" / "0"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 5000)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    calls: list[tuple[str, str]] = []

    def note(name: str) -> None:
        def called(descriptor: int, *_: int) -> None:
            calls.append((name, os.readlink(f"/proc/self/fd/{descriptor}")))

        monkeypatch.setattr(os, name, called)

    note("fdatasync")
    note("posix_fadvise")
    forget(tmp_path)
    assert sorted(calls) == sorted((name, str(f)) for f in files for name in ("fdatasync", "posix_fadvise"))
    assert [name for name, _ in calls[::2]] == ["fdatasync"] * 2


def test_memory_is_used_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[mmap.mmap] = []
    real = mmap.mmap

    def made(*given: int) -> mmap.mmap:
        used.append(real(*given))
        return used[-1]

    monkeypatch.setattr(mmap, "mmap", made)
    touch(3)
    (room,) = used
    assert room.closed
