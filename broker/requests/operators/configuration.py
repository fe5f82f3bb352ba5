"""Which keys of its configuration does a broker change while it runs?

UPDATE_BROKER_CONFIG (25), GET_BROKER_CONFIG (26).
"""

from __future__ import annotations

from typing import Final

from broker.context import BrokerContext
from remoting import bodies
from remoting.codec import Command
from remoting.operators.live_keys import LiveKeys, Rules
from remoting.service import Connection

_LIVE: Final = """
    accessMessageInMemoryMaxRatio allowRecallWhenBrokerNotWriteable appendTopicForTimerDeleteKey
    autoCreateSubscriptionGroup autoCreateTopicEnable autoReseed brokerElectionPriority brokerPermission
    cleanFileForciblyEnable clientChannelExpiredTimeout commitLogMegabytesMax controllerAddr
    defaultMessageRequestMode defaultPopShareQueueNum defaultTopicQueueNums deleteWhen
    diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio enablePropertyFilter
    enableRetryTopicV2 enableSingleTopicRegister fileReservedTime haFlowControlEnable longPollingEnable
    maxClientBytes maxConsumerOffsetPairs maxGroupsInHeartbeat maxHaTransferByteInSecond maxHeartbeatBytes
    maxHeldPopBytes maxHeldPopsPerConnection maxHeldPullBytes maxHeldPulls maxHeldPullsPerConnection
    maxInvisibleTimeMillis maxLmqConsumeQueueNum maxMessageSize maxMessagesInBatch maxPopPollingSize
    maxQueuesInLock maxQueuesInStats maxSubscriptionBytes maxSuspendTimeoutMillis
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory minInSyncReplicas namesrvAddr
    popCkMaxBufferSize popFromRetryProbability popPollingSize popResponseReturnActualRetryTopic
    recallMessageEnable rejectTransactionMessage retrieveMessageFromPopRetryTopicV1 reviveInterval
    serverLoadBalancerEnable slaveSyncMetadataPeriod slaveTimeout storeReplyMessageEnable syncFlushTimeout
    timerCongestNumEachSlot timerMaxDelaySec timerStopDequeue timerStopEnqueue transactionCheckInterval
    transactionCheckMax transactionTimeOut
"""
RULES: Final = Rules(
    "broker", frozenset(_LIVE.split()), frozenset({"brokerConfigPath", "configBlackList", "rocketmqHome"})
)


class ConfigProcessor(LiveKeys):
    """Answers 25 and 26."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context.env, context.config, RULES)
        self._context = context

    async def get(self, connection: Connection, request: Command) -> Command:
        version = bodies.dumps(self._context.topics.version.to_json()).decode()
        return request.reply(ext={"version": version}, body=self._context.config.shown().encode())
