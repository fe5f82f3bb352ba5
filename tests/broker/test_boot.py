"""The promise of bootId.json: a log that may lack its end is doubted until somebody vouches for it."""

import pytest

from broker.role.reboot import UncleanRebootDetector
from model.errors import DiskError
from runtime.env import read_file, write_file
from runtime.os_env import OsEnv
from tests.store.faulty import FaultyDisk, FaultyEnv

PATH = "/store/bootId.json"


def started(env: FaultyEnv, boot: str, *, clean: bool = False, synced: bool = False) -> UncleanRebootDetector:
    env.boot = boot
    made = UncleanRebootDetector(env, "/store")
    made.begin(clean=clean, synced=synced)
    return made


def store() -> FaultyEnv:
    env = FaultyEnv(FaultyDisk())
    env.disk.makedirs("/store")
    started(env, "one", clean=True)
    return env


@pytest.mark.parametrize(
    ("boot", "clean", "doubtful"),
    [("one", False, False), ("two", False, True), ("two", True, False), ("", False, True)],
)
def test_only_an_unclean_start_on_another_boot_is_a_doubt(boot: str, clean: bool, doubtful: bool) -> None:
    assert started(store(), boot, clean=clean).doubtful is doubtful


def test_a_doubt_outlives_kills_and_orderly_stops_until_it_is_settled() -> None:
    env = store()
    assert started(env, "two").doubtful
    assert started(env, "two").doubtful
    again = started(env, "two", clean=True)
    assert again.doubtful
    again.settle()
    assert not started(env, "two").doubtful


def test_what_counts_is_whether_the_last_run_acknowledged_before_its_sync() -> None:
    env = FaultyEnv(FaultyDisk())
    env.disk.makedirs("/store")
    started(env, "one", clean=True, synced=True)
    assert not started(env, "two", synced=False).doubtful
    assert started(env, "three", synced=True).doubtful


def test_a_store_of_another_program_is_doubted_after_an_unclean_stop_only() -> None:
    for clean in (True, False):
        env = FaultyEnv(FaultyDisk())
        env.disk.makedirs("/store")
        assert started(env, "one", clean=clean).doubtful is not clean


def test_a_damaged_file_is_a_doubt() -> None:
    env = store()
    write_file(env.disk, PATH, b"\0\0\0")
    assert started(env, "one").doubtful


def test_a_doubt_that_cannot_be_noted_ends_the_start_and_anything_else_does_not() -> None:
    env = store()
    before = read_file(env.disk, PATH)

    class Full(FaultyDisk):
        def replace(self, source: str, target: str) -> None:
            raise OSError(28, "no space")

    full = FaultyEnv(Full())
    full.disk.makedirs("/store")
    full.boot = "two"
    UncleanRebootDetector(full, "/store").begin(clean=True, synced=False)
    with pytest.raises(DiskError, match="cannot be written"):
        UncleanRebootDetector(full, "/store").begin(clean=False, synced=False)
    assert read_file(env.disk, PATH) == before


def test_the_machine_tells_the_same_boot_twice() -> None:
    assert OsEnv().boot_id() == OsEnv().boot_id()
