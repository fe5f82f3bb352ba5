"""The promise of the simulated disk: a kill loses nothing, a power failure loses only what was not synced."""

import errno
import random
from collections.abc import Callable

import pytest

from chaos.sim.disk import Machine, SimDisk
from chaos.sim.inode import PAGE_BYTES, SECTOR_BYTES
from chaos.sim.loop import Life
from runtime.env import Disk, read_file, write_file


def a_disk(seed: int = 1) -> tuple[Machine, SimDisk, Life]:
    machine = Machine("m", seed, lambda: 1000)
    life = Life("a", 1)
    disk = SimDisk(machine, life)
    disk.makedirs("/data")
    return machine, disk, life


def after_power(machine: Machine) -> SimDisk:
    machine.lose_power()
    return SimDisk(machine, Life("again", 2))


def test_the_disk_has_the_interface_of_the_env() -> None:
    disk: Disk = a_disk()[1]
    assert disk.listdir("/nowhere") == []


def test_what_is_written_is_read_across_pages() -> None:
    _, disk, _ = a_disk()
    file = disk.open("/data/f", create=True)
    data = random.Random(1).randbytes(3 * PAGE_BYTES)
    file.pwrite(data, 1000)
    assert file.size() == 1000 + len(data)
    assert file.pread(len(data), 1000) == data
    assert file.pread(2000, 0) == bytes(1000) + data[:1000]
    assert file.pread(100, file.size() - 10) == data[-10:]


def test_a_disk_that_is_put_back_is_durable_as_it_was_and_nothing_else() -> None:
    machine, disk, _ = a_disk()
    assert not machine.put_back()
    file = disk.open("/data/f", create=True)
    file.pwrite(b"before", 0)  # never synced
    machine.keep()
    for _ in range(2):
        file = disk.open("/data/f")
        file.pwrite(b"behind", 0)
        file.sync()
        disk.open("/data/g", create=True)
        assert machine.put_back()
        after = after_power(machine)
        assert read_file(after, "/data/f") == b"before"
        assert not after.exists("/data/g")


def test_without_descriptors_what_is_open_goes_on_and_nothing_else_is_opened() -> None:
    machine, disk, _ = a_disk()
    file = disk.open("/data/f", create=True)
    machine.faults.no_descriptors = True
    assert machine.faults.any
    file.pwrite(b"written", 0)
    file.sync()
    opening: list[Callable[[], object]] = [
        lambda: disk.open("/data/g", create=True),
        lambda: disk.sync_dir("/data"),
        lambda: disk.listdir("/data"),
        lambda: disk.lock("/data/lock"),
    ]
    for call in opening:
        with pytest.raises(OSError, match="too many open files"):
            call()
    assert not disk.exists("/data/g")
    machine.faults.no_descriptors = False
    assert disk.open("/data/f").pread(7, 0) == b"written"


def test_a_killed_process_loses_nothing_it_wrote() -> None:
    machine, disk, life = a_disk()
    disk.open("/data/f", create=True).pwrite(b"kept", 0)
    life.alive = False
    machine.process_died(life)
    again = SimDisk(machine, Life("again", 2))
    assert read_file(again, "/data/f") == b"kept"
    with pytest.raises(OSError, match="dead"):
        disk.open("/data/f")


def test_synced_bytes_and_names_survive_every_power_failure() -> None:
    for seed in range(50):
        machine, disk, _ = a_disk(seed)
        file = disk.open("/data/f", create=True)
        data = random.Random(seed).randbytes(5 * PAGE_BYTES + 17)
        file.pwrite(data, 0)
        file.sync()
        disk.sync_dir("/data")
        file.pwrite(b"later", len(data))
        assert read_file(after_power(machine), "/data/f")[: len(data)] == data


