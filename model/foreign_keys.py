"""Which keys of RocketMQ's configuration files does keelmq read past, and which does it refuse?

A file written for a RocketMQ server sizes its thread pools, its Netty and its page cache handling: keys that
say how it works inside, or tune what keelmq does not have. They are ignored, and named. A key that would
change what clients are promised is not: with any value but what keelmq does anyway it ends the start.

Source: the setters, by which files are read, of ``BrokerConfig``, ``MessageStoreConfig``, ``AuthConfig``,
``NettyServerConfig``, ``NettyClientConfig``, ``NamesrvConfig``, ``ControllerConfig`` and ``JraftConfig`` of
Apache RocketMQ 5.3 and 5.5.0, without those of ``model.config``. RocketMQ itself ignores any other name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from model.errors import ConfigError

_NETTY: Final = """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
    connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup enableReconnectForGoAway
    enableShutdownGracefully maxReconnectIntervalTimeSeconds scanAvailableNameSrv
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
    serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
    shutdownWaitTimeSeconds socksProxyConfig useEpollNativeSelector writeBufferHighWaterMark
    writeBufferLowWaterMark
"""

_BROKER: Final = """
    accessMessageInMemoryHotRatio accountStatsEnable
    accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity aclCacheExpiredSecond
    aclCacheMaxNum aclCacheRefreshSecond adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
    appendAckAsync appendCkAsync
    asyncSendEnable authenticationMetadataProvider authenticationProvider
    authenticationStrategy authorizationMetadataProvider authorizationProvider
    authorizationStrategy autoDeleteUnusedStats autoMessageVersionOnTopicLen
    batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt
    bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond
    broadcastOffsetExpireSecond brokerConfigPath brokerFastFailureEnable brokerNotActiveTimeoutMillis
    brokerTopicEnable cgColdReadThreshold channelExpiredTimeout checkCommitLogOffsetOnRecover
    cleanOfflineBrokerInterval cleanResourceInterval cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval
    clearRetryTopicWhenDeleteTopic clientManagerThreadPoolQueueCapacity clientManageThreadPoolNums
    clusterTopicEnable coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable
    combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
    combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType combineCQUseRocksdbForLmq
    commercialBaseCount commercialSizePerMsg commitCommitLogLeastPages commitCommitLogThoroughInterval
    commitIntervalCommitLog commitLogForceSwapMapInterval commitLogRecoverMaxNum commitLogSwapMapInterval
    commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize
    compactionScheduleInternal compactionThreadNum compatibleWithOldNameSrv compressedRegister
    consumerFallbehindThreshold consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
    consumerOffsetUpdateVersionStep correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
    dataReadAheadEnable debugLockEnable defaultQueryMaxNum
    delayOffsetUpdateVersionStep deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
    deleteFileBatchMax destroyMapedFileIntervalForcibly disappearTimeAfterStart diskFallRecorded
    dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread dLegerGroup dLegerPeers dLegerSelfId
    enableAcceleratedRecovery enableAsyncReput enableBatchPush enableBroadcastOffsetStore
    enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCleanExpiredOffset
    enableConnectionMetrics enableCreateSysGroup enableDetailStat enableFastChannelEventProcess
    enableLagAndDlqMetrics enableLiteEventMode enableLitePopLog enableLmqQuota enableLmqStats
    enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics enableMixedMessageType
    enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag
    enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
    enableRegisterProducer enableRemotingMetrics enableRequestMetrics enableRocksDBLog
    enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
    enableSkipLongAwaitingAck enableSplitMetadata enableSplitRegistration
    enableStatsMetrics enableTransactionMetrics endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter
    fastFailIfNoBufferInStorePool fetchNamesrvAddrInterval filterDataCleanTimeSpan filterSupportRetry
    flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
    flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval
    flushDelayOffsetInterval flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC
    forwardTimeout globalColdReadThreshold haMaxGapNotInSync heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode indexFileReadEnable indexFileWriteEnable
    indexRocksDBEnable initPopOffsetByCheckMsgInMem
    isolateLogEnable iteratorWhenUseRocksdbConsumeQueue
    liteEventCheckInterval liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup
    liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK
    litePullMessageEnable litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    liteSubscriptionCheckInterval liteSubscriptionCheckTimeoutMills liteTtlCheckInterval
    loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums
    loadBalanceThreadPoolQueueCapacity logicalDiskSpaceCleanForciblyThreshold
    logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog mappedFileSwapEnable
    mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum maxChecksumRange
    maxClientEventCount maxConsumeQueueScan maxErrorRateOfBloomFilter maxFilterMessageSize
    maxLiteSubscriptionCount maxMessageFilterNumForNotification maxMsgsNumBatch
    maxOffsetMapSize maxRecoveryCommitlogFiles maxRocksDBIndexQueryDays
    maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength maxTransferBytesOnMessageInDisk
    maxTransferCountOnMessageInDisk memTableFlushIntervalMs messageIndexSafe
    metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints metricsInDelta
    metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort minLiteTTl
    notifyConsumerIdsChangedEnable offsetCheckInSlave osPageCacheBusyTimeOutMills
    persistConsumerOffsetIncrementally popCkOffsetMaxQueueSize popCkStayBufferTime
    popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
    popConsumerKVServiceLog popFromRetryProbabilityForPriority
    popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds
    popPollingMapSize popReviveConcurrency
    popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent preferredLeaderId
    printChannelGroups printChannelGroupsMinNum priorityOrderAsc processReplyMessageThreadPoolNums
    pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums putMessageTimeout
    putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity realTimeNotifyConsumerChange realTimePersistRocksDBConfig
    recheckReputOffsetFromCq recoverConcurrently recoverThreadPoolNums redeleteHangedFileInterval
    registerBrokerTimeoutMills replicasPerDiskPartition replyThreadPoolQueueCapacity
    reviveAckWaitMs reviveMaxSlow
    reviveScanTime rocketmqHome rocksdbCompressionType rocksdbCQDoubleWriteEnable rocksdbFlushWalFrequency
    rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable sendHeartbeatTimeoutMillis
    sendMessageThreadPoolNums sendThreadPoolQueueCapacity sharedByteBufferNum
    shortPollingTimeMills skipPreOnline skipWhenCKRePutReachMaxTimes slaveReadEnable
    spinLockCollisionRetreatOptimalDegree splitMetadataSize splitRegistrationSize
    statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum statRocksDBCQIntervalSec
    storePathDLedgerCommitLog subscriptionExpiredTimeout
    syncBrokerMemberGroupPeriod syncControllerMetadataPeriod syncMasterFlushOffsetWhenStartup
    timerCheckMetricsWhen timerColdDataCheckIntervalMs timerEnableCheckMetrics
    timerEnableDisruptor timerEnableRetryUntilSuccess timerGetMessageThreadNum
    timerInterceptDelayLevel timerMetricSmallThreshold
    timerProgressLogIntervalMs timerPutMessageThreadNum timerRecallToTimelineEnable
    timerRecallToTimeWheelEnable timerReputServiceCorePoolSize timerReputServiceMaxPoolSize
    timerReputServiceQueueCapacity timerRocksDBPrecisionMs timerRocksDBRollIntervalHours
    timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
    timerSkipUnknownError timerWarmEnable
    timerWheelSnapshotFlush timerWheelSnapshotIntervalMs topicQueueLockNum
    transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
    transactionCheckRocksdbQueueCapacity transactionMetricFlushInterval transactionOpBatchInterval
    transactionOpMsgMaxSize transferMsgByHeap transientStorePoolEnable transientStorePoolSize
    transRocksDBEnable transWriteOriginTransHalfEnable travelCqFileNumWhenGetMessage
    updateNameServerAddrPeriod useABSLock useMessageFilterForNotification usePIDColdCtrStrategy
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond useReentrantLockWhenPutMessage
    useSeparateRetryQueue useSeparateStorePathForRocksdbCQ useServerSideResetOffset
    useSingleRocksDBForAllConfigs useStaticSubscription validateSystemTopicWhenUpdateTopic
    waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
    waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
    waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
    writeWithoutMmap
