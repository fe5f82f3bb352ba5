"""Which keys each server understands, what they mean and their defaults.

The keys are RocketMQ's own names. Defaults that differ from the original carry ``was=`` and are listed in
``docs/defaults.md``.
"""

from dataclasses import dataclass
from typing import Final

from model.settings import PORT_MAX, Config, addresses, is_loopback, key, need, peers, split_address

PERIOD_MIN_MS: Final = 10
"""A loop that looks or sends more often than this does nothing else."""

HEARTBEATS_MIN: Final = 2
"""haSendHeartbeatInterval fits so often into haHousekeepingInterval. A sender looks at its links each half
interval, so a sign of life comes up to 1.5 intervals after the last one; the rest is for the way. RocketMQ's
own two are 5 s and 20 s."""


@dataclass(kw_only=True)
class ServerConfig(Config):
    """What all servers share."""

    bind_address: str = key(
        "bindAddress", "127.0.0.1", "address to listen on; 0.0.0.0 = every interface", was="0.0.0.0"
    )
    admin_port: int = key(
        "adminPort", 0, "port of /healthz, /status, /metrics (HTTP) at adminAddress; 0 = none", most=PORT_MAX
    )
    admin_address: str = key(
        "adminAddress",
        "127.0.0.1",
        "address adminPort listens on; 0.0.0.0 = every interface. It only reads, but asks nobody for a key:"
        " beyond loopback (Prometheus on another host, Kubernetes' probes) is the operator's own choice",
    )
    frame_bytes_max: int = key(
        "frameMaxLength", 16777216, "longest frame taken, bytes; a longer one ends its connection", least=1
    )
    server_channel_max_idle_s: int = key(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "a connection without a byte for so long is closed, seconds",
        least=1,
    )
    peer_credentials_file: str = key(
        "peerCredentialsFile",
        "",
        "JSON file of the accessKey and secretKey that peers and operators must sign with; empty = they are"
        " believed",
    )
    trust_peers: bool = key("trustPeers", False, "believe peers that prove nothing: only in a closed network")

    def check(self) -> None:
        super().check()
        lacking = [f"{name} ({why})" for name, file, why in self._proofs() if not file]
        # To a socket the empty address is every interface; nobody who leaves a value out means that.
        need(bool(self.admin_address.strip("[] ")), "adminAddress is empty: leave it out, or name an address")
        need(
            is_loopback(self.bind_address) or not lacking or self.trust_peers,
            f"bindAddress={self.bind_address} is not loopback, and whoever reaches it would be believed: set"
            f" {' and '.join(lacking)}, or trustPeers=true in a closed network",
        )

    def _proofs(self) -> list[tuple[str, str, str]]:
        """How those who reach this server prove who they are: (key, its file or "", what it is for)."""
        return [
            (
                "peerCredentialsFile",
                self.peer_credentials_file,
                "peers and operators then sign what they ask for",
            )
        ]


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


@dataclass(kw_only=True)
class ControllerConfig(ServerConfig):
    """Keys of a Controller."""

    group: str = key(
        "controllerDLegerGroup", "keelmq-controllers", "name of the Raft group, as tools are shown it"
    )
    peers: str = key(
        "controllerDLegerPeers",
        "",
        "id-host:port;... of every Controller, its request port; the same on all, ids for ever",
    )
    self_id: str = key("controllerDLegerSelfId", "", "id of this Controller among the peers")
    raft_peers: str = key("raftPeers", "", "id-host:port;... of the Raft ports; empty = request port + 10")
    raft_secret_file: str = key(
        "raftSecretFile",
        "",
        "file with the secret the Controllers share; needed beyond loopback unless raftTlsCert is set",
    )
    raft_tls_cert: str = key("raftTlsCert", "", "PEM certificate of this Controller; with it Raft is TLS 1.3")
    raft_tls_key: str = key("raftTlsKey", "", "PEM key of that certificate, without a password")
    raft_tls_ca_file: str = key("raftTlsCaFile", "", "PEM of the CA every Controller's certificate is of")
    store_path: str = key("controllerStorePath", "", "directory of the Raft journal")
    scan_not_active_ms: int = key(
        "scanNotActiveBrokerInterval",
        500,
        "look for silent brokers at least every, ms",
        was=5000,
        least=PERIOD_MIN_MS,
    )
    scan_inactive_master_ms: int = key(
        "scanInactiveMasterInterval",
        1000,
        "look for groups without a living master at least every, ms",
        was=5000,
        least=PERIOD_MIN_MS,
    )
    elect_unclean_master: bool = key(
        "enableElectUncleanMaster",
        False,
        "elect a broker from outside of the SyncStateSet when no member lives: loses what it lacks",
    )
    notify_role_changed: bool = key(
        "notifyBrokerRoleChanged",
        True,
        "tell the brokers of a group of an election at once; else they find out by their next look",
    )
    elect_retry_max: int = key(
        "electMasterMaxRetryCount", 3, "tries of one election before the next look at the groups", least=1
    )
    raft_append_period_ms: int = key(
        "raftAppendPeriodMs",
        100,
        "a leader without work gives a sign of life every, ms; below a third of raftElectionMinMs",
        least=1,
    )
    raft_election_min_ms: int = key(
        "raftElectionMinMs", 500, "a leader silent for so long, at least, is replaced, ms"
    )
    raft_election_max_ms: int = key(
        "raftElectionMaxMs", 1000, "... and at most, ms: each member draws a time between the two"
    )

    def check(self) -> None:
        super().check()
        members = peers(self.peers)
        need(bool(members), "controllerDLegerPeers is empty: list every Controller as id-host:port")
        need(
            self.self_id in members,
            f"controllerDLegerSelfId={self.self_id!r} is not among the peers {sorted(members)}",
        )
        if self.raft_peers:
            need(
                set(peers(self.raft_peers)) == set(members),
                "raftPeers must list the ids of controllerDLegerPeers",
            )
        tls = (self.raft_tls_cert, self.raft_tls_key, self.raft_tls_ca_file)
        need(all(tls) or not any(tls), "raftTlsCert, raftTlsKey and raftTlsCaFile go together")
        need(
            self.raft_append_period_ms * 3 < self.raft_election_min_ms < self.raft_election_max_ms,
            "need 3 x raftAppendPeriodMs < raftElectionMinMs < raftElectionMaxMs",
        )

    def raft_addresses(self) -> dict[str, str]:
        """id -> host:port of every member's Raft port."""
        if self.raft_peers:
            return peers(self.raft_peers)
        split = {node: split_address(address) for node, address in peers(self.peers).items()}
        return {node: f"{host}:{port + 10}" for node, (host, port) in split.items()}


