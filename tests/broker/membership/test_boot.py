"""The promise of bootId.json: a log that may lack its end makes a suspect, until a master saw it level."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.membership.reboot import PROCESSES_MAX, Found, Noted, UncleanRebootDetector, suspicion
from model.errors import DiskError
from runtime.env import read_file, write_file
from runtime.os_env import OsEnv
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv

PATH = "/store/bootId.json"


def started(
    env: FaultyEnv,
    boot: str,
    *,
    clean: bool = False,
    synced: bool = False,
    named: bool = True,
    end: int = 100,
    was_longer: int | None = None,
    sync_failed: bool = False,
) -> UncleanRebootDetector:
    env.boot = boot
    made = UncleanRebootDetector(env, "/store")
    made.begin(
        Found(
            clean=clean,
            synced=synced,
            named=named,
            end=end,
            was_longer=was_longer,
            sync_failed=sync_failed,
        )
    )
    return made


def store(*, end: int = 100, named: bool = True) -> FaultyEnv:
    env = FaultyEnv(FaultyDisk())
    env.disk.makedirs("/store")
    started(env, "one", clean=True, end=end, named=named)
    return env


@pytest.mark.parametrize(
    ("boot", "clean", "suspect"),
    [("one", False, False), ("two", False, True), ("two", True, False), ("", False, True)],
)
def test_of_a_whole_store_only_an_unclean_start_on_another_boot_is_suspect(
    boot: str, clean: bool, suspect: bool
) -> None:
    assert started(store(), boot, clean=clean).suspect is suspect


def test_a_suspicion_outlives_kills_and_orderly_stops_until_it_is_settled() -> None:
    env = store()
    assert started(env, "two").suspect
    assert started(env, "two").suspect
    again = started(env, "two", clean=True)
    assert again.suspect
    again.on_whole()
    assert not started(env, "two").suspect


def test_what_counts_is_whether_the_last_run_acknowledged_before_its_sync() -> None:
    env = FaultyEnv(FaultyDisk())
    env.disk.makedirs("/store")
    started(env, "one", clean=True, synced=True)
    assert not started(env, "two", synced=False).suspect
    assert started(env, "three", synced=True).suspect


def test_a_store_of_another_program_is_suspect_after_an_unclean_stop_only() -> None:
    for clean in (True, False):
        env = FaultyEnv(FaultyDisk())
        env.disk.makedirs("/store")
        assert started(env, "one", clean=clean).suspect is not clean


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_log_under_a_kept_identity_is_suspect_in_every_mode(clean: bool, synced: bool) -> None:
    env = store()
    assert started(env, "one", clean=clean, synced=synced, end=0).suspect
    assert started(env, "one", clean=clean, synced=synced, end=0).suspect, "and stays so"
    wiped = FaultyEnv(FaultyDisk())
    wiped.disk.makedirs("/store")
    assert started(wiped, "one", clean=clean, synced=synced, end=0).suspect, "bootId.json is gone as well"


@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_that_never_had_a_byte_is_not_suspect(clean: bool) -> None:
    new = store(end=0, named=False)
    assert not started(new, "one", clean=clean, end=0).suspect
    assert not started(new, "one", clean=clean, end=0).suspect
    noted = started(new, "one", clean=clean, end=0)
    assert noted.owes_bytes
    noted.on_bytes()
    assert not noted.owes_bytes
    assert started(new, "one", clean=clean, end=0).suspect, "now it had some"


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_shorter_than_other_files_say_is_suspect(clean: bool) -> None:
    assert started(store(), "one", clean=clean, end=100, was_longer=101).suspect


@pytest.mark.parametrize("synced", [True, False])
def test_after_a_failed_sync_the_page_cache_proves_nothing_of_what_was_acknowledged_before_it(
    synced: bool,
) -> None:
    env = FaultyEnv(FaultyDisk())
    env.disk.makedirs("/store")
    started(env, "one", clean=True, synced=synced)
    assert not started(env, "one", synced=synced).suspect
    assert started(env, "one", synced=synced, sync_failed=True).suspect is not synced
    assert started(env, "one", synced=synced).suspect is not synced, "it is noted"


@given(
    noted=st.none()
    | st.builds(
        Noted,
        boot_id=st.sampled_from(["one", "two"]),
        suspect=st.booleans(),
        synced=st.none() | st.booleans(),
        written=st.none() | st.booleans(),
    ),
    clean=st.booleans(),
    synced=st.booleans(),
    named=st.booleans(),
    end=st.sampled_from([0, 100]),
    was_longer=st.none() | st.just(101),
    boot=st.sampled_from(["", "one"]),
)
def test_only_evidence_makes_a_suspect_and_all_evidence_does(
    noted: Noted | None,
    clean: bool,
    synced: bool,
    named: bool,
    end: int,
    was_longer: int | None,
    boot: str,
) -> None:
    found = Found(clean=clean, synced=synced, named=named, end=end, was_longer=was_longer)
    reason = suspicion(noted, found, boot)
    if was_longer is not None or (noted is not None and noted.suspect):
        assert reason is not None
    elif clean and end > 0:
        assert reason is None, "all of it was written back and is there"
    elif noted is not None and noted.boot_id == boot and end > 0:
        assert reason is None, "the page cache is the one the log was written in"
    elif not named and noted is None and clean:
        assert reason is None, "a broker without an identity acknowledged nothing"


def test_a_file_of_an_older_version_is_understood_and_kept_readable_for_it() -> None:
    env = store()
    write_file(env.disk, PATH, b'{"bootId":"one","doubtful":true,"synced":false}')
    again = started(env, "one", clean=True)
    assert again.suspect
    assert b'"doubtful":true' in read_file(env.disk, PATH)


def test_a_damaged_file_is_a_suspicion() -> None:
    env = store()
    write_file(env.disk, PATH, b"\0\0\0")
    assert started(env, "one").suspect


class Full(FaultyDisk):
    full = True

    def replace(self, source: str, target: str) -> None:
        if self.full:
            raise OSError(28, "no space")
        super().replace(source, target)


def full(disk: FaultyDisk | None = None) -> FaultyEnv:
    """A full disk; with all that ``disk`` has."""
    made = Full()
    made.makedirs("/store")
    if disk is not None:
        made.nodes["/store/bootId.json"] = disk.nodes["/store/bootId.json"]
    return FaultyEnv(made)


def test_a_suspicion_that_cannot_be_noted_ends_the_start() -> None:
    env = store()
    before = read_file(env.disk, PATH)
    with pytest.raises(DiskError, match="cannot be written"):
        started(full(env.disk), "two")
    assert read_file(env.disk, PATH) == before


@pytest.mark.parametrize("known", [True, False], ids=["synced before", "a new store"])
def test_a_run_that_acknowledges_before_its_sync_does_not_begin_while_the_file_says_otherwise(
    known: bool,
) -> None:
    """The machine may lose power: the next start would take the log for whole."""
    env = FaultyEnv(FaultyDisk())
    env.disk.makedirs("/store")
    if known:
        started(env, "one", clean=True, synced=True)
    with pytest.raises(DiskError, match="cannot be written"):
        started(full(env.disk if known else None), "one", clean=True, synced=False)


def test_what_could_not_be_written_and_makes_nobody_less_suspect_goes_with_the_next_note() -> None:
    env = full()
    disk = env.disk
    assert isinstance(disk, Full)
    made = started(env, "two", clean=True, synced=True)
    assert not made.suspect
    assert made.owes_bytes
    disk.full = False
    made.on_bytes()
    assert not started(env, "two", synced=True).suspect
    assert started(env, "two", end=0, synced=True).suspect, "the log had bytes"


def test_the_machine_tells_the_same_boot_twice() -> None:
    assert OsEnv().boot_id() == OsEnv().boot_id()


def test_each_start_has_a_number_of_its_own_and_an_old_disk_goes_on_behind_the_last() -> None:
    env = store()
    assert started(env, "one").starts == 2
    again = started(env, "one")
    assert (again.starts, again.suspect) == (3, False)
    again.on_old_disk(9)
    assert (again.starts, again.suspect) == (10, True)
    later = started(env, "one", clean=True)
    assert (later.starts, later.suspect) == (11, True)


def test_a_start_that_cannot_be_noted_registers_all_the_same_and_is_noted_later() -> None:
    """A full disk takes no voter from its group. The Controllers know of the start, the disk perhaps not: the
    next one may be suspect without need, and an older state of the disk is found."""
    env = full()
    disk = env.disk
    assert isinstance(disk, Full)
    made = UncleanRebootDetector(env, "/store", "full")
    made.begin(Found(clean=True, synced=True))
    made.count()
    made.on_registered()
    assert (made.starts, made.before, made.owes_bytes) == (1, (), True)
    made.on_old_disk(9, "other")
    assert (made.suspect, made.old, made.starts, made.before) == (True, True, 10, ("other",))
    with pytest.raises(OSError, match="no space"):
        made.on_loss()  # not noted yet
    disk.full = False
    made.on_bytes()
    assert not made.owes_bytes
    disk.full = True
    made.on_loss()  # nothing is left to write
    disk.full = False
    later = UncleanRebootDetector(env, "/store", "later")
    later.begin(Found(clean=True, synced=True))
    assert (later.starts, later.suspect, later.before) == (11, True, ("other", "full"))


def test_a_start_names_those_before_it_that_went_to_register_and_the_last_that_was_answered() -> None:
    env = store()

    def start(process: str, *, counts: bool = True) -> UncleanRebootDetector:
        made = UncleanRebootDetector(env, "/store", process)
        made.begin(Found(clean=True, synced=True))
        if counts:
            made.count()
        return made

    assert start("1").before == ()
    assert start("never", counts=False).before == ("1",)
    third = start("3")
    assert third.before == ("1",), "one that ended before it registered has no name"
    third.on_registered()
    assert start("4").before == ("1", "3")
    for number in range(200):
        before = start(f"n{number}").before
        assert len(before) < PROCESSES_MAX
        assert "3" in before, "the Controllers know it, however many did not reach them since"
    old = start("old")
    old.on_old_disk(300, "other")
    assert list(old.before) == ["other"]
    assert start("5").before == ("other", "old")


def test_an_old_disk_is_old_until_a_master_has_taken_the_broker_in() -> None:
    env = store()
    made = started(env, "one")
    made.on_old_disk(9)
    again = started(env, "one", clean=True)
    assert again.old
    again.on_whole()
    assert not started(env, "one", clean=True).old


def test_until_it_is_noted_that_the_log_is_whole_this_broker_says_that_it_is_suspect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk may hang meanwhile. It said that it was sound, and the log that was then put aside counted."""
    made = UncleanRebootDetector(full(), "/store", "one")
    made.suspect = True
    said: list[bool] = []
    monkeypatch.setattr(made, "_write", lambda noted: said.append(made.suspect))
    made.on_whole()
    assert (said, made.suspect) == ([True], False)