def test_unsynced_pages_survive_as_any_subset_and_may_be_torn() -> None:
    outcomes, torn = set(), 0
    for seed in range(60):
        machine, disk, _ = a_disk(seed)
        file = disk.open("/data/f", create=True)
        file.truncate(4 * PAGE_BYTES)
        file.sync()
        disk.sync_dir("/data")
        file.pwrite(b"x" * (4 * PAGE_BYTES), 0)
        data = read_file(after_power(machine), "/data/f")
        pages = [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
        outcomes.add(tuple(page == b"x" * PAGE_BYTES for page in pages))
        for page in pages:
            sectors = {page[at : at + SECTOR_BYTES] for at in range(0, PAGE_BYTES, SECTOR_BYTES)}
            assert sectors <= {b"x" * SECTOR_BYTES, bytes(SECTOR_BYTES)}
            torn += len(sectors) == 2
    assert len(outcomes) > 8
    assert (False, True, True, True) in outcomes or (False, False, True, True) in outcomes
    assert torn > 10


def test_an_unsynced_rename_is_lost_or_kept_but_never_half() -> None:
    seen = set()
    for seed in range(40):
        machine, disk, _ = a_disk(seed)
        write_file(disk, "/data/f", b"old")
        new = disk.open("/data/f.tmp", create=True)
        new.pwrite(b"new", 0)
        new.sync()
        disk.replace("/data/f.tmp", "/data/f")
        seen.add(read_file(after_power(machine), "/data/f"))
    assert seen == {b"old", b"new"}


def test_write_file_leaves_the_old_or_the_new_content() -> None:
    for seed in range(40):
        machine, disk, _ = a_disk(seed)
        write_file(disk, "/data/f", b"old")
        write_file(disk, "/data/f", b"new", backup=True)
        disk = after_power(machine)
        assert read_file(disk, "/data/f") == b"new"
        assert read_file(disk, "/data/f.bak") == b"old"


def test_a_created_file_is_gone_unless_its_directory_was_synced() -> None:
    kept = 0
    for seed in range(40):
        machine, disk, _ = a_disk(seed)
        disk.open("/data/f", create=True).sync()
        kept += after_power(machine).exists("/data/f")
    assert 0 < kept < 40


def test_a_truncate_is_done_or_not_never_for_some_pages() -> None:
    seen = set()
    for seed in range(40):
        machine, disk, _ = a_disk(seed)
        file = disk.open("/data/f", create=True)
        file.pwrite(b"x" * (8 * PAGE_BYTES), 0)
        file.sync()
        disk.sync_dir("/data")
        file.truncate(PAGE_BYTES)
        seen.add(read_file(after_power(machine), "/data/f"))
    assert seen == {b"x" * PAGE_BYTES, b"x" * (8 * PAGE_BYTES)}


def test_after_a_failed_sync_the_pages_are_lost_even_when_a_later_sync_succeeds() -> None:
    machine, disk, _ = a_disk()
    file = disk.open("/data/f", create=True)
    file.truncate(PAGE_BYTES)
    file.sync()
    disk.sync_dir("/data")
    file.pwrite(b"lost", 0)
    machine.faults.sync_errors = 1
    with pytest.raises(OSError) as error:
        file.sync()
    assert error.value.errno == errno.EIO
    file.sync()
    assert file.pread(4, 0) == b"lost"
    assert read_file(after_power(machine), "/data/f")[:4] == bytes(4)


@pytest.mark.parametrize("name", ["/data/f", "/data/commitlog/f"])
def test_the_kernel_drops_what_a_failed_sync_left_of_a_log_by_chance(name: str) -> None:
    seen = set()
    for seed in range(12):
        machine, disk, life = a_disk(seed)
        disk.makedirs("/data/commitlog")
        file = disk.open(name, create=True)
        file.pwrite(b"safe", 0)
        file.sync()
        file.pwrite(b"lost", 0)
        file.pwrite(b"kept", PAGE_BYTES)
        machine.faults.sync_errors = 1
        with pytest.raises(OSError, match="sync failed"):
            file.sync()
        file.pwrite(b"kept", PAGE_BYTES)  # dirty again
        machine.process_died(life)
        after = machine.content(name)
        assert after[PAGE_BYTES:] == b"kept"
        seen.add(after[:4])
    assert seen == ({b"safe", b"lost"} if "commitlog" in name else {b"lost"})


def test_what_was_written_to_abort_and_not_synced_may_go_with_the_log() -> None:
    seen = set()
    for seed in range(40):
        machine, disk, life = a_disk(seed)
        disk.makedirs("/data/commitlog")
        files = [disk.open(name, create=True) for name in ("/data/commitlog/f", "/data/abort")]
        for file in files:
            file.pwrite(b"safe", 0)
            file.sync()
            file.pwrite(b"lost", 0)
        machine.faults.sync_errors = 1
        with pytest.raises(OSError, match="sync failed"):
            files[0].sync()
        machine.process_died(life)
        seen.add(tuple(machine.content(file.path) for file in files))
    assert seen == {(b"lost", b"lost"), (b"safe", b"lost"), (b"safe", b"safe")}


def test_reads_and_writes_fail_as_often_as_told_and_change_nothing() -> None:
    machine, disk, _ = a_disk()
    file = disk.open("/data/f", create=True)
    file.pwrite(b"kept", 0)
    machine.faults.write_errors = machine.faults.read_errors = 1
    assert machine.faults.any
    for call in (lambda: file.pwrite(b"lost", 0), lambda: file.pread(4, 0)):
        with pytest.raises(OSError) as error:
            call()
        assert error.value.errno == errno.EIO
    assert file.pread(4, 0) == b"kept"
    assert not machine.faults.any


def test_a_full_disk_refuses_new_blocks_only() -> None:
    machine, disk, _ = a_disk()
    file = disk.open("/data/f", create=True)
    file.allocate(8192)
    machine.faults.full = True
    file.pwrite(b"x" * 8192, 0)
    with pytest.raises(OSError) as error:
        file.pwrite(b"x", 8192)
    assert error.value.errno == errno.ENOSPC
    assert disk.usage("/data").free_bytes == 0


def test_a_large_preallocated_file_costs_no_memory() -> None:
    machine, disk, _ = a_disk()
    file = disk.open("/data/f", create=True)
    file.allocate(1 << 30)
    file.pwrite(b"x", (1 << 30) - 1)
    inode = machine.find("/data/f")
    assert inode is not None
    assert len(inode.pages) == 1
    assert file.pread(2, (1 << 30) - 2) == b"\0x"


def test_a_lock_is_held_by_one_life_and_freed_by_its_death() -> None:
    machine, disk, life = a_disk()
    disk.lock("/data/lock")
    other = SimDisk(machine, Life("b", 2))
    with pytest.raises(BlockingIOError):
        other.lock("/data/lock")
    life.alive = False
    machine.process_died(life)
    other.lock("/data/lock").release()


def test_a_bit_flip_changes_one_bit_of_written_data() -> None:
    machine, disk, _ = a_disk()
    disk.open("/data/f", create=True).pwrite(bytes(5000), 0)
    flipped = machine.flip_bit("/data/")
    assert flipped is not None
    path, offset = flipped
    data = read_file(disk, path)
    assert sum(byte.bit_count() for byte in data) == 1
    assert data[offset] != 0


@pytest.mark.parametrize("synced", [False, True])
def test_a_removed_directory_is_back_with_its_files_or_gone_for_good(synced: bool) -> None:
    came_back = 0
    for seed in range(30):
        machine, disk, _ = a_disk(seed)
        disk.makedirs("/data/index")
        disk.open("/data/index/f", create=True).sync()
        disk.sync_dir("/data/index")
        disk.rmtree("/data/index")
        if synced:
            disk.sync_dir("/data")
        again = after_power(machine)
        assert again.is_dir("/data/index") is again.exists("/data/index/f")
        came_back += again.is_dir("/data/index")
    assert came_back == 0 if synced else 0 < came_back < 30
