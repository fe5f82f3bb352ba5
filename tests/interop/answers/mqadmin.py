"""The mqadmin commands that are run at both systems after the same work, and why their words may differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Differs:
    """What of a command's output is not compared. ``line``: an expression for lines; of one with groups only
    those are left out, else the whole line."""

    line: str
    why: str


@dataclass(frozen=True, slots=True)
class Case:
    """One command. ``{broker}``, ``{cluster}``, ``{controller}``, ``{files}`` and ids of messages stand for
    what each side has."""

    name: str
    command: str
    differs: tuple[Differs, ...] = ()
    shared: bool = False
    """Of names and their values only those names that both sides have."""


_RUN: Final = "of this run: how long it took, ids, rates, how full the disk is"
_ROCKSDB: Final = "RocketMQ makes topics for transactions in RocksDB, also where it does not use them"
_COUNTED: Final = "it counts RocketMQ's topics for RocksDB, too"
_LENGTH: Final = "how long the tool's own ids are goes by the address it finds for itself"
_THREADS: Final = "requests wait in no queues of threads at keelmq, and no time is taken of each"
_CONTROLLER: Final = "this test's own settings, or keelmq's shorter times of failover (docs/defaults.md)"
_DEFAULT: Final = "another default (docs/defaults.md)"
_SYSTEM: Final = "keelmq counts messages of system topics, too"

_LITE: Final = (
    "RocketMQ makes queues of its own topics as it starts, and counts them; keelmq has no lite topics"
)
_STATIC: Final = "keelmq has no static topics: it refuses them (513)"
_PLACE: Final = Differs(r"Caused by: .*CODE: 1(.*)", "RocketMQ adds the place in its source")
_KERNEL: Final = (Differs(r".*", "keelmq leaves it to the kernel how far it reads ahead"),)
_TOPICS: Final = (Differs(r"(?:\S+ )?RMQ_SYS_ROCKSDB_\w+", _ROCKSDB),)
_TPS: Final = (Differs(r"Consume TPS: ([\d.]+)", _RUN),)
_PLACES: Final = Differs(
    r"(?:listenPort|haListenPort|storePath\w+|brokerIP2|bindAddress|brokerId|kvConfigPath|rocketmqHome"
    r"|controllerDLegerGroup|controllerStorePath) =(.*)",
    _CONTROLLER,
)


CASES: Final[tuple[Case, ...]] = (
    # Changes
    Case("updateTopic", "updateTopic -c {cluster} -t CmpMade -r 6 -w 6"),
    Case("updateTopic, again with fewer queues", "updateTopic -b {broker} -t CmpMade -r 4 -w 3"),
    Case("updateTopic -a", "updateTopic -b {broker} -t CmpFifo -r 2 -w 2 -a +message.type=FIFO"),
    Case("updateTopic, an unknown attribute", "updateTopic -b {broker} -t CmpBad -a +colour=red"),
    Case("updateTopic, an illegal name", "updateTopic -b {broker} -t Cmp!Bad -r 1 -w 1"),
    Case("updateTopic, a topic of the system", "updateTopic -b {broker} -t TBW102 -r 1 -w 1"),
    Case("updateTopicList", "updateTopicList -b {broker} -f {files}/topics.json"),
    Case("updateTopicPerm", "updateTopicPerm -b {broker} -t CmpFifo -p 4"),
    Case("updateTopicPerm, as it was", "updateTopicPerm -b {broker} -t CmpFifo -p 4"),
    Case("updateTopicPerm, a topic that is not there", "updateTopicPerm -b {broker} -t CmpNone -p 4"),
    Case("updateSubGroup", "updateSubGroup -c {cluster} -g cmp_made"),
    Case(
        "updateSubGroup, all it takes",
        "updateSubGroup -b {broker} -g cmp_limits -s true -m false -d true -q 2 -r 3 -i 0 -w 1 -a true",
    ),
    Case("updateSubGroupList", "updateSubGroupList -b {broker} -f {files}/groups.json"),
    Case("getConsumerConfig", "getConsumerConfig -g cmp_limits"),
    Case("getConsumerConfig, of a list", "getConsumerConfig -g cmp_listed"),
    Case("updateKvConfig", "updateKvConfig -s CMP -k colour -v red"),
    Case("deleteKvConfig", "deleteKvConfig -s CMP -k colour"),
    Case("deleteKvConfig, again", "deleteKvConfig -s CMP -k colour"),
    Case("updateOrderConf put", "updateOrderConf -t CmpOrders -m put -v broker-a:4"),
    Case("updateOrderConf get", "updateOrderConf -t CmpOrders -m get"),
    Case("topicRoute, of an ordered topic", "topicRoute -t CmpOrders"),
    Case("updateOrderConf delete", "updateOrderConf -t CmpOrders -m delete"),
    Case("updateOrderConf get, deleted", "updateOrderConf -t CmpOrders -m get"),
    Case("setConsumeMode POP", "setConsumeMode -c {cluster} -t CmpOther -g cmp_readers -m POP -q 3"),
    Case("setConsumeMode PULL", "setConsumeMode -b {broker} -t CmpOther -g cmp_readers -m PULL -q 0"),
    Case(
        "setConsumeMode, a group that is not there",
        "setConsumeMode -b {broker} -t CmpOther -g cmp_none -m POP -q 0",
    ),
    Case("updateBrokerConfig", "updateBrokerConfig -b {broker} -k fileReservedTime -v 71"),
    Case("updateNamesrvConfig", "updateNamesrvConfig -k clientRequestThreadPoolNums -v 9"),
    Case("updateControllerConfig", "updateControllerConfig -a {controller} -k electMasterMaxRetryCount -v 4"),
    # Messages
    Case(
        "sendMessage",
        "sendMessage -t CmpOther -p body -k sent -c tagM -b broker-a -i 0",
        (Differs(r"broker-a 0 SEND_OK (\S+)", _RUN),),
    ),
    Case(
        "sendMessage, any queue",
        "sendMessage -t CmpOther -p body",
        (Differs(r"broker-a (\d) SEND_OK (\S+)", _RUN),),
    ),
    Case("sendMessage, no queue of that number", "sendMessage -t CmpOther -p body -b broker-a -i 9"),
    Case(
        "sendMsgStatus",
        "sendMsgStatus -b broker-a -s 10 -c 3",
        (Differs(r"rt=(\d+)ms, .*?msgId=([^,]+), .*", _RUN),),
    ),
    Case(
        "checkMsgSendRT",
        "checkMsgSendRT -t CmpOther -a 2 -s 10",
        (Differs(r"broker-a \d true (\d+)", _RUN), Differs(r"Avg RT: ([\d.]+)", _RUN)),
    ),
    Case("consumeMessage", "consumeMessage -t CmpOrders -b broker-a -i 0 -o 0 -c 2"),
    Case("consumeMessage, the whole topic", "consumeMessage -t CmpOrders -c 20"),
    Case("queryMsgById", "queryMsgById -i {offset_id} -t CmpOrders"),
    Case("queryMsgById, nothing there", "queryMsgById -i {no_id} -t CmpOrders"),
    Case("queryMsgById -g -d", "queryMsgById -i {offset_id} -t CmpOrders -g cmp_online -d {client}"),
    Case("queryMsgByKey", "queryMsgByKey -t CmpOrders -k key-3"),
    Case("queryMsgByKey, nothing there", "queryMsgByKey -t CmpOrders -k key-none"),
    Case("queryMsgByUniqueKey", "queryMsgByUniqueKey -t CmpOrders -i {unique_id}"),
    Case("queryMsgByOffset", "queryMsgByOffset -t CmpOrders -b broker-a -i 1 -o 2"),
    Case("queryMsgByOffset, past the end", "queryMsgByOffset -t CmpOrders -b broker-a -i 1 -o 99"),
    Case("queryMsgTraceById, nothing there", "queryMsgTraceById -i {unique_id}"),
    Case("printMsg", "printMsg -t CmpOrders"),
    Case("printMsg, one tag", "printMsg -t CmpOrders -s A"),
    Case("printMsgByQueue", "printMsgByQueue -t CmpOrders -a broker-a -i 0 -p true -f true"),
    Case("queryCq", "queryCq -t CmpOrders -q 0 -i 1 -c 2 -b {broker}"),
    Case("queryCq, no such queue", "queryCq -t CmpOrders -q 9 -i 0 -c 2 -b {broker}"),
    # Topics
    Case("topicList", "topicList", _TOPICS),
    Case("topicList -c", "topicList -c", _TOPICS),
    Case("topicRoute", "topicRoute -t CmpMade"),
    Case("topicRoute -l", "topicRoute -t CmpMade -l"),
    Case("topicRoute, of a list", "topicRoute -t CmpListed"),
    Case("topicRoute, a topic that is not there", "topicRoute -t CmpNone"),
    Case("topicStatus", "topicStatus -t CmpOrders"),
    Case("topicStatus, an empty topic", "topicStatus -t CmpMade"),
    Case("topicStatus, a topic that is not there", "topicStatus -t CmpNone"),
    Case("topicClusterList", "topicClusterList -t CmpOrders"),
    Case("topicClusterList, a topic that is not there", "topicClusterList -t CmpNone"),
    Case("allocateMQ", "allocateMQ -t CmpOrders -i 192.0.2.1,192.0.2.2"),
    Case("statsAll", "statsAll -a -t CmpOrders", (Differs(r"CmpOrders .*", _RUN),)),
    # Groups and their progress
    Case("consumerProgress", "consumerProgress"),
    Case("consumerProgress -g", "consumerProgress -g cmp_readers"),
    Case("consumerProgress -g -t", "consumerProgress -g cmp_readers -t CmpOrders", _TPS),
    Case("consumerProgress -g, online", "consumerProgress -g cmp_online", _TPS),
    Case("consumerProgress -g -s, with clients", "consumerProgress -g cmp_online -s true", _TPS),
    Case("consumerProgress -g, a group that is not there", "consumerProgress -g cmp_none"),
    Case("consumerConnection", "consumerConnection -g cmp_online"),
    Case("consumerConnection -b", "consumerConnection -g cmp_online -b {broker}"),
    Case("consumerConnection, not online", "consumerConnection -g cmp_readers"),
    Case("producerConnection", "producerConnection -g cmp_senders -t CmpOrders"),
    Case("producerConnection, not there", "producerConnection -g cmp_none -t CmpOrders"),
    Case("producer", "producer -b {broker}"),
    Case("consumerStatus", "consumerStatus -g cmp_online"),
    Case("brokerConsumeStats", "brokerConsumeStats -b {broker} -t 10000"),
    Case("cloneGroupOffset", "cloneGroupOffset -s cmp_readers -d cmp_cloned -t CmpOrders -o true"),
    Case("consumerProgress -g, cloned", "consumerProgress -g cmp_cloned"),
    Case("resetOffsetByTime", "resetOffsetByTime -g cmp_readers -t CmpOrders -s 0"),
    Case("resetOffsetByTime -s -1", "resetOffsetByTime -g cmp_readers -t CmpOrders -s -1 -f true"),
    Case("resetOffsetByTime -o", "resetOffsetByTime -g cmp_readers -t CmpOrders -b {broker} -q 1 -o 2 -s 0"),
    Case("resetOffsetByTime, a topic that is not there", "resetOffsetByTime -g cmp_readers -t CmpNone -s 0"),
    Case("consumerProgress -g, after the reset", "consumerProgress -g cmp_readers"),
    Case("skipAccumulatedMessage", "skipAccumulatedMessage -g cmp_readers -t CmpOrders"),
    Case("consumerProgress -g, after the skip", "consumerProgress -g cmp_readers"),
    # Servers
    Case(
        "clusterList",
        "clusterList",
        (Differs(r".* broker-a 0 \S+ \S+ (.*) true", _RUN),),
    ),
    Case("clusterList -m", "clusterList -m", (Differs(r".* broker-a 0 0 (\d+) \d+", _SYSTEM),)),
    Case(
        "brokerStatus",
        "brokerStatus -b {broker}",
        (
            Differs(r"\w+ThreadPoolQueueCapacity ?: (\d+)", _THREADS),
            Differs(r"(?:put|get)Message(?:EntireTimeMax|DistributeTime) ?:(.*)", _THREADS),
            Differs(r"remainTransientStoreBufferNumbs : (\d+)", "keelmq has no such buffers"),
            Differs(r"(?:commitLogMaxOffset|putMessage(?:SizeTotal|AverageSize)) : ([\d.]+)", _LENGTH),
            Differs(r"msgPutTotalTodayNow : (\d+)", _SYSTEM),
            Differs(r"(?:commitLogDirCapacity|\w+DiskRatio\w*|\w+Tps|putLatency\d+|runtime) : (.*)", _RUN),
            Differs(r"timerReadBehind : (\d+)", "whether RocketMQ is about to look at its topic of timers"),
        ),
        shared=True,
    ),
    Case(
        "getBrokerConfig",
        "getBrokerConfig -b {broker}",
        (
            _PLACES,
            Differs(
                r"(?:checkSyncStateSetPeriod|controllerHeartBeatTimeoutMills|haHousekeepingInterval"
                r"|haMaxTimeSlaveNotCatchup|haSendHeartbeatInterval|syncBrokerMetadataPeriod) = (\d+)",
                _CONTROLLER,
            ),
            Differs(r"enablePropertyFilter = (\w+)", _DEFAULT),
        ),
        shared=True,
    ),
    Case(
        "getNamesrvConfig",
        "getNamesrvConfig",
        (_PLACES, Differs(r"scanNotActiveBrokerInterval = (\d+)", _CONTROLLER)),
        shared=True,
    ),
    Case("haStatus", "haStatus -b {broker}", (Differs(r"#MasterCommitLogMaxOffset (\d+)", _LENGTH),)),
    Case("getSyncStateSet", "getSyncStateSet -a {controller} -b broker-a"),
    Case("getBrokerEpoch", "getBrokerEpoch -b broker-a", (Differs(r".*endOffset=(\d+)\}", _LENGTH),)),
    Case(
        "getControllerMetaData",
        "getControllerMetaData -a {controller}",
        (Differs(r"#ControllerGroup (\S+)", _CONTROLLER),),
    ),
    Case(
        "getControllerConfig",
        "getControllerConfig -a {controller}",
        (_PLACES, Differs(r"scanNotActiveBrokerInterval = (\d+)", _CONTROLLER)),
        shared=True,
    ),
    Case("electMaster, it is", "electMaster -a {controller} -b 1 -bn broker-a -c {cluster}"),
    Case(
        "cleanBrokerMetadata, it lives", "cleanBrokerMetadata -a {controller} -bn broker-a -c {cluster} -b 1"
    ),
    Case("exportMetadata", "exportMetadata -c {cluster} -f {files}/out"),
    Case("exportConfigs", "exportConfigs -c {cluster} -f {files}/out"),
    Case("exportMetrics", "exportMetrics -c {cluster} -f {files}/out"),
    Case("getColdDataFlowCtrInfo", "getColdDataFlowCtrInfo -b {broker}"),
    Case(
        "updateColdDataFlowCtrGroupConfig",
        "updateColdDataFlowCtrGroupConfig -b {broker} -g cmp_readers -v 1000",
    ),
    Case("getColdDataFlowCtrInfo, a group limited", "getColdDataFlowCtrInfo -b {broker}"),
    Case("removeColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig -b {broker} -g cmp_readers"),
    Case("setCommitLogReadAheadMode", "setCommitLogReadAheadMode -b {broker} -m 0"),
    Case("setCommitLogReadAheadMode, at random", "setCommitLogReadAheadMode -b {broker} -m 1", _KERNEL),
    Case("checkRocksdbCqWriteProgress", "checkRocksdbCqWriteProgress -c {cluster} -n {namesrv} -t CmpOrders"),
    Case("resetMasterFlushOffset", "resetMasterFlushOffset -b {broker} -o 1"),
    Case("listUser", "listUser -b {broker}"),
    Case("listAcl", "listAcl -b {broker}", (_PLACE,)),
    Case("createUser", "createUser -b {broker} -u somebody -p secret"),
    Case("getUser", "getUser -b {broker} -u somebody", (_PLACE,)),
    Case("updateUser", "updateUser -b {broker} -u somebody -p other"),
    Case("deleteUser", "deleteUser -b {broker} -u somebody"),
    Case("copyUser", "copyUser -f {broker} -t {broker} -u somebody", (_PLACE,)),
    Case("createAcl", "createAcl -b {broker} -s User:somebody -r Topic:* -a Pub -d Allow"),
    Case("getAcl", "getAcl -b {broker} -s User:somebody", (_PLACE,)),
    Case("updateAcl", "updateAcl -b {broker} -s User:somebody -r Topic:* -a Sub -d Allow"),
    Case("deleteAcl", "deleteAcl -b {broker} -s User:somebody"),
    Case("copyAcl", "copyAcl -f {broker} -t {broker} -s User:somebody", (_PLACE,)),
    Case("switchTimerEngine", "switchTimerEngine -b {broker} -e F"),
    Case("switchTimerEngine, to RocksDB", "switchTimerEngine -b {broker} -e R"),
    Case("exportPopRecord", "exportPopRecord -b {broker} -d true"),
    Case("rocksDBConfigToJson", "rocksDBConfigToJson -b {broker} -t topics"),
    Case("addBroker, at what is no container", "addBroker -c {broker} -b /nowhere/broker.conf"),
    Case("removeBroker, at what is no container", "removeBroker -c {broker} -b {cluster}:broker-a:1"),
    Case("getBrokerLiteInfo", "getBrokerLiteInfo -b {broker}", (Differs(r".*", _LITE),)),
    Case("getParentTopicInfo", "getParentTopicInfo -p CmpOrders"),
    Case("getLiteTopicInfo", "getLiteTopicInfo -p CmpOrders -l lite"),
    Case("getLiteClientInfo", "getLiteClientInfo -p CmpOrders -g cmp_readers -c nobody"),
    Case("getLiteGroupInfo", "getLiteGroupInfo -p CmpOrders -g cmp_readers"),
    Case("triggerLiteDispatch", "triggerLiteDispatch -p CmpOrders -g cmp_readers"),
    Case(
        "updateStaticTopic",
        "updateStaticTopic -b broker-a -t CmpStatic -qn 2",
        (Differs(r".*", _STATIC),),
    ),
    Case(
        "remappingStaticTopic",
        "remappingStaticTopic -b broker-a -t CmpStatic",
        (Differs(r".*", _STATIC),),
    ),
    # Cleaning
    Case("cleanExpiredCQ", "cleanExpiredCQ -b {broker}"),
    Case("cleanUnusedTopic", "cleanUnusedTopic -b {broker}"),
    Case("deleteExpiredCommitLog", "deleteExpiredCommitLog -b {broker}"),
    Case("wipeWritePerm", "wipeWritePerm -b broker-a", (Differs(r".* OK, (\d+)", _COUNTED),)),
    Case("addWritePerm", "addWritePerm -b broker-a", (Differs(r".* OK, (\d+)", _COUNTED),)),
    Case("deleteSubGroup", "deleteSubGroup -c {cluster} -g cmp_made -r true"),
    Case("consumerProgress -g, deleted", "consumerProgress -g cmp_made"),
    Case("deleteTopic", "deleteTopic -c {cluster} -t CmpMade"),
    Case("topicRoute, deleted", "topicRoute -t CmpMade"),
    Case("deleteTopic, a topic of the system", "deleteTopic -c {cluster} -t TBW102"),
    Case("topicList, at the end", "topicList", (*_TOPICS, Differs("CmpStatic", _STATIC))),
    # Without an end, or without a server
    Case("clusterRT", "clusterRT -c {cluster} -a 2 -s 16", (Differs(r"\S+ broker-a ([\d.]+) 2 0", _RUN),)),
    Case("startMonitoring", "startMonitoring"),
    Case("dumpCompactionLog, of no file", "dumpCompactionLog -f /nowhere/log"),
    Case("exportMetadataInRocksDB, of no store", "exportMetadataInRocksDB -p /nowhere -t topics"),
)
