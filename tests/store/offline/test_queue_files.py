"""The promise of a repair to files of queues: they get the size that their broker opens, or none is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from model.errors import DiskError
from model.queue_sizes import USUAL, Told, told_by
from runtime.os_env import OsDisk, OsEnv
from store.offline import written
from store.offline.directory import SegmentInfo
from store.offline.queues.sizes import UNTOLD
from store.offline.repair import repair
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import config, fill, opened, records_of

COUNT = 90
QUEUES = 2
PER_FILE = 200
"""Bytes: ten entries; a queue has five files, half of the last one empty."""


@pytest.mark.parametrize(
    ("queues", "size", "sure"),
    [
        ("0:400 400:400", 400, True),
        ("0:200 400:400, 0:400", 400, True),
        ("0:800 400:400, 0:400", 400, True),
        ("0:0 400:0", 400, False),
        ("0:0 400:0 800:0", 400, True),
        ("0:200", 200, False),
        ("400:100", 100, False),
        (f"0:{USUAL}", USUAL, True),
        ("0:200, 0:400", 400, False),
        ("0:7, 0:401, 0:400, 0:400", 400, True),
        ("0:0", 0, False),
        ("", 0, False),
        ("0:400 400:400 800:400 900:400", 400, True),
    ],
)
def test_what_most_files_and_names_say_is_the_size(queues: str, size: int, sure: bool) -> None:
    files = [[_info(*file.split(":")) for file in queue.split()] for queue in queues.split(", ")]
    assert told_by(files) == Told(size, sure)


@pytest.mark.parametrize("ahead", [1, 7, 5000])
@pytest.mark.parametrize("which", ["all", "first", "last"])
def test_a_file_of_another_files_name_gets_its_own(which: str, ahead: int) -> None:
    """A broker would begin the queue there, and give out none of its messages."""
    disk = _written()
    files = _files(disk)
    under = "/store/consumequeue/"
    of_queue = sorted(path for path in files if path.startswith("T/1/"))
    assert len(of_queue) == 5
    for path in reversed({"all": of_queue, "first": of_queue[:1], "last": of_queue[-1:]}[which]):
        start = int(path.rpartition("/")[2]) + (ahead + 5) * PER_FILE
        disk.replace(under + path, f"{under}T/1/{start:020d}")
    outcome = repair(disk, "/store", [], config=config(queue_file_bytes=PER_FILE))
    assert outcome.left == []
    assert _files(disk) == files
    assert _served(disk) == [COUNT // QUEUES] * QUEUES


def _info(start: str, size: str) -> SegmentInfo:
    return SegmentInfo(int(start), int(size), start)


def _written(root: str = "/store", env: FaultyEnv | None = None, queues: int = QUEUES) -> FaultyDisk:
    env = env or FaultyEnv()

    async def run() -> None:
        async with opened(env, root=root, queue_file_bytes=PER_FILE) as store:
            await fill(store, COUNT, queues=queues)

    completed(run())
    return env.disk


def _files(disk: FaultyDisk, root: str = "/store") -> dict[str, bytes]:
    under = f"{root}/consumequeue/"
    return {p.removeprefix(under): bytes(node.cache) for p, node in disk.nodes.items() if p.startswith(under)}


def _served(disk: FaultyDisk, size: int = PER_FILE, root: str = "/store") -> Sequence[int]:
    async def run() -> Sequence[int]:
        async with opened(FaultyEnv(disk), root=root, queue_file_bytes=size) as store:
            return [len(records_of(store, "T", queue)) for queue in range(QUEUES)]

    return completed(run())


def _resize(disk: FaultyDisk, path: str, size: int) -> None:
    file = disk.open(path)
    file.truncate(size)
    file.close()


@pytest.mark.parametrize("size", [0, 7, 20, 100, 199, 201, 400])
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("queue", [0, 1])
def test_a_file_of_another_size_is_as_it_was(queue: int, number: int, size: int) -> None:
    """Also the first file of the first queue, which once told the size of all."""
    disk = _written()
    right = _files(disk)
    path = f"consumequeue/T/{queue}/{number * PER_FILE:020}"
    _resize(disk, f"/store/{path}", size)
    told = [row for row in verify(disk, "/store")["damage"] if row["file"] == path]
    assert [(row["kind"], row["text"]) for row in told] == [("cq_wrong", f"has {size} bytes, not {PER_FILE}")]
    outcome = repair(disk, "/store", [])
    assert (outcome.left, outcome.resized) == ([], 1)
    assert _files(disk) == right
    again = repair(disk, "/store", [])
    assert (again.entries, again.resized) == (0, 0)
    assert _files(disk.crash()) == right, "durable"
    assert list(_served(disk)) == [COUNT // QUEUES] * QUEUES


@pytest.mark.parametrize("peers", [["/a", "/b"], ["/a"]])
@pytest.mark.parametrize("gone", ["consumequeue", "consumequeue/T/0"])
def test_replicas_tell_the_size_of_queues_that_are_gone(gone: str, peers: list[str]) -> None:
    env = FaultyEnv()
    for root in ("/store", *peers):
        _written(root, env)
    right = _files(env.disk)
    env.disk.rmtree(f"/store/{gone}")
    assert repair(env.disk, "/store", peers).left == []
    assert _files(env.disk) == right
    assert list(_served(env.disk)) == [COUNT // QUEUES] * QUEUES


def test_where_nothing_tells_the_size_no_file_is_made() -> None:
    disk = _written()
    disk.rmtree("/store/consumequeue")
    left = repair(disk, "/store", []).left
    assert [row["why"] for row in left][-1] == UNTOLD
    assert _files(disk) == {}
    assert list(_served(disk.crash())) == [COUNT // QUEUES] * QUEUES, "its broker makes them"
    assert repair(disk, "/store", [], config=config(queue_file_bytes=PER_FILE)).left == []
    assert list(_served(disk)) == [COUNT // QUEUES] * QUEUES


def test_of_two_files_the_first_is_gone_and_the_other_was_cut() -> None:
    """Its size would do for a queue's files, and its broker would open none of them."""
    disk = _written(queues=1)
    for start in range(PER_FILE * 2, COUNT * 20, PER_FILE):
        disk.remove(f"/store/consumequeue/T/0/{start:020}")
    disk.remove(f"/store/consumequeue/T/0/{0:020}")
    last = f"T/0/{PER_FILE:020}"
    _resize(disk, f"/store/consumequeue/{last}", 20)
    before = _files(disk)
    assert repair(disk, "/store", []).left[-1]["why"] == UNTOLD
    assert _files(disk) == before
    assert repair(disk, "/store", [], config=config(queue_file_bytes=PER_FILE)).left == []
    assert verify(disk, "/store")["damage"] == []
    assert _served(disk)[0] == COUNT


