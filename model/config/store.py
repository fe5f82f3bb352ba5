"""Keys of the message store."""

from dataclasses import dataclass

from model.config.server import PERIOD_MIN_MS, ServerConfig
from model.settings import key, need


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
        "SYNC_FLUSH: an answer waits for the disk at most, ms; then it is FLUSH_DISK_TIMEOUT. Where the"
        " master's own copy is one of those that the answer needs (a master alone; mode all), what its disk"
        " lacks counts as a copy that is not there: slaveTimeout ends the wait, as FLUSH_SLAVE_TIMEOUT",
        least=1,
    )
    delete_when: str = key(
        "deleteWhen", "04", "hours of the day, local time, in which old segments are deleted: 04 or 04;16"
    )
    file_reserved_hours: int = key(
        "fileReservedTime",
        72,
        "a segment is old when it was last written before so many hours; a clock that is set ahead while the"
        " broker runs makes none older before it has stayed so for as long",
        least=0,
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
    clean_forcibly: bool = key(
        "cleanFileForciblyEnable",
        True,
        "false: diskSpaceCleanForciblyRatio deletes nothing, and a disk that fills only refuses messages",
    )
    disk_warning_ratio: int = key(
        "diskSpaceWarningLevelRatio", 90, "fuller than this, %, messages are refused; counts as 35 to 90"
    )
    check_crc_on_recover: bool = key(
        "checkCRCOnRecover",
        True,
        "a start checks the bodies of all records it reads, not only of those that lost power may have torn",
    )
    lmq_enable: bool = key("enableLmq", False, "light queues, %LMQ%...; needs enableMultiDispatch")
    multi_dispatch_enable: bool = key(
        "enableMultiDispatch", False, "with enableLmq: a message is in each queue INNER_MULTI_DISPATCH names"
    )
    lmq_queues_max: int = key(
        "maxLmqConsumeQueueNum",
        20_000,
        "light queues there may be; a message that names more is refused",
        least=0,
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
            all(h.isascii() and h.isdigit() and len(h) <= 2 and int(h) < 24 for h in hours),
            f"deleteWhen={self.delete_when}: expected hours like 04",
        )
