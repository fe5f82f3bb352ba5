"""Which keys of its configuration does a broker change while it runs, and where does it keep them?

UPDATE_BROKER_CONFIG (25), GET_BROKER_CONFIG (26).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from broker.context import BrokerContext
from model.codes import Response
from model.config import BrokerConfig
from model.errors import ConfigError, Refused
from model.foreign_keys import sort_out
from model.settings import HIDDEN, properties_of
from remoting import bodies
from remoting.codec import Command
from remoting.service import Connection
from runtime.tasks import SerialCalls

log = logging.getLogger(__name__)

Keep = Callable[[Mapping[str, str]], None]
"""Write these keys where the next start reads them. Blocks; raises ConfigError, OSError."""

_LIVE: Final = """
    accessMessageInMemoryMaxRatio allowRecallWhenBrokerNotWriteable appendTopicForTimerDeleteKey
    autoCreateSubscriptionGroup autoCreateTopicEnable autoReseed brokerElectionPriority brokerPermission
    clientChannelExpiredTimeout commitLogMegabytesMax controllerAddr defaultMessageRequestMode
    defaultPopShareQueueNum defaultTopicQueueNums deleteWhen diskMaxUsedSpaceRatio
    diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio enablePropertyFilter enableRetryTopicV2
    enableSingleTopicRegister fileReservedTime haFlowControlEnable longPollingEnable maxClientBytes
    maxConsumerOffsetPairs maxGroupsInHeartbeat maxHaTransferByteInSecond maxHeartbeatBytes maxHeldPopBytes
    maxHeldPopsPerConnection maxHeldPullBytes maxHeldPulls maxHeldPullsPerConnection maxInvisibleTimeMillis
    maxLmqConsumeQueueNum maxMessageSize maxMessagesInBatch maxPopPollingSize maxQueuesInLock
    maxQueuesInStats maxSubscriptionBytes maxSuspendTimeoutMillis maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInMemory minInSyncReplicas namesrvAddr popCkMaxBufferSize
    popFromRetryProbability popPollingSize popResponseReturnActualRetryTopic recallMessageEnable
    rejectTransactionMessage retrieveMessageFromPopRetryTopicV1 reviveInterval serverLoadBalancerEnable
    slaveSyncMetadataPeriod slaveTimeout storeReplyMessageEnable syncFlushTimeout timerCongestNumEachSlot
    timerMaxDelaySec timerStopDequeue timerStopEnqueue transactionCheckInterval transactionCheckMax
    transactionTimeOut
"""
LIVE_KEYS: Final = frozenset(_LIVE.split())
"""Keys that take effect while the broker runs; a new value of any other is refused, not silently ignored."""
BLACK_LIST: Final = frozenset({"brokerConfigPath", "configBlackList", "rocketmqHome"})
"""The original's, which it refuses whatever their value."""


class ConfigProcessor:
    """Answers 25 and 26. ``on_change`` hears that live keys changed."""

    def __init__(self, context: BrokerContext) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.keep: Keep | None = None
        """None: what is changed holds until the broker ends."""
        self._context = context
        self._config = context.config
        self._unkept: dict[str, str] = {}
        self._writes = SerialCalls(context.env.offload)

    async def update(self, connection: Connection, request: Command) -> Command:
        """Set live keys, all of them or none, also for the next start."""
        try:
            changed, ignored = self._changed(properties_of(request.body))
        except ConfigError as error:
            raise Refused(str(error), Response.INVALID_PARAMETER) from None
        if ignored:
            log.info("keys of RocketMQ that keelmq has no use for, ignored: %s", ", ".join(ignored))
        log.warning("configuration changed by %s: %s", connection.remote, changed)
        for hook in self.on_change:
            hook()
        self._unkept |= changed
        await self._keep_for_the_next_start()
        return request.reply()

    def _changed(self, wanted: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Set what has another value than before; (its keys and texts, names that mean nothing here). Raises
        ConfigError, and Refused for the original's black list, before anything is set."""
        if not BLACK_LIST.isdisjoint(wanted):
            raise Refused("Can not update config in black list.", Response.NO_PERMISSION)
        fields, held = BrokerConfig.keys(), self._config.to_mapping()
        known, ignored = sort_out(wanted, "broker")
        for name in [n for n, v in known.items() if v == HIDDEN and n in fields]:
            if fields[name].metadata["secret"]:
                del known[name]  # a tool sends back what it was shown
        fresh = BrokerConfig.from_mapping({**held, **known})
        texts = fresh.to_mapping()
        changed = {name: texts[name] for name in known if texts[name] != held[name]}
        for name in changed:
            if name not in LIVE_KEYS:
                raise ConfigError(
                    f"{name} cannot be changed while the broker runs: set it in its file and start it"
                    f" again; these can: {sorted(LIVE_KEYS)}"
                )
        for name in changed:
            setattr(self._config, fields[name].name, getattr(fresh, fields[name].name))
        return changed, ignored

    async def _keep_for_the_next_start(self) -> None:
        keep, unkept = self.keep, dict(self._unkept)
        if keep is None or not unkept:
            return
        try:
            await self._writes.run(lambda: keep(unkept))
        except (ConfigError, OSError) as error:
            log.warning("%s: changed until this broker ends only: %s", ", ".join(unkept), error)
        else:
            for name, text in unkept.items():
                if self._unkept.get(name) == text:
                    del self._unkept[name]

    async def get(self, connection: Connection, request: Command) -> Command:
        version = bodies.dumps(self._context.topics.version.to_json()).decode()
        return request.reply(ext={"version": version}, body=self._config.shown().encode())
