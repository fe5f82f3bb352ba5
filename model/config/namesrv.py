"""Keys of a NameServer."""

from dataclasses import dataclass

from model.config.server import PERIOD_MIN_MS, ServerConfig
from model.settings import PORT_MAX, key


@dataclass(kw_only=True)
class NamesrvConfig(ServerConfig):
    """Keys of a NameServer; with ``enableControllerInNamesrv`` the Controller's keys stand beside them."""

    listen_port: int = key("listenPort", 9876, "port of the NameServer", most=PORT_MAX)
    kv_config_path: str = key("kvConfigPath", "", "file of the KV table; empty = kept in memory only")
    scan_not_active_ms: int = key(
        "scanNotActiveBrokerInterval", 5000, "look for silent brokers every, ms", least=PERIOD_MIN_MS
    )
    broker_expiry_ms: int = key(
        "brokerChannelExpiredTime",
        120000,
        "a broker is forgotten after this silence, ms, unless it named a time itself",
        least=1,
    )
    support_acting_master: bool = key(
        "supportActingMaster",
        False,
        "show a slave of enableSlaveActingMaster as id 0, read-only, while its group has no master",
    )
    notify_min_broker_id_changed: bool = key(
        "notifyMinBrokerIdChanged", False, "tell the brokers of a group when its smallest id changes"
    )
    order_message_enable: bool = key(
        "orderMessageEnable", False, "put the ordered-topic configuration of the KV table into routes"
    )
    return_order_topic_config: bool = key(
        "returnOrderTopicConfigToBroker", True, "give the KV table of ordered topics to brokers that register"
    )
    delete_topic_with_registration: bool = key(
        "deleteTopicWithBrokerRegistration",
        False,
        "forget topics of a group that its master no longer registers",
    )
    enable_controller_in_namesrv: bool = key(
        "enableControllerInNamesrv",
        False,
        "run a Controller in this process; its keys stand in the same file",
    )
