"""The promise of sources: wherever a replica's bytes lie, the audit says what it says of a local copy."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.engines.lines import ranges, read_lines
from audit.engines.local import LocalEngine
from audit.ledgers.ledger import read_ledger
from audit.reading.storage import LocalStorage, open_storage, parse_stores
from audit.run import Report, audit
from audit.sources import unpacked
from audit.sources.http import CONNECTIONS
from audit.sources.ssh import SESSIONS, SshStorage, ssh_storage
from model.errors import ConfigError
from tests.audit.plants import make_queued
from tests.audit.sources import (
    ABSENT_HOST,
    USER,
    compress_files,
    compressed,
    served,
    ssh_in,
    tarred,
)
from tests.audit.stores import LogWriter, ledger_of, patch, queue_file


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What is unpacked lies in a folder of this test's, and none of it stays."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(unpacked.HELD, "_swept", False)
    yield folder
    SESSIONS.close()
    CONNECTIONS.close()
    unpacked.HELD.release()
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def group(tmp_path: Path) -> tuple[list[Path], Path]:
    """Three replicas and their ledger; of the second one a byte is wrong and a file of a queue is gone."""
    stores, ledger = make_queued(tmp_path / "group")
    patch(stores[1], 700, b"\xff")
    queue_file(stores[1], "T", 1, 10).unlink()
    return stores, ledger


def told(locations: list[str], ledger: str | None, names: str = "abc") -> Report:
    engine = LocalEngine()
    specs = parse_stores([f"{name}={location}" for name, location in zip(names, locations, strict=True)])
    try:
        return audit(specs, engine, ledger_path=ledger)
    finally:
        engine.close()


def lines(ledger: str) -> int:
    found = read_ledger(ledger)
    found.close()
    return len(found)


def check_same(stores: list[Path], ledger: Path, locations: list[str], elsewhere: str) -> None:
    expected = told(list(map(str, stores)), str(ledger))
    assert {"bytes_differ", "cq_missing"} & {f.kind for f in expected.findings}
    found = told(locations, elsewhere)
    assert found.unreadable == {}
    assert found.findings == expected.findings
    assert (found.verdict, found.records) == (expected.verdict, expected.records)


def test_a_web_server_with_ranges(group: tuple[list[Path], Path]) -> None:
    stores, ledger = group
    with served(stores[0].parent) as host:
        urls = [f"http://reader:s3cr3t@{host}/{store.name}/" for store in stores]
        check_same(stores, ledger, urls, f"http://{host}/{ledger.name}")


def test_a_shell_on_another_host(
    group: tuple[list[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, ledger = group
    log = ssh_in(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    hosts = {
        "replicas": [
            {"name": "a", "host": ABSENT_HOST, "user": "keelmq", "port": 2222, "store": str(stores[0])},
            {"name": "b", "host": ABSENT_HOST, "store": str(stores[1])},
            {"name": "c", "host": "127.0.0.1", "store": str(stores[2])},
        ]
    }
    (tmp_path / "hosts.json").write_text(json.dumps(hosts))
    specs = parse_stores([f"@{tmp_path / 'hosts.json'}"])
    assert [spec.name for spec in specs] == ["a", "b", "c"]
    check_same(stores, ledger, [s.location for s in specs], f"ssh://{ABSENT_HOST}{ledger}")
    asked = log.read_text().splitlines()
    assert len(asked) == len(set(asked)) == 2, "one shell a host, kept; none to this machine"
    assert f"-p 2222 -- keelmq@{ABSENT_HOST}" in min(asked, key=lambda line: "-p" not in line)


def test_behind_a_port_or_as_another_user_this_machine_is_another_host(tmp_path: Path) -> None:
    """A forwarded port, a container; and one store by two ways is no second replica."""
    (tmp_path / "commitlog").mkdir()
    for host in ("localhost:2222", "keelmq@localhost", "127.0.0.1:22"):
        assert isinstance(ssh_storage(f"ssh://{host}{tmp_path}"), SshStorage)
    assert isinstance(ssh_storage(f"ssh://localhost{tmp_path}"), LocalStorage)
    for other in (f"ssh://localhost{tmp_path}", f"fsspec+file://{tmp_path}"):
        with pytest.raises(ConfigError, match="given twice"):
            parse_stores([f"a={tmp_path}", f"b={other}"])


def test_file_systems_of_fsspec(group: tuple[list[Path], Path]) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs keelmq[backup]")
    stores, ledger = group
    files = fsspec.filesystem("memory")
    try:
        files.put(str(stores[0].parent), "/group", recursive=True)
        root = "memory://group" if files.exists("/group/r0") else f"memory://group/{stores[0].parent.name}"
        (stores[0] / "consumequeue" / "T" / "notes.txt").write_text("no queue")
        (stores[0] / "consumequeue" / "stray").write_text("no topic")
        files.put(str(stores[0] / "consumequeue" / "stray"), f"{root}/{stores[0].name}/consumequeue/stray")
        urls = [f"{root}/{stores[0].name}", f"{root}/{stores[1].name}", f"fsspec+file://{stores[2]}"]
        check_same(stores, ledger, urls, f"{root}/{ledger.name}")
        rows = [json.loads(line) for line in ledger.read_text().splitlines()]
        pq.write_table(pa.Table.from_pylist(rows), ledger.with_suffix(".parquet"))
        files.put(str(ledger.with_suffix(".parquet")), "/group/acked.parquet")
        assert lines("memory://group/acked.parquet") == len(rows)
        (part,) = ranges("memory://group/acked.parquet")
        assert sum(map(len, read_lines(part))) == len(rows)
    finally:
        files.store.clear()
        files.pseudo_dirs[:] = [""]


def test_compressed_copies(group: tuple[list[Path], Path], tmp_path: Path, temporary: Path) -> None:
    stores, ledger = group
    places = [str(tarred(stores[0], tmp_path / "r0.tar.gz")), str(tarred(stores[1], tmp_path / "r1.tar.zst"))]
    shutil.copytree(stores[2], tmp_path / "single")
    compress_files(tmp_path / "single", "gz")
    packed = tmp_path / "acked.jsonl.bz2"
    packed.write_bytes(compressed(ledger.read_bytes(), "bz2"))
    check_same(stores, ledger, [*places, str(tmp_path / "single")], str(packed))
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert left == [], "nothing unpacked stays behind the audit"
    (part,) = ranges(str(packed))
    assert sum(map(len, read_lines(part))) == lines(str(packed))


def test_a_relative_path_is_of_the_folder_one_is_in(
    group: tuple[list[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive in it was looked up at the root of all files."""
    stores, ledger = group
    tarred(stores[0], tmp_path / "r0.tar.gz")
    tarred(stores[1].parent, tmp_path / "all.tar")
    monkeypatch.chdir(tmp_path)
    check_same(stores, ledger, ["r0.tar.gz", "all.tar#group/r1", "group/r2"], str(ledger))
    named = parse_stores(["a=r0.tar.gz", "b=all.tar#group/r1", "c=group/r2"])
    unnamed = parse_stores(["r0.tar.gz", "all.tar#group/r1", "group/r2"])
    assert [spec.location for spec in named] == [spec.location for spec in unnamed]
    assert all(spec.location.startswith(f"{tmp_path}/") for spec in named)
    assert open_storage("r0.tar.gz").exists("commitlog")


