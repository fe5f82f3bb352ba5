"""Before each work of a bench the stores leave the page cache."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import psutil
import pytest

from bench.page_cache import at_hand, forget


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


def test_memory_is_given_back_but_a_page_of_each_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[tuple[int, int, int]] = []

    class Noted(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            given_back.append((option, start, length))
            super().madvise(option, start, length)

    monkeypatch.setattr(mmap, "mmap", Noted)
    with at_hand(3):
        mib, page = 1 << 20, mmap.PAGESIZE
        assert given_back == [(mmap.MADV_DONTNEED, at * mib + page, mib - page) for at in range(3)]


def test_no_more_than_half_of_what_is_available_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    available = psutil.virtual_memory()._replace(available=6 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    made: list[int] = []
    real = mmap.mmap

    def noted(descriptor: int, size: int, **more: int) -> mmap.mmap:
        made.append(size)
        return real(descriptor, size, **more)

    monkeypatch.setattr(mmap, "mmap", noted)
    with at_hand(1024):
        assert made == [3 << 20]
