"""The promises of keelmq store: what RocketMQ wrote is listed as its manifest says, and damage is found."""

import json
from pathlib import Path

import pytest

from admin.exits import DONE, FAILED, USAGE, WARNINGS, run
from admin.store_commands import store
from tests import unpack_archive

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "store"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("stores")
    for name in ("plain-11", "flip-61"):
        unpack_archive(GOLDEN / f"{name}.tar.gz", where)
    return where


def test_dump_lists_every_record_as_the_manifest_has_it(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, ["dump", str(stores / "plain-11")]) == DONE
    found = {line["commitLogOffset"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    manifest = json.loads((GOLDEN / "plain-11.manifest.json").read_text())
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
