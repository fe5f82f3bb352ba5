"""The promise of broker.membership.identity: a store has one id for ever, in the files of the real thing."""

from pathlib import Path

import pytest

from broker.membership.identity import Application, Identity
from model.config import BrokerConfig
from model.errors import ConfigError, DiskError
from model.ids import BrokerId
from runtime.os_env import OsDisk


def identity(path: Path, **keys: str) -> Identity:
    return Identity(OsDisk(), BrokerConfig(store_path=str(path), **keys))  # type: ignore[arg-type]


def test_a_new_store_has_no_id(tmp_path: Path) -> None:
    assert identity(tmp_path / "none").broker_id() is None
    assert identity(tmp_path / "none").application() is None


def test_the_files_are_those_of_the_real_thing(tmp_path: Path) -> None:
    one = identity(tmp_path / "store", broker_name="b", cluster_name="c")
    one.apply_for(Application(BrokerId(2), "127.0.0.1:10911;1700000000000"))
    assert (tmp_path / "store/brokerIdentity-temp").read_text() == "c#b#2#127.0.0.1:10911;1700000000000"
    assert one.application() == Application(BrokerId(2), "127.0.0.1:10911;1700000000000")
    assert one.broker_id() is None
    one.keep(BrokerId(2))
    assert (tmp_path / "store/brokerIdentity").read_text() == "c#b#2"
    assert one.application() is None
    assert one.broker_id() == 2


def test_the_path_can_be_configured(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "id"
    identity(tmp_path, broker_identity_path=str(path)).keep(BrokerId(7))
    assert path.read_text() == "DefaultCluster#broker-a#7"


@pytest.mark.parametrize("text", ["", "c#b", "c#b#x", "c#b#0", "c#b#-1", "c#b#1.5", "c#b#²"])
def test_a_damaged_file_is_a_disk_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "brokerIdentity").write_text(text)
    with pytest.raises(DiskError):
        identity(tmp_path, broker_name="b", cluster_name="c").broker_id()


def test_bytes_that_are_no_text_are_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity").write_bytes(b"\xff\xfe#b#1")
    with pytest.raises(DiskError, match="cannot be read"):
        identity(tmp_path).broker_id()


@pytest.mark.parametrize(("cluster", "group"), [("c", "other"), ("other", "b")])
def test_a_store_of_another_group_is_the_operators_mistake(tmp_path: Path, cluster: str, group: str) -> None:
    (tmp_path / "brokerIdentity").write_text("c#b#1")
    with pytest.raises(ConfigError, match="belongs to group b of cluster c"):
        identity(tmp_path, broker_name=group, cluster_name=cluster).broker_id()
