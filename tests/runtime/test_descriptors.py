"""The promise of runtime.descriptors: files are opened after the last descriptor is gone, and what was taken
for them comes back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.descriptors import Spare
from runtime.os_env import OsDisk
from tests.descriptors import no_descriptors


def test_a_file_is_opened_with_what_was_held_back_and_that_comes_back() -> None:
    spare = Spare()
    assert not spare.short, "who keeps none lacks none"
    spare.keep(2)
    with no_descriptors():
        opened = [spare.open(lambda: os.open(os.devnull, os.O_RDONLY)) for _ in range(2)]
        assert (spare.short, spare.taken) == (True, 2)
        with pytest.raises(OSError, match="Too many open files"):
            spare.open(lambda: os.open(os.devnull, os.O_RDONLY))
        spare.refill()
        assert spare.short
        os.close(opened.pop())
        spare.refill()
        assert spare.short, "one of two"
        os.close(opened.pop())
        spare.refill()
        assert not spare.short
    assert spare.taken == 0
    spare.keep(0)


def test_other_errors_are_raised_and_cost_nothing() -> None:
    spare = Spare()
    spare.keep(1)
    with pytest.raises(FileNotFoundError):
        spare.open(lambda: os.open("/nothing/there", os.O_RDONLY))
    assert not spare.short
    spare.keep(0)


def test_every_call_of_the_disk_that_needs_a_descriptor_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = Spare()
    monkeypatch.setattr("runtime.os_env.SPARE", spare)
    spare.keep(1)
    disk, path = OsDisk(), str(tmp_path / "a")
    with no_descriptors():
        for call in (
            lambda: disk.open(path, create=True).close(),
            lambda: disk.open(path).close(),
            lambda: disk.sync_dir(str(tmp_path)),
            lambda: disk.listdir(str(tmp_path)),
            lambda: disk.sync_all(str(tmp_path)),
        ):
            call()
            assert spare.short
            spare.refill()
            assert not spare.short
    assert disk.listdir(str(tmp_path)) == ["a"]
    assert disk.listdir(str(tmp_path / "none")) == []
    spare.keep(0)