@dataclass(kw_only=True)
class StoreConfig(ServerConfig):
    """Keys of the message store; a broker's configuration includes them."""

    store_path: str = key("storePathRootDir", "store", "root of the store")
    commit_log_path: str = key("storePathCommitLog", "", "directory of the CommitLog; empty = root/commitlog")
    epoch_file_path: str = key(
        "storePathEpochFile", "", "file of the epochs; empty = root/epochFileCheckpoint"
    )
    broker_identity_path: str = key(
        "storePathBrokerIdentity", "", "file of the id the Controllers gave; empty = root/brokerIdentity"
    )
    segment_bytes: int = key(
        "mappedFileSizeCommitLog",
        1073741824,
        "size of a CommitLog segment, bytes; the same on every replica of a group",
        least=4096,
    )
    queue_file_bytes: int = key(
        "mappedFileSizeConsumeQueue",
        6000000,
        "size of a ConsumeQueue file, bytes; a multiple of 20",
        least=20,
    )
    index_slots: int = key("maxHashSlotNum", 5000000, "slots of an IndexFile", least=1)
    index_entries: int = key("maxIndexNum", 20000000, "entries of an IndexFile", least=1)
    message_index_enable: bool = key(
        "messageIndexEnable", True, "index messages by key; false = look-ups by key find nothing"
    )
    message_bytes_max: int = key("maxMessageSize", 4194304, "longest body, bytes", least=1)
    flush_disk_type: str = key(
        "flushDiskType", "ASYNC_FLUSH", "SYNC_FLUSH: an answer waits for the disk; ASYNC_FLUSH: it does not"
    )
    flush_interval_ms: int = key(
        "flushIntervalCommitLog", 500, "sync the CommitLog every, ms (ASYNC_FLUSH)", least=PERIOD_MIN_MS
    )
    flush_queue_interval_ms: int = key(
        "flushIntervalConsumeQueue", 1000, "sync ConsumeQueues and index every, ms", least=PERIOD_MIN_MS
    )
    sync_flush_timeout_ms: int = key(
        "syncFlushTimeout",
        5000,
        "SYNC_FLUSH: an answer waits for the disk at most, ms; then it is FLUSH_DISK_TIMEOUT",
        least=1,
    )
    delete_when: str = key(
        "deleteWhen", "04", "hours of the day, local time, in which old segments are deleted: 04 or 04;16"
    )
    file_reserved_hours: int = key(
        "fileReservedTime", 72, "a segment is old when it was last written before so many hours", least=0
    )
    disk_max_used_ratio: int = key(
        "diskMaxUsedSpaceRatio", 75, "fuller than this, %, old segments are deleted at any hour"
    )
    commit_log_megabytes_max: int = key(
        "commitLogMegabytesMax",
        0,
        "the oldest segments beyond this go, whatever their age, MiB; 0 = no bound",
        least=0,
    )
    disk_clean_forcibly_ratio: int = key(
        "diskSpaceCleanForciblyRatio",
        85,
        "fuller than this, %, the oldest segments are deleted whatever their age; counts as 30 to 85",
    )
    disk_warning_ratio: int = key(
        "diskSpaceWarningLevelRatio", 90, "fuller than this, %, messages are refused; counts as 35 to 90"
    )
    check_crc_on_recover: bool = key(
        "checkCRCOnRecover", True, "a start checks the bodies of the records it reads"
    )
    lmq_enable: bool = key("enableLmq", False, "light queues, %LMQ%...; needs enableMultiDispatch")
    multi_dispatch_enable: bool = key(
        "enableMultiDispatch", False, "with enableLmq: a message is in each queue INNER_MULTI_DISPATCH names"
    )
    append_prop_crc: bool = key(
        "enabledAppendPropCRC",
        False,
        "a CRC over the whole record, as its last property, 20 bytes; without it only the body has one",
    )
    scrub_megabytes_per_s: int = key(
        "scrubMegabytesPerSecond", 0, "read the log again at this rate, MiB/s, to find rot; 0 = off", least=0
    )
    check_on_start_megabytes_per_s: int = key(
        "checkOnStartMegabytesPerSecond",
        8,
        "after a start, read the log once at this rate, MiB/s, and compare it with a replica's; 0 = off",
        least=0,
    )
    start_with_damaged_tables: bool = key(
        "startWithDamagedTables",
        False,
        "go on without the table or epoch file of which no copy can be read, instead of waiting "
        "for a master to copy it from",
    )
    disk_reserve_megabytes: int = key(
        "diskReserveMegabytes",
        4,
        "kept free for role changes and tables when the disk fills, MiB; 0 = nothing",
        least=0,
    )
    delay_levels: str = key(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "the delay levels, from 1 on",
    )
    transfer_count_in_memory: int = key(
        "maxTransferCountOnMessageInMemory", 32, "most messages in the answer to one pull", least=1
    )
    transfer_bytes_in_memory: int = key(
        "maxTransferBytesOnMessageInMemory", 262144, "most bytes in the answer to one pull", least=1
    )
    in_memory_ratio: int = key(
        "accessMessageInMemoryMaxRatio",
        40,
        "so many % of the machine's memory are taken to hold the end of the log: a group without an offset"
        " begins at a queue's start only while that lies in them",
        least=0,
        most=100,
    )

    def check(self) -> None:
        super().check()
        need(
            self.flush_disk_type in ("ASYNC_FLUSH", "SYNC_FLUSH"),
            f"flushDiskType={self.flush_disk_type}: expected ASYNC_FLUSH or SYNC_FLUSH",
        )
        need(self.queue_file_bytes % 20 == 0, "mappedFileSizeConsumeQueue must be a multiple of 20")
        hours = self.delete_when.split(";")
        need(
            all(h.isdigit() and int(h) < 24 for h in hours),
            f"deleteWhen={self.delete_when}: expected hours like 04",
        )


