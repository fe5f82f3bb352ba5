"""The promise of the production world: files as asked for, one process a lock, tasks with an owner."""

import asyncio
import errno
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from broker.role.lease import Lease
from model.ids import Epoch
from runtime import native, os_env
from runtime.env import read_file, write_file
from runtime.os_env import OsDisk, OsEnv
from runtime.tasks import Tasks


def test_a_file_is_replaced_whole_and_its_former_content_stays_as_backup(tmp_path: Path) -> None:
    disk = OsEnv().disk
    path = str(tmp_path / "a.json")
    write_file(disk, path, b"one", backup=True)
    assert not disk.exists(path + ".bak")
    write_file(disk, path, b"two", backup=True)
    assert read_file(disk, path) == b"two"
    assert read_file(disk, path + ".bak") == b"one"
    assert disk.listdir(str(tmp_path)) == ["a.json", "a.json.bak"]


def test_a_file_that_is_rewritten_keeps_its_mode_and_a_new_one_is_for_owner_and_group(tmp_path: Path) -> None:
    disk, path = OsEnv().disk, tmp_path / "a.yml"
    for mode in (0o600, 0o644):
        path.write_bytes(b"one")
        path.chmod(mode)
        write_file(disk, str(path), b"two", backup=True)
        modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in os.listdir(tmp_path)}
        assert modes == {"a.yml": mode, "a.yml.bak": mode}
    write_file(disk, str(tmp_path / "new"), b"one")
    assert (tmp_path / "new").stat().st_mode & 0o137 == 0