"""

_CONTROL: Final = """
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity configStorePath
    controllerRequestThreadPoolQueueCapacity controllerThreadPoolNums defaultThreadPoolNums
    defaultThreadPoolQueueCapacity jRaftControllerRPCAddr jRaftElectionTimeoutMs jRaftGroupId
    jRaftInitConf jRaftScanWaitTimeoutMs jRaftServerId jRaftSnapshotIntervalSecs mappedFileSize
    metricLoggingExporterIntervalInMills metricsInDelta metricsPromExporterHost metricsPromExporterPort
    processReadEvent productEnvName rocketmqHome unRegisterBrokerQueueCapacity waitSecondsForService
"""

BROKER_IGNORES: Final = frozenset((_NETTY + _BROKER).split())
CONTROL_IGNORES: Final = frozenset((_NETTY + _CONTROL).split())
"""For a NameServer, a Controller, and both in one process."""

_OFF: Final = ("false",)
_ON: Final = ("true",)
_LIST: Final = "list the addresses"

REFUSED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "migrateAuthFromV1Enabled": (_OFF, "accounts of ACL 1.0 are not made users of ACL 2.0"),
    "enableConsumeQueueExt": (_OFF, "a ConsumeQueue holds tag codes only"),
    "timerRocksDBEnable": (_OFF, "timer messages wait in their topic and a wheel, not in RocksDB"),
    "enableCompaction": (_OFF, "topics are not compacted"),
    "rejectPullConsumerEnable": (_OFF, "consumers that pull are served"),
    "disableConsumeIfConsumerReadSlowly": (_OFF, "a consumer that falls behind is served on"),
    "lockInStrictMode": (_OFF, "queues are locked at the master only"),
    "startAcceptSendRequestTimeStamp": (("0",), "sends are taken from the start on"),
    "duplicationEnable": (_OFF, "replicas are made by the HA protocol only"),
    "enableDLegerCommitLog": (_OFF, "the log is replicated from a master the Controllers elect"),
    "enableAutoInSyncReplicas": (_OFF, "inSyncReplicas is never lowered by itself"),
    "readUnCommitted": (_OFF, "consumers read only what every in-sync replica has"),
    "storeType": (("default",), "queues are files, not RocksDB"),
    "configManagerVersion": (("v1",), "tables are JSON files, not RocksDB"),
    "messageStorePlugIn": (("",), "the store takes no plug-ins"),
    "readOnlyCommitLogStorePaths": (("",), "the log is in one directory"),
    "enableRemoteEscape": (_OFF, "no message is put into another group"),
    "inBrokerContainer": (_OFF, "a process runs one broker"),
    "fetchNamesrvAddrByAddressServer": (_OFF, f"{_LIST} in namesrvAddr"),
    "fetchNameSrvAddrByDnsLookup": (_OFF, f"{_LIST} in namesrvAddr"),
    "fetchControllerAddrByDnsLookup": (_OFF, f"{_LIST} in controllerAddr"),
    "configBlackList": (("",), "which keys a request may change is fixed"),
    "enableAllTopicList": (_ON, "the list of topics is given to who asks"),
    "enableTopicList": (_ON, "the list of topics is given to who asks"),
    "needWaitForService": (_OFF, "a NameServer answers from its start on"),
    "clusterTest": (_OFF, "a NameServer asks no other environment for routes"),
    "controllerType": (("dledger",), "name the Controllers in controllerDLegerPeers"),
}
"""Key -> (values that say what keelmq does anyway, in lower case; what it does)."""


def sort_out(values: Mapping[str, str], role: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """``values`` without RocketMQ's keys that a server of ``role`` has no use for, and the names it ignored.

    Raises ConfigError for a key that asks for what keelmq does not do. Names nobody knows stay.
    """
    ignores = BROKER_IGNORES if role == "broker" else CONTROL_IGNORES
    kept: dict[str, str] = {}
    ignored = []
    for name, value in values.items():
        if name in REFUSED:
            _refuse(name, value)
        elif name in ignores:
            ignored.append(name)
        else:
            kept[name] = value
    return kept, tuple(ignored)


def _refuse(name: str, value: str) -> None:
    same, instead = REFUSED[name]
    if value.strip().lower() not in same:
        raise ConfigError(
            f"keelmq does not support {name}={value}: {instead}."
            f" Leave the key out{f', or set it to {same[0]}' if same[0] else ''}"
        )
