"""The promise of model.foreign_keys: every key of the real servers is known, read past or refused."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from model.config.tls import USE_TLS
from model.foreign_keys import BROKER_IGNORES, CONTROL_IGNORES, REFUSED
from model.settings import Config

NOT_FOR_FILES = {"clusterName", "configName", "jraftConfig"}
"""Set by the real servers themselves; in a file they would be a slip for another key."""

NETTY = ("NettyServerConfig", "NettyClientConfig")


@pytest.mark.covers(
    "Configuration: each key of the real servers is taken, ignored or refused with a reason",
    client="configuration files",
    sides="keelmq",
)
@pytest.mark.interop
@pytest.mark.parametrize(
    ("classes", "own", "ignored"),
    [
        (
            ("BrokerConfig", "BrokerIdentity", "MessageStoreConfig", "AuthConfig", *NETTY),
            (BrokerConfig,),
            BROKER_IGNORES,
        ),
        (
            ("NamesrvConfig", "ControllerConfig", "JraftConfig", *NETTY),
            (NamesrvConfig, ControllerConfig),
            CONTROL_IGNORES,
        ),
    ],
)
def test_every_key_of_the_real_servers_has_an_answer(
    real_rocketmq: Path, classes: tuple[str, ...], own: tuple[type[Config], ...], ignored: frozenset[str]
) -> None:
    setters = _setters(real_rocketmq)
    keys = {key for name in classes for key in setters[name]}
    assert len(keys) > 50
    known = set().union(*(config.keys() for config in own)) | {USE_TLS}
    assert keys - known - ignored - set(REFUSED) - NOT_FOR_FILES == set()


def _setters(library: Path) -> dict[str, set[str]]:
    """Class -> the keys it takes from a file: RocketMQ reads them by the names of setters."""
    found: dict[str, set[str]] = {}
    for path in library.glob("rocketmq-*.jar"):
        with zipfile.ZipFile(path) as jar:
            for name in jar.namelist():
                kind = Path(name).stem
                if name.startswith("org/apache/rocketmq/") and re.fullmatch(r"\w+(Config|Identity)", kind):
                    found[kind] = {t[0].lower() + t[1:] for t in _setter_names(jar.read(name))}
    return found


def _setter_names(data: bytes) -> set[str]:
    """What follows "set" in the names a class file holds: constants of tag 1, 2 bytes of length, text."""
    names = set()
    for match in re.finditer(rb"\x01(..)set(?=[A-Z])", data, re.S):
        end = match.start() + 3 + int.from_bytes(match[1], "big")
        text = data[match.end() : end]
        if re.fullmatch(rb"\w+", text):
            names.add(text.decode())
    return names