def test_a_compressed_copy_on_a_server_and_several_stores_in_one(
    group: tuple[list[Path], Path], tmp_path: Path
) -> None:
    stores, ledger = group
    all_of = tarred(stores[0].parent, tmp_path / "all.tar")
    with served(tmp_path) as host:
        inside = [f"http://{host}/all.tar#{stores[0].parent.name}/{store.name}" for store in stores]
        check_same(stores, ledger, inside, str(ledger))
    with pytest.raises(OSError, match="several stores in this archive"):
        open_storage(str(all_of))
    with pytest.raises(OSError, match="no folder no/such"):
        open_storage(f"{all_of}#no/such")
    with pytest.raises(OSError, match="no folder"):
        open_storage(f"{all_of}#../..")


def test_a_copy_that_cannot_be_unpacked_is_named(group: tuple[list[Path], Path], tmp_path: Path) -> None:
    """A whole archive is a replica that cannot be read; a single file is a finding."""
    stores, ledger = group
    whole = tarred(stores[0], tmp_path / "r0.tar.gz")
    whole.write_bytes(whole.read_bytes()[:-200])
    compress_files(stores[1], "zst")
    segment = min((stores[1] / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes()[:-30])
    report = told([str(whole), str(stores[1]), str(stores[2])], str(ledger))
    assert "r0.tar.gz" in report.unreadable["a"]
    assert "Truncated" in report.unreadable["a"] or "not a whole archive" in report.unreadable["a"]
    unread = [f for f in report.findings if f.kind == "file_unreadable"]
    assert [(f.replica, f.segment) for f in unread] == [("b", segment.name.removesuffix(".zst"))]
    assert report.verdict == "diverged"


@pytest.mark.parametrize("how", ["cut", "changed"])
@pytest.mark.parametrize("member", [1, -3, -1])
def test_an_archive_that_lacks_members_is_a_replica_that_cannot_be_read(
    member: int, how: str, tmp_path: Path
) -> None:
    """It is cut at a member's begin, or has a header there that is none: what is before would look whole."""
    stores, ledger = make_queued(tmp_path)
    whole = tarred(stores[0], tmp_path / "r0.tar")
    with tarfile.open(whole) as archive:
        at = archive.getmembers()[member].offset
    raw = bytearray(whole.read_bytes())
    raw[at] ^= 1
    whole.write_bytes(raw[:at] if how == "cut" else raw)
    report = told([str(whole), str(stores[1]), str(stores[2])], str(ledger))
    assert "without its end mark" in report.unreadable["a"]
    assert report.verdict == "unfinished"


def test_a_server_without_ranges_or_without_an_answer_is_named(group: tuple[list[Path], Path]) -> None:
    stores, _ = group
    with served(stores[0].parent, ranges=False) as host:
        files = open_storage(f"http://{host}/{stores[0].name}?token=s3cr3t")
        assert files.exists("commitlog")
        assert not files.exists("nothing")
        assert files.listdir("nothing") == []
        with pytest.raises(OSError, match="whole files only") as caught:
            files.read("checkpoint", 0, 40)
        assert f"{host}/{stores[0].name}?token=***: checkpoint" in str(caught.value)
        assert "s3cr3t" not in str(caught.value)
        with pytest.raises(PermissionError, match="403"):
            open_storage(f"http://else:s3cr3t@{host}/{stores[0].name}").listdir("commitlog")
    CONNECTIONS.close()
    with pytest.raises(OSError, match=f"no answer: .*{host}") as caught:
        files.read("checkpoint", 0, 40)
    assert USER not in str(caught.value)


@pytest.mark.parametrize("suffix", ["", "gz"])
def test_behind_a_server_without_ranges_no_file_is_wrong(
    suffix: str, group: tuple[list[Path], Path], tmp_path: Path
) -> None:
    """Each file was one that cannot be read, and each acknowledged message lost on a sound group."""
    stores, ledger = group
    whole = told(list(map(str, [stores[0], stores[2]])), str(ledger), "ab")
    if suffix:
        compress_files(stores[1], suffix)
    with served(stores[0].parent, ranges=False) as host:
        report = told([str(stores[0]), f"http://{host}/{stores[1].name}", str(stores[2])], str(ledger), "acb")
        assert "nginx, Apache and Caddy send them" in report.unreadable["c"]
        assert (report.verdict, report.findings) == ("unfinished", whole.findings)
        alone = told([f"http://{host}/{store.name}" for store in stores[1:]], None, "bc")
        assert (alone.verdict, sorted(alone.unreadable)) == ("unfinished", ["b", "c"])


def test_a_host_that_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    ssh_in(tmp_path / "bin", "echo 'keelmq@192.0.2.7: Permission denied (publickey).' >&2; exit 255")
    files = open_storage(f"ssh://keelmq@{ABSENT_HOST}{tmp_path}")
    with pytest.raises(OSError, match="Permission denied") as caught:
        files.listdir("commitlog")
    assert f"ssh://{ABSENT_HOST}{tmp_path}: commitlog" in str(caught.value)


def test_what_a_shell_reads_is_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of names that a shell would take for more, and behind a file's end."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    ssh_in(tmp_path / "bin")
    store = tmp_path / "it's a $(store)"
    (store / "%RETRY%; x").mkdir(parents=True)
    data = bytes(range(256)) * 9000
    (store / "%RETRY%; x" / "0").write_bytes(data)
    far, here = open_storage(f"ssh://192.0.2.8{store}"), open_storage(str(store))
    file = "%RETRY%; x/0"
    for one in (far, here):
        assert (one.listdir(""), one.size(file)) == (["%RETRY%; x"], len(data))
    assert far.mtime_ns(file) == here.mtime_ns(file)
    assert far.read(file, 5, 2_000_001) == data[5:2_000_006]
    assert far.read(file, len(data) - 3, 10) == data[-3:]
    assert far.read(file, len(data) + 3, 10) == b""
    assert (far.exists(file), far.exists("none"), far.exists(f"{file}/x")) == (True, False, False)
    assert far.listdir("none") == []
    with pytest.raises(FileNotFoundError):
        far.read("none", 0, 1)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("[]", "lists no replica"),
        ('[{"name": "a"}]', "store is missing"),
        ('[{"name": "a", "store": "x", "hosts": 1}]', "unknown name 'hosts'"),
        ('[{"name": "a", "host": "h", "store": "x"}]', "an absolute path on h"),
        ('[{"name": "../a", "store": "x"}]', "no name of a replica"),
        ('[{"name": "a", "host": "h", "port": "x", "store": "/x"}]', "invalid literal"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(rows: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text(f'{{"replicas": {rows}}}')
    with pytest.raises(ConfigError, match=f"hosts.json: .*{why}"):
        parse_stores([f"@{tmp_path / 'hosts.json'}"])


def test_an_archive_writes_nowhere_else(tmp_path: Path, temporary: Path) -> None:
    writer = LogWriter(tmp_path / "s")
    writer.fill(3)
    (tmp_path / "outside").write_text("x")
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        archive.add(tmp_path / "s", "s")
        archive.add(tmp_path / "outside", "../outside")
    with pytest.raises(OSError, match="is no path inside it"):
        open_storage(str(tmp_path / "s.tar"))
    assert not list(temporary.rglob("outside"))


def test_zeros_of_a_copy_take_no_room(tmp_path: Path) -> None:
    """A segment is reserved at its full size; a gigabyte of them is a few kilobytes in a copy."""
    (tmp_path / "s" / "commitlog").mkdir(parents=True)
    segment = tmp_path / "s" / "commitlog" / f"{0:020d}.gz"
    segment.write_bytes(compressed(b"x" + bytes(8 << 20), "gz"))
    files = open_storage(str(tmp_path / "s"))
    name = f"commitlog/{0:020d}"
    assert (files.listdir("commitlog"), files.size(name)) == ([f"{0:020d}"], (8 << 20) + 1)
    assert files.read(name, 0, 2) == b"x\0"
    (held,) = unpacked.HELD._locks
    assert (held / "file").stat().st_blocks * 512 <= 1 << 20
    files.close()


def test_what_an_audit_that_was_killed_unpacked_goes_with_the_next(tmp_path: Path, temporary: Path) -> None:
    root = unpacked._root()
    (root / "0123").mkdir()
    (root / "0123" / "file").write_bytes(b"x")
    (root / "0123.lock").touch()
    writer = LogWriter(tmp_path / "s")
    writer.fill(3)
    open_storage(str(tarred(tmp_path / "s", tmp_path / "s.tar.bz2"))).close()
    assert not (root / "0123").exists()


def test_a_ledger_is_the_same_rows_wherever_it_lies(tmp_path: Path) -> None:
    ledger = tmp_path / "acked.jsonl"
    shutil.copy(ledger_of("ha-81"), ledger)
    expected = [
        row for part in ranges(str(ledger)) for table in read_lines(part) for row in table.to_pylist()
    ]
    with served(tmp_path) as host:
        parts = ranges(f"http://{host}/acked.jsonl", 5000)
        assert len(parts) > 3
        assert [r for part in parts for t in read_lines(part) for r in t.to_pylist()] == expected
