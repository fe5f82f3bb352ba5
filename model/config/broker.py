"""Keys of a broker."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from model.config.pop import PopConfig
from model.config.server import PERIOD_MIN_MS
from model.settings import PORT_MAX, addresses, is_loopback, is_this_machine, key, need, split_address

HEARTBEATS_MIN: Final = 2
"""haSendHeartbeatInterval fits so often into haHousekeepingInterval. A sender looks at its links each half
interval, so a sign of life comes up to 1.5 intervals after the last one; the rest is for the way. RocketMQ's
own two are 5 s and 20 s."""

NAMESERVERS_MAX: Final = 64

_OWN_MAJORITY: Final = (
    "majorityAck=true with totalReplicas=1: a broker that knows of no other is its own majority, answers OK"
    " for what it alone has and may lead without what others have: set totalReplicas to the number of brokers"
    " of the group, the same at each (to 1 only if there is and will be no other)"
)


@dataclass(kw_only=True)
class BrokerConfig(PopConfig):
    """Keys of a broker."""

    listen_port: int = key(
        "listenPort", 10911, "port of the broker; the fast port is 2 below", least=1, most=PORT_MAX
    )
    fast_port_enable: bool = key(
        "enableFastPort", True, "also listen on listenPort - 2, as clients with VIP channels expect"
    )
    ha_listen_port: int = key(
        "haListenPort", 0, "port slaves replicate from; 0 = listenPort + 1", most=PORT_MAX
    )
    namesrv_addr: str = key("namesrvAddr", "", "host:port;... of the NameServers")
    cluster_name: str = key(
        "brokerClusterName", "DefaultCluster", "name of the cluster; part of the identity of a store"
    )
    broker_name: str = key("brokerName", "broker-a", "name of the broker group; the same on all its replicas")
    broker_id: int = key(
        "brokerId", -1, "0 = master, > 0 = slave; -1 = the Controller gives it", was=0, least=-1
    )
    broker_ip1: str = key(
        "brokerIP1",
        "127.0.0.1",
        "address clients are told; beside Controllers or NameServers elsewhere to be set, as bindAddress",
    )
    group_address: str = key(
        "groupAddress", "", "host:port that stays that of the group's master, whoever it is; empty = none"
    )
    broker_ip2: str = key("brokerIP2", "", "address slaves are told; empty = brokerIP1")
    broker_role: str = key(
        "brokerRole", "SYNC_MASTER", "ASYNC_MASTER, SYNC_MASTER or SLAVE", was="ASYNC_MASTER"
    )
    broker_permission: int = key(
        "brokerPermission", 6, "what clients may do here: 2 = send, 4 = pull, 6 = both"
    )
    enable_controller_mode: bool = key(
        "enableControllerMode", False, "Controllers decide who is master; false = brokerRole and brokerId do"
    )
    controller_addr: str = key("controllerAddr", "", "host:port;... of the Controllers, their request ports")
    total_replicas: int = key(
        "totalReplicas", 1, "brokers of the group; what majorityAck takes a majority of", least=1
    )
    in_sync_replicas: int = key(
        "inSyncReplicas",
        1,
        "allAckInSyncStateSet=false: replicas an answer needs, the master included",
        least=1,
    )
    min_in_sync_replicas: int = key(
        "minInSyncReplicas",
        1,
        "with fewer members in the SyncStateSet, the master included, sends are refused, and writes under way"
        " are not answered OK",
        least=1,
    )
    all_ack_in_sync_state_set: bool = key(
        "allAckInSyncStateSet", True, "an answer needs every member of the SyncStateSet", was=False
    )
    majority_ack: bool = key(
        "majorityAck", False, "an answer needs a majority of totalReplicas, instead of every member"
    )
    slave_acting_master: bool = key(
        "enableSlaveActingMaster",
        False,
        "serve consumers while the group has no master; see supportActingMaster",
    )
    async_learner: bool = key("asyncLearner", False, "copy the log, and count for no answer and no election")
    sync_from_last_file: bool = key(
        "syncFromLastFile",
        False,
        "an empty replica copies from the last segment of the master on, not from the first",
    )
    election_priority: int = key(
        "brokerElectionPriority",
        2147483647,
        "of replicas that are equally far, the lower number is elected",
        least=-(2**31),
    )
    slave_timeout_ms: int = key(
        "slaveTimeout",
        3000,
        "an answer waits for slaves at most, ms; then it is FLUSH_SLAVE_TIMEOUT",
        least=1,
    )
    ha_heartbeat_ms: int = key(
        "haSendHeartbeatInterval",
        500,
        "a silent HA link gets a frame every, ms",
        was=5000,
        least=PERIOD_MIN_MS,
    )
    ha_housekeeping_ms: int = key(
        "haHousekeepingInterval",
        5000,
        "an HA link without a byte for so long is closed, ms; at least twice haSendHeartbeatInterval",
        was=20000,
        least=HEARTBEATS_MIN * PERIOD_MIN_MS,
    )
    ha_master_address: str = key(
        "haMasterAddress", "", "classic slave: HA address of its master; empty = as NameServers tell"
    )
    ha_secret_file: str = key(
        "haSecretFile",
        "",
        "file with the secret by which the brokers of a group prove themselves on HA ports",
    )
    ha_flow_control: bool = key(
        "haFlowControlEnable", False, "limit what slaves are sent to maxHaTransferByteInSecond"
    )
    ha_bytes_per_s_max: int = key(
        "maxHaTransferByteInSecond",
        104857600,
        "to all slaves together, bytes/s; with haFlowControlEnable",
        least=1024,
    )
    auto_reseed: bool = key(
        "autoReseed", False, "a slave whose log cannot be continued puts it aside and copies the master's"
    )
    ha_batch_bytes: int = key(
        "haTransferBatchSize",
        32768,
        "most bytes of the log in one frame to a RocketMQ slave; to a keelmq slave at least 131072",
        least=1,
    )
    ha_not_catchup_ms: int = key(
        "haMaxTimeSlaveNotCatchup",
        1500,
        "a slave silent or behind this long leaves the SyncStateSet, ms",
        was=15000,
        least=PERIOD_MIN_MS,
    )
    check_sync_state_set_ms: int = key(
        "checkSyncStateSetPeriod",
        500,
        "the master looks at its slaves at least every, ms",
        was=5000,
        least=PERIOD_MIN_MS,
    )
    sync_broker_metadata_ms: int = key(
        "syncBrokerMetadataPeriod",
        1000,
        "look at the Controller's view every, ms",
        was=5000,
        least=PERIOD_MIN_MS,
    )
    slave_metadata_ms: int = key(
        "slaveSyncMetadataPeriod",
        1000,
        "a slave copies topics, groups and offsets every, ms",
        was=10000,
        least=PERIOD_MIN_MS,
    )
    broker_heartbeat_ms: int = key(
        "brokerHeartbeatInterval",
        500,
        "a sign of life to the Controllers at most every, ms; never rarer than a fifth of "
        "controllerHeartBeatTimeoutMills",
        was=1000,
        least=PERIOD_MIN_MS,
    )
    controller_heartbeat_timeout_ms: int = key(
        "controllerHeartBeatTimeoutMills",
        1500,
        "Controllers take this broker for dead after this silence, ms; a lease is 0.8 of it",
        was=10000,
        least=100,
    )
    register_namesrv_ms: int = key(
        "registerNameServerPeriod",
        10000,
        "register at the NameServers, without a change, every, ms",
        was=30000,
        least=PERIOD_MIN_MS,
    )
    single_topic_register: bool = key(
        "enableSingleTopicRegister",
        False,
        "tell NameServers of RocketMQ all topics at each change: for deleteTopicWithBrokerRegistration there",
    )
    enable_property_filter: bool = key(
        "enablePropertyFilter",
        True,
        "consumers may choose messages by SQL92 expressions over their properties",
        was=False,
    )
    store_reply_message: bool = key(
        "storeReplyMessageEnable",
        True,
        "replies to requests are also kept, in <brokerClusterName>_REPLY_TOPIC",
    )
    trace_topic_enable: bool = key(
        "traceTopicEnable", False, "the topic that clients tell their traces to is there from the start"
    )
    trace_topic: str = key("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "its name; one queue a broker")
    auto_create_topic: bool = key(
        "autoCreateTopicEnable", True, "the first send to an unknown topic makes it"
    )
    auto_create_group: bool = key(
        "autoCreateSubscriptionGroup",
        True,
        "a consumer group that is not known is made when it first appears",
    )
    default_topic_queues: int = key(
        "defaultTopicQueueNums", 8, "most queues of a topic that a send makes", least=1
    )
    long_polling_enable: bool = key(
        "longPollingEnable",
        True,
        "a pull that finds nothing is held as long as its consumer says; false = for a second",
    )
    client_expiry_ms: int = key(
        "clientChannelExpiredTimeout",
        120000,
        "a client without a heartbeat for so long is closed, ms",
        least=1,
    )
    flush_offsets_ms: int = key(
        "flushConsumerOffsetInterval",
        5000,
        "consumer offsets are written to their file at most so long after a change, ms",
        least=0,
    )
    reject_transaction_message: bool = key("rejectTransactionMessage", False, "refuse transactional messages")
    transaction_timeout_ms: int = key(
        "transactionTimeOut", 6000, "a half message is first asked about after, ms", least=0
    )
    transaction_check_max: int = key(
        "transactionCheckMax", 15, "questions about a half message; then it is given up", least=0
    )
    transaction_check_interval_ms: int = key(
        "transactionCheckInterval",
        30000,
        "look for half messages that are due every, ms",
        least=PERIOD_MIN_MS,
    )
    trace_on: bool = key("traceOn", True, "tell producers to trace their messages")
    region_id: str = key("regionId", "DefaultRegion", "MSG_REGION of answers and messages")

    def check(self) -> None:
        super().check()
        for name, value in (("brokerName", self.broker_name), ("brokerClusterName", self.cluster_name)):
            need(bool(value.strip()), f"{name}= must not be blank")
        need(
            self.ha_housekeeping_ms >= HEARTBEATS_MIN * self.ha_heartbeat_ms,
            f"haHousekeepingInterval={self.ha_housekeeping_ms} must be at least {HEARTBEATS_MIN} x"
            f" haSendHeartbeatInterval={self.ha_heartbeat_ms}: an HA link with nothing to copy would be"
            " closed between two signs of life, again and again",
        )
        acl = self.acl_enable or self.authentication_enabled or self.authorization_enabled
        alone = not self.enable_controller_mode and self.broker_role != "SLAVE"
        need(
            not acl or alone or bool(self.peer_credentials_file or self.inner_client_credentials),
            "with ACL on the brokers of a group would turn each other away: set peerCredentialsFile, or"
            " innerClientAuthenticationCredentials",
        )
        need(
            self.broker_role in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
            f"brokerRole={self.broker_role}: expected ASYNC_MASTER, SYNC_MASTER or SLAVE",
        )
        servers = len(set(addresses(self.namesrv_addr, "namesrvAddr")))
        need(servers <= NAMESERVERS_MAX, f"namesrvAddr names {servers} servers: at most {NAMESERVERS_MAX}")
        need(
            bool(addresses(self.controller_addr, "controllerAddr")) or not self.enable_controller_mode,
            "enableControllerMode=true needs controllerAddr=host:port;...",
        )
        need(
            not (self.majority_ack and self.broker_role == "ASYNC_MASTER"),
            "majorityAck=true needs brokerRole=SYNC_MASTER: an ASYNC_MASTER waits for nobody",
        )
        addresses(self.ha_master_address, "haMasterAddress")
        self._check_copies()
        self._check_group_address()
        self._check_told()
        if not self.enable_controller_mode:
            slave = self.broker_role == "SLAVE"
            need(
                self.broker_id > 0 if slave else self.broker_id <= 0,
                f"brokerRole={self.broker_role} with brokerId={self.broker_id}: without a Controller a slave"
                " has brokerRole=SLAVE and a brokerId above 0, a master neither",
            )

    def _proofs(self) -> list[tuple[str, str, str]]:
        return [
            *super()._proofs(),
            ("haSecretFile", self.ha_secret_file, "the same on all brokers of the group, for the HA port"),
        ]

    def _check_copies(self) -> None:
        """No group could ever have so many copies. Without ``majorityAck`` the number is RocketMQ's default
        where nobody sets it, and says nothing. With it a master that knows of no other broker would be its
        own majority: who means that sets it."""
        need(not self._is_its_own_majority or "totalReplicas" in self.given, _OWN_MAJORITY)
        if self.majority_ack or self.total_replicas > 1:
            for name, copies in (
                ("minInSyncReplicas", self.min_in_sync_replicas),
                ("inSyncReplicas", self.in_sync_replicas),
            ):
                text = f"{name}={copies} is more than totalReplicas={self.total_replicas}"
                need(copies <= self.total_replicas, f"{text}: no send would be answered")

    def _check_group_address(self) -> None:
        if not self.group_address:
            return
        need(
            len(addresses(self.group_address, "groupAddress")) == 1,
            f"groupAddress={self.group_address}: expected one address",
        )
        need(self.enable_controller_mode, "groupAddress needs enableControllerMode=true")
        port = split_address(self.group_address)[1]
        need(
            0 < port < 65536 and port not in (self.listen_port, self.listen_port - 2, self.ha_port),
            f"groupAddress={self.group_address}: needs a port of its own, on which only the master listens",
        )

    def _check_told(self) -> None:
        """A broker that nobody elsewhere reaches can still dial out, copy, be in the SyncStateSet and be
        elected: then its group has a master that no client finds. Who set such an address may mean it: a
        port that is published, or a forwarder, on this machine."""
        for name, text in self._unreached():
            need(name in self.given, text)

    def doubts(self) -> list[str]:
        """What somebody set that is right in few places only."""
        found = [text for _, text in self._unreached()]
        if self._is_its_own_majority:
            found.append(_OWN_MAJORITY)
        return found

    @property
    def _is_its_own_majority(self) -> bool:
        return self.majority_ack and self.total_replicas == 1

    def _unreached(self) -> Iterator[tuple[str, str]]:
        """Keys whose addresses mean nothing elsewhere, where others are, and what to say of each."""
        far = [a for a in self._others() if not is_this_machine(split_address(a)[0])]
        if not far:
            return
        group_host = split_address(self.group_address)[0] if self.group_address else ""
        for name, host in (
            ("brokerIP1", self.broker_ip1),
            ("brokerIP2", self.broker_ip2),
            ("groupAddress", group_host),
        ):
            if host and is_this_machine(host):
                yield (
                    name,
                    f"{name}={host} would be told elsewhere ({far[0]}), and means whoever reads it there: set"
                    f" {name} to the address at which clients and the other brokers reach this one (to {host}"
                    " only if they do there), and bindAddress to one of this machine where they get in",
                )
        if is_loopback(self.bind_address):
            yield (
                "bindAddress",
                f"bindAddress={self.bind_address}: nobody elsewhere gets in there, and {self.address} is"
                f" told elsewhere ({far[0]}): set bindAddress to that address of this machine, or 0.0.0.0 (to"
                f" {self.bind_address} only if something on this machine passes on what comes)",
            )

    def _others(self) -> list[str]:
        """Who hears of this broker's addresses, and the master of a classic slave that others hear of."""
        servers = addresses(self.namesrv_addr)
        if self.enable_controller_mode:
            return servers + addresses(self.controller_addr)
        if servers and self.broker_role == "SLAVE":
            return servers + addresses(self.ha_master_address)
        return servers

    @property
    def waits_for_every_member(self) -> bool:
        """Whether an answer of this broker, as master, needs every member of the SyncStateSet."""
        return self.all_ack_in_sync_state_set and not self.majority_ack and self.broker_role != "ASYNC_MASTER"

    @property
    def route_address(self) -> str:
        """What NameServers have under id 0 while this broker is master."""
        return self.group_address or self.address

    @property
    def address(self) -> str:
        """What clients and NameServers are told."""
        return f"{self.broker_ip1}:{self.listen_port}"

    @property
    def ha_port(self) -> int:
        return self.ha_listen_port or self.listen_port + 1

    @property
    def ha_address(self) -> str:
        return f"{self.broker_ip2 or self.broker_ip1}:{self.ha_port}"