def test_a_file_whose_group_cannot_be_kept_is_for_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []

    def refuses(path: str, uid: int, gid: int) -> None:
        given.append((uid, gid))
        raise PermissionError(errno.EPERM, "not the owner")

    real = os.stat

    def of_others(path: str) -> os.stat_result:
        found = real(path)
        values = list(found)
        values[4:6] = [4711, 4711] if str(path).endswith("a.yml") else values[4:6]
        return os.stat_result(values)

    path = tmp_path / "a.yml"
    path.write_bytes(b"one")
    path.chmod(0o640)
    monkeypatch.setattr(os, "chown", refuses)
    monkeypatch.setattr(os, "stat", of_others)
    write_file(OsDisk(), str(path), b"two")
    monkeypatch.undo()
    assert given == [(4711, 4711), (-1, 4711)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_reads_end_at_the_end_and_writes_go_where_they_are_sent(tmp_path: Path) -> None:
    file = OsEnv().disk.open(str(tmp_path / "f"), create=True)
    file.allocate(8192)
    assert file.size() == 8192
    file.pwrite(b"abc", 8190)
    assert file.pread(10, 8190) == b"abc"
    assert file.pread(10, 9000) == b""
    file.sync()
    file.close()


@pytest.mark.parametrize("offered", [True, False])
def test_bytes_become_zeros_and_their_neighbours_stay(
    tmp_path: Path, offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not offered:
        monkeypatch.setattr(os_env, "_zero_range", lambda descriptor, offset, size: False)
    file = OsEnv().disk.open(str(tmp_path / "f"), create=True)
    size = (3 << 20) + 777
    file.pwrite(b"x" * size, 0)
    file.zero(1001, (2 << 20) + 5)
    file.sync()
    assert file.size() == size
    whole = file.pread(size, 0)
    end = 1001 + (2 << 20) + 5
    assert whole == b"x" * 1001 + bytes(end - 1001) + b"x" * (size - end)
    file.close()


def test_a_directory_is_synced_at_once_and_one_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    disk = OsEnv().disk
    write_file(disk, str(tmp_path / "a"), b"one")
    disk.sync_all(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        disk.sync_all(str(tmp_path / "none"))


def test_opening_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsEnv().disk.open(str(tmp_path / "none"))
    assert OsEnv().disk.listdir(str(tmp_path / "none")) == []


def test_a_lock_keeps_another_process_out_until_it_is_released(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    code = (
        "import sys\n"
        "from runtime.os_env import OsEnv\n"
        "try:\n"
        "    OsEnv().disk.lock(sys.argv[1])\n"
        "except OSError as error:\n"
        "    sys.exit(error.errno)\n"
    )

    def other_process() -> int:
        root = Path(__file__).resolve().parents[2]
        return subprocess.run([sys.executable, "-c", code, path], cwd=root, timeout=60).returncode

    lock = OsEnv().disk.lock(path)
    assert other_process() in (errno.EAGAIN, errno.EACCES)
    lock.release()
    assert other_process() == 0


def test_a_burst_of_connections_waits_in_the_kernel_until_the_loop_comes_to_it() -> None:
    async def body() -> int:
        listener = await OsEnv().network.listen(asyncio.Protocol, "127.0.0.1", 0)
        port = listener.port
        # The loop does nothing meanwhile: what does not fit the queue is told nothing and times out.
        burst = [socket.create_connection(("127.0.0.1", port), timeout=2.0) for _ in range(100)]
        for one in burst:
            one.close()
        listener.close()
        return len(burst)

    assert asyncio.run(body()) == 100


def test_a_port_without_descriptors_says_so_a_few_times_and_serves_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        listener = await OsEnv().network.listen(asyncio.Protocol, "127.0.0.1", 0)
        one = socket.socket()
        one.setblocking(False)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (one.fileno() + 1, limits[1]))
        try:
            assert one.connect_ex(("127.0.0.1", listener.port)) in (0, errno.EINPROGRESS)
            await asyncio.sleep(0.05)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        refused = [record for record in caplog.records if "out of system resource" in record.message]
        assert 0 < len(refused) <= os_env.ACCEPTS_A_TURN
        one.close()
        listener.close()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(body())


def test_a_task_that_fails_is_heard_and_the_others_end_with_their_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        heard: list[BaseException] = []
        tasks = Tasks("owner", heard.append)

        async def fail() -> None:
            raise ValueError("broken")

        tasks.spawn(fail(), name="bad")
        endless = tasks.spawn(asyncio.sleep(3600), name="endless")
        await asyncio.sleep(0.01)
        assert [str(error) for error in heard] == ["broken"]
        await tasks.cancel()
        assert endless.cancelled()
        silent = Tasks("silent")
        silent.spawn(fail(), name="bad")
        await asyncio.sleep(0.01)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "silent.bad failed" in caplog.text


def test_a_lease_runs_out_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended_s = 60
    read = time.clock_gettime_ns

    def later(clock: int) -> int:
        return read(clock) + (suspended_s * 10**9 if clock == time.CLOCK_BOOTTIME else 0)

    assert OsEnv().monotonic_ms is os_env._monotonic_ms
    assert os_env._monotonic_ms.args == (time.CLOCK_BOOTTIME,)
    now_ms = partial(os_env._clock_ms, time.CLOCK_BOOTTIME)  # ``time`` can be told of a suspension
    asked_ms = now_ms()
    lease = Lease(now_ms)
    lease.answered(Epoch(0), asked_ms, suspended_s * 1000)
    assert lease.holds()
    monkeypatch.setattr(time, "clock_gettime_ns", later)
    assert not lease.holds()
    assert now_ms() >= asked_ms + suspended_s * 1000


@pytest.mark.skipif(native.module() is None, reason="not compiled")
@pytest.mark.parametrize("clock", [time.CLOCK_REALTIME, time.CLOCK_BOOTTIME])
def test_a_clock_says_the_same_where_it_is_asked_by_compiled_code(clock: int) -> None:
    module = native.module()
    assert module is not None
    before_ms, said_ms, after_ms = os_env._clock_ms(clock), module.clock_ms(clock), os_env._clock_ms(clock)
    assert before_ms - 0.001 <= said_ms <= after_ms + 0.001  # a double has 53 bits
    with pytest.raises(OSError, match="no clock"):
        module.clock_ms(9999)


def test_what_is_made_is_for_owner_and_group_only_and_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """Messages lie in these files: not every user of the machine may read them, whatever the umask says."""
    old = os.umask(0)
    try:
        disk = OsDisk()
        kept = tmp_path / "kept"
        kept.mkdir(mode=0o755)
        (kept / "file").touch(mode=0o644)
        disk.makedirs(f"{kept}/a/b")
        disk.makedirs(f"{kept}/a/b")
        for name in ("a/b/new", "file"):
            disk.open(f"{kept}/{name}", create=True).close()
        disk.lock(f"{kept}/lock").release()
    finally:
        os.umask(old)
    modes = {p.relative_to(tmp_path).as_posix(): p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    assert modes == {
        "kept": 0o755,
        "kept/file": 0o644,
        "kept/a": 0o750,
        "kept/a/b": 0o750,
        "kept/a/b/new": 0o640,
        "kept/lock": 0o640,
    }
    with pytest.raises(OSError, match="exists"):
        disk.makedirs(f"{kept}/file")


def test_blocks_reserved_for_root_are_neither_used_nor_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """`df` says 63 % of this file system; with the reserved blocks counted as used it were 86 %."""
    values = [4096, 4096, 100_000, 76_162, 14_000, 0, 0, 0, 0, 255]  # blocks, free of them, free for us
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
    usage = OsDisk().usage("/")
    assert usage.free_bytes == 14_000 * 4096
    assert usage.total_bytes == (23_838 + 14_000) * 4096
    assert 100 * (usage.total_bytes - usage.free_bytes) // usage.total_bytes == 63