def test_a_file_whose_name_is_no_multiple_is_named_and_keeps_no_other_queue_from_being_mended() -> None:
    disk = _written()
    disk.rmtree("/store/consumequeue/T/1")
    file = disk.open(f"/store/consumequeue/T/0/{PER_FILE * 9 + 20:020}", create=True)
    file.truncate(PER_FILE)
    file.close()
    (row,) = repair(disk, "/store", []).left
    assert row["file"] == f"consumequeue/T/0/{PER_FILE * 9 + 20:020}"
    assert "move it away" in row["why"]
    disk.remove(f"/store/{row['file']}")
    assert verify(disk, "/store")["damage"] == []


@pytest.mark.parametrize("name", ["X", "T/7"])
def test_a_file_where_a_queues_folder_should_be_is_named(name: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(OsEnv(), root=str(tmp_path / "s")) as store:
            await fill(store, 4)

    completed(run())
    path = tmp_path / "s" / "consumequeue" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 200)
    (row,) = verify(OsDisk(), str(tmp_path / "s"))["damage"]
    assert (row["kind"], row["file"]) == ("file_unreadable", f"consumequeue/{name}")
    assert "move it away" in row["text"]
    (left,) = repair(OsDisk(), str(tmp_path / "s"), []).left
    assert left["file"] == f"consumequeue/{name}"
    with pytest.raises(DiskError, match="move it away"):
        completed(run())


def test_what_is_left_of_one_queue_for_one_reason_is_one_row_behind_what_is_of_the_log() -> None:
    disk = _written()
    cache = disk.nodes[f"/store/commitlog/{0:020}"].cache
    cache[2000:3000] = bytes(1000)
    left = repair(disk, "/store", []).left
    kinds = [row["kind"] for row in left]
    assert kinds[0] == "unreadable_region"
    assert sorted((row["kind"], row["file"]) for row in left) == sorted(
        {(row["kind"], row["file"]) for row in left}
    )
    assert sum(row["count"] for row in left if row["kind"] == "cq_dangling") > 2


def test_a_repair_has_few_files_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may open a thousand, and a store has queues by the thousand."""
    monkeypatch.setattr(written, "OPEN_FILES_MAX", 8)
    disk = _written(queues=40)
    paths = [f"/store/consumequeue/T/{queue_id}/{0:020}" for queue_id in range(40)]
    files = written.Written(disk)
    for path in paths * 2:
        files.put((path, 11), b"\x7f")
        assert len(files._open) <= 8
    files.sync()
    assert {disk.open(path).pread(1, 11) for path in paths} == {b"\x7f"}
    assert repair(disk, "/store", [], config=config(queue_file_bytes=PER_FILE)).entries == 40