@dataclass(kw_only=True)
class BrokerConfig(StoreConfig):
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
    broker_ip1: str = key("brokerIP1", "127.0.0.1", "address clients are told")
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
        "haTransferBatchSize", 32768, "most bytes of the log in one frame to a slave", least=1
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
        need(
            self.ha_housekeeping_ms >= HEARTBEATS_MIN * self.ha_heartbeat_ms,
            f"haHousekeepingInterval={self.ha_housekeeping_ms} must be at least {HEARTBEATS_MIN} x"
            f" haSendHeartbeatInterval={self.ha_heartbeat_ms}: an HA link with nothing to copy would be"
            " closed between two signs of life, again and again",
        )
        need(
            self.broker_role in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
            f"brokerRole={self.broker_role}: expected ASYNC_MASTER, SYNC_MASTER or SLAVE",
        )
        addresses(self.namesrv_addr)
        need(
            not self.enable_controller_mode or bool(addresses(self.controller_addr)),
            "enableControllerMode=true needs controllerAddr=host:port;...",
        )
        need(
            not (self.majority_ack and self.broker_role == "ASYNC_MASTER"),
            "majorityAck=true needs brokerRole=SYNC_MASTER: an ASYNC_MASTER waits for nobody",
        )
        addresses(self.ha_master_address)
        self._check_group_address()
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

    def _check_group_address(self) -> None:
        if not self.group_address:
            return
        need(
            len(addresses(self.group_address)) == 1,
            f"groupAddress={self.group_address}: expected one address",
        )
        need(self.enable_controller_mode, "groupAddress needs enableControllerMode=true")
        port = split_address(self.group_address)[1]
        need(
            0 < port < 65536 and port not in (self.listen_port, self.listen_port - 2, self.ha_port),
            f"groupAddress={self.group_address}: needs a port of its own, on which only the master listens",
        )

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
