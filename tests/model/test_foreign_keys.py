"""The promise of model.foreign_keys: a file written for RocketMQ starts a server, or is told why not."""

from __future__ import annotations

import re

import pytest

from admin.host.serve import plan
from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from model.errors import ConfigError
from model.foreign_keys import BROKER_IGNORES, CONTROL_IGNORES, REFUSED, sort_out
from model.settings import parse_properties

BROKER_OWN = set(BrokerConfig.keys())
CONTROL_OWN = set(NamesrvConfig.keys()) | set(ControllerConfig.keys())

PRODUCTION = """
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
deleteWhen=04
fileReservedTime=48
sendMessageThreadPoolNums=16
useReentrantLockWhenPutMessage=true
waitTimeMillsInSendQueue=1000
transientStorePoolEnable=true
warmMapedFileEnable=false
useEpollNativeSelector=true
slaveReadEnable=true
aclEnable=false
enablePropertyFilter=false
storeType=default
"""


def test_a_production_file_starts_a_broker_and_what_has_no_use_is_named() -> None:
    values = parse_properties(PRODUCTION)
    with pytest.raises(
        ConfigError, match=r"brokerIP1=127\.0\.0\.1 would be told elsewhere \(10\.0\.0\.1:9876\)"
    ):
        plan("broker", values)  # RocketMQ looks for an address by itself
    made = plan(
        "broker", {**values, "brokerIP1": "10.0.0.3", "bindAddress": "10.0.0.3", "trustPeers": "true"}
    )
    assert made.ignored == (
        "sendMessageThreadPoolNums",
        "useReentrantLockWhenPutMessage",
        "waitTimeMillsInSendQueue",
        "transientStorePoolEnable",
        "warmMapedFileEnable",
        "useEpollNativeSelector",
        "slaveReadEnable",
    )


def test_a_name_server_with_a_controller_reads_past_the_keys_of_both() -> None:
    values = {
        "enableControllerInNamesrv": "true",
        "controllerDLegerPeers": "n0-127.0.0.1:9878",
        "controllerDLegerSelfId": "n0",
        "controllerType": "DLedger",
        "mappedFileSize": "1073741824",
        "clientRequestThreadPoolNums": "8",
        "serverWorkerThreads": "8",
    }
    assert plan("namesrv", values).ignored == (
        "mappedFileSize",
        "clientRequestThreadPoolNums",
        "serverWorkerThreads",
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_a_promise_ends_the_start_and_says_what_is_done_instead(name: str) -> None:
    same, instead = REFUSED[name]
    assert sort_out({name: same[0].upper()}, "broker") == ({}, ())
    with pytest.raises(ConfigError, match=f"^keelmq does not support {re.escape(name)}=x: ") as told:
        plan("broker", {name: "x"})
    assert instead in str(told.value)


def test_what_asks_for_protection_that_is_not_there_is_refused() -> None:
    for name in ("migrateAuthFromV1Enabled",):
        with pytest.raises(ConfigError, match="does not support"):
            plan("broker", {name: "true"})


def test_a_key_nobody_knows_is_a_mistake_as_before_and_so_is_one_of_another_server() -> None:
    with pytest.raises(ConfigError, match="unknown key sendMessageThreadPoolNum"):
        plan("broker", {"sendMessageThreadPoolNum": "16"})
    with pytest.raises(ConfigError, match="unknown key sendMessageThreadPoolNums"):
        plan("namesrv", {"sendMessageThreadPoolNums": "16"})


def test_no_key_of_ours_is_read_past() -> None:
    assert not BROKER_IGNORES & BROKER_OWN
    assert not CONTROL_IGNORES & CONTROL_OWN
    assert not set(REFUSED) & (BROKER_OWN | CONTROL_OWN | BROKER_IGNORES | CONTROL_IGNORES)
