"""The promises of keelmq store: what RocketMQ wrote is listed as its manifest says, and damage is found."""

import base64
import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from admin.commands.store import store
from admin.exits import DONE, FAILED, UNFINISHED, USAGE, WARNINGS, run
from tests import GOLDEN, unpack_archive

STORES = GOLDEN / "store"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("stores")
    for name in ("plain-11", "flip-61"):
        unpack_archive(STORES / f"{name}.tar.gz", where)
    return where


def test_dump_lists_every_record_as_the_manifest_has_it(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, ["dump", str(stores / "plain-11")]) == DONE
    found = {line["commitLogOffset"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    manifest = json.loads((STORES / "plain-11.manifest.json").read_text())
    same = ["topic", "queueId", "queueOffset", "storeSize", "flag", "bodyCRC", "msgId", "bodySha256"]
    assert manifest["pulled"]
    for pulled in manifest["pulled"]:
        line = found[pulled["commitLogOffset"]]
        assert {name: line[name] for name in same} == {name: pulled[name] for name in same}
        # Real clients take the bit "compressed" away when they unpack.
        assert line["sysFlag"] & ~1 == pulled["sysFlag"]


def test_dump_takes_a_topic_and_a_range(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = str(stores / "plain-11")
    assert run(store, ["dump", plain, "--topic", "Vplain11_1", "--from", "2498", "--to", "20000"]) == DONE
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines
    assert {line["topic"] for line in lines} == {"Vplain11_1"}
    assert all(2498 <= line["commitLogOffset"] < 20000 for line in lines)


def test_a_whole_store_is_0_and_a_flipped_bit_is_2(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, ["verify", str(stores / "plain-11"), "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert run(store, ["verify", str(stores / "flip-61" / "before"), "--json"]) == FAILED
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is False
    assert {"kind", "physicalOffset", "until", "file"} <= set(result["damage"][0])
    assert set(result) >= {"records", "minOffset", "maxOffset", "confirmOffset", "epochs"}


def test_damage_is_named_for_people_too(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, ["verify", str(stores / "flip-61" / "before")]) == FAILED
    assert "crc_mismatch: " in capsys.readouterr().out
    assert run(store, ["dump", str(stores / "flip-61" / "before")]) == WARNINGS
    assert "crc_mismatch" in capsys.readouterr().err


def test_a_directory_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    assert run(store, ["verify", str(tmp_path / "none")]) == USAGE


@pytest.mark.parametrize("command", [["inspect"], ["verify"], ["dump"], ["repair"]])
def test_a_directory_that_holds_no_store_is_not_called_whole(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").mkdir()  # the store is one level below what was named, say
    assert run(store, [*command, str(tmp_path)]) == UNFINISHED
    assert f"{tmp_path} holds no store" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["store"]  # not even a lock


def test_a_replica_that_is_no_store_is_named_before_anything_is_mended(
    stores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, ["repair", str(stores / "plain-11"), "--from", str(tmp_path)]) == UNFINISHED
    assert f"{tmp_path} holds no store" in capsys.readouterr().err


def test_inspect_shows_a_real_store_at_a_glance(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, ["inspect", str(stores / "plain-11"), "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    manifest = json.loads((STORES / "plain-11.manifest.json").read_text())
    for topic, row in found["queues"]["topics"].items():
        pulled = [m for m in manifest["pulled"] if m["topic"] == topic]
        assert row["messages"] == len(pulled), topic
    assert found["checkpoint"]["writtenBy"] == "RocketMQ"
    assert found["commitLog"]["segmentBytes"] == 131072
    assert run(store, ["inspect", str(stores / "plain-11")]) == DONE
    assert "CommitLog: " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_export_writes_every_record_with_its_body(stores: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"out.{kind}"
    arguments = ["export", str(stores / "plain-11"), "--format", kind, "--out", str(out), "--bodies"]
    assert run(store, arguments) == DONE
    assert out.stat().st_mode & 0o007 == 0, "messages are for its owner and group"
    if kind == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        bodies = {row["commitLogOffset"]: base64.b64decode(row["body"]) for row in rows if row["body"]}
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
        bodies = {row["commitLogOffset"]: row["body"] for row in rows if row["body"]}
    manifest = json.loads((STORES / "plain-11.manifest.json").read_text())
    assert {row["commitLogOffset"] for row in rows} >= {m["commitLogOffset"] for m in manifest["pulled"]}
    for pulled in manifest["pulled"]:
        body = bodies.get(pulled["commitLogOffset"], b"")
        assert hashlib.sha256(body).hexdigest() == pulled["bodySha256"] or not body


def test_parquet_without_pyarrow_says_what_to_install(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arguments = ["export", str(stores / "plain-11"), "--format", "parquet", "--out", str(tmp_path / "x")]
    assert run(store, arguments) == UNFINISHED
    assert "keelmq[audit]" in capsys.readouterr().err
    assert run(store, ["export", str(stores / "plain-11"), "--format", "parquet"]) == USAGE


def test_repair_takes_what_rotted_from_a_replica_and_only_from_a_true_one(
    stores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rotten, peer, stranger = tmp_path / "rotten", tmp_path / "peer", stores / "plain-11"
    before = stores / "flip-61" / "before"
    damage = json.loads((STORES / "flip-61.manifest.json").read_text())["damage"]
    for where in (rotten, peer):
        shutil.copytree(before, where)
    segment = f"commitlog/{damage['byte'] - damage['byte'] % 131072:020}"
    with (peer / segment).open("r+b") as file:  # undo the flip: a replica that has not rotted
        file.seek(damage["byte"] % 131072)
        byte = file.read(1)[0]
        file.seek(damage["byte"] % 131072)
        file.write(bytes((byte ^ damage["mask"],)))
    assert run(store, ["verify", str(peer)]) == DONE
    capsys.readouterr()

    assert run(store, ["repair", str(rotten), "--json"]) == FAILED
    (left,) = json.loads(capsys.readouterr().out)["left"]
    assert left["physicalOffset"] == damage["physicalOffset"]
    assert run(store, ["repair", str(rotten), "--from", str(stranger), "--json"]) == FAILED
    capsys.readouterr()
    arguments = ["repair", str(rotten), "--from", str(stranger), "--from", str(peer), "--json"]
    assert run(store, arguments) == DONE
    (repaired,) = json.loads(capsys.readouterr().out)["repaired"]
    assert repaired["from"] == str(peer)
    assert (rotten / segment).read_bytes() == (peer / segment).read_bytes()
    assert run(store, ["verify", str(rotten)]) == DONE
    assert run(store, ["repair", str(rotten)]) == DONE
    assert "nothing to repair" in capsys.readouterr().out


def test_repair_makes_a_wrong_queue_entry_right(stores: Path, tmp_path: Path) -> None:
    rotten = tmp_path / "rotten"
    shutil.copytree(stores / "plain-11", rotten)
    queue = next(
        p for p in sorted((rotten / "consumequeue").rglob("*")) if p.is_file() and any(p.read_bytes()[:20])
    )
    good = queue.read_bytes()
    queue.write_bytes(good[:5] + bytes((good[5] ^ 1,)) + good[6:])
    assert run(store, ["verify", str(rotten)]) == FAILED
    assert run(store, ["repair", str(rotten)]) == DONE
    assert queue.read_bytes() == good
    assert run(store, ["verify", str(rotten)]) == DONE


def test_a_torn_tail_is_cut_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack_archive(STORES / "ha-81.tar.gz", tmp_path)
    replica = tmp_path / "ha-81" / "before" / "b0"
    segment = replica / "commitlog" / ("0" * 20)
    whole = segment.read_bytes()
    assert run(store, ["repair", str(replica), "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["tail"]["physicalOffset"] == 152395
    assert segment.read_bytes() == whole
    assert run(store, ["repair", str(replica), "--cut-tail", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["tailCut"] is True
    assert segment.read_bytes()[152395:] == bytes(len(whole) - 152395)
