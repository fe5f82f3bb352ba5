"""What answers which request code? ``broker/processors.py`` adds most codes of POP, and those of ACL."""

from __future__ import annotations

from broker.requests.consumers.heartbeats import ClientProcessor
from broker.requests.consumers.lite import LiteProcessor
from broker.requests.consumers.locks import LockProcessor
from broker.requests.consumers.offsets import OffsetProcessor
from broker.requests.consumers.pull import PullProcessor
from broker.requests.operators.admin import AdminProcessor
from broker.requests.operators.configuration import ConfigProcessor
from broker.requests.operators.inspection import InspectionProcessor
from broker.requests.operators.maintenance import MaintenanceProcessor
from broker.requests.operators.passing_on import PassingOn
from broker.requests.operators.query import QueryProcessor
from broker.requests.operators.spared import SparedProcessor
from broker.requests.operators.tables import TableProcessor
from broker.requests.reply import ReplyProcessor
from broker.requests.send import SendProcessor
from broker.requests.transactions import Transactions
from broker.tables.copies import Copies
from broker.timers.requests import TimerProcessor
from broker.upkeep.log_compare import LogCompare
from broker.upkeep.log_repair import LogRepair
from broker.upkeep.table_sources import TableSources
from model.codes import Request
from remoting.service import Handler


def handlers(
    *,
    send: SendProcessor,
    replies: ReplyProcessor,
    pull: PullProcessor,
    offsets: OffsetProcessor,
    query: QueryProcessor,
    clients: ClientProcessor,
    locks: LockProcessor,
    tables: TableProcessor,
    admin: AdminProcessor,
    configuration: ConfigProcessor,
    inspection: InspectionProcessor,
    passing_on: PassingOn,
    maintenance: MaintenanceProcessor,
    spared: SparedProcessor,
    lite: LiteProcessor,
    transactions: Transactions,
    timers: TimerProcessor,
    copies: Copies,
    repair: LogRepair,
    compare: LogCompare,
    sources: TableSources,
    role_changed: Handler,
) -> dict[int, Handler]:
    """Request code -> what answers it."""
    found: dict[Request, Handler] = {
        Request.SEND_MESSAGE: send.send,
        Request.SEND_MESSAGE_V2: send.send,
        Request.SEND_BATCH_MESSAGE: send.send,
        Request.CONSUMER_SEND_MSG_BACK: send.send_back,
        Request.SEND_REPLY_MESSAGE: replies.reply,
        Request.SEND_REPLY_MESSAGE_V2: replies.reply,
        Request.END_TRANSACTION: transactions.end,
        Request.RESUME_CHECK_HALF_MESSAGE: transactions.resume,
        Request.RECALL_MESSAGE: timers.recall,
        Request.GET_TIMER_CHECK_POINT: timers.check_point,
        Request.GET_TIMER_METRICS: timers.metrics,
        Request.PULL_MESSAGE: pull.pull,
        Request.LITE_PULL_MESSAGE: pull.pull,
        Request.QUERY_CONSUMER_OFFSET: offsets.query,
        Request.UPDATE_CONSUMER_OFFSET: offsets.update,
        Request.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
        Request.GET_MAX_OFFSET: offsets.maximum,
        Request.GET_MIN_OFFSET: offsets.minimum,
        Request.GET_EARLIEST_MSG_STORETIME: offsets.earliest,
        Request.GET_ALL_CONSUMER_OFFSET: offsets.everything,
        Request.VIEW_MESSAGE_BY_ID: query.view,
        Request.QUERY_MESSAGE: query.query,
        Request.HEART_BEAT: clients.heartbeat,
        Request.UNREGISTER_CLIENT: clients.unregister,
        Request.GET_CONSUMER_LIST_BY_GROUP: clients.members,
        Request.CHECK_CLIENT_CONFIG: clients.check_config,
        Request.GET_CONSUMER_CONNECTION_LIST: clients.consumer_connections,
        Request.GET_PRODUCER_CONNECTION_LIST: clients.producer_connections,
        Request.GET_ALL_PRODUCER_INFO: clients.producers,
        Request.LOCK_BATCH_MQ: locks.lock,
        Request.UNLOCK_BATCH_MQ: locks.unlock,
        Request.UPDATE_AND_CREATE_TOPIC: tables.put_topic,
        Request.UPDATE_AND_CREATE_TOPIC_LIST: tables.put_topics,
        Request.DELETE_TOPIC_IN_BROKER: tables.delete_topic,
        Request.GET_ALL_TOPIC_CONFIG: tables.all_topics,
        Request.GET_TOPIC_CONFIG: tables.one_topic,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: tables.put_group,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: tables.put_groups,
        Request.DELETE_SUBSCRIPTIONGROUP: tables.delete_group,
        Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: tables.all_groups,
        Request.GET_SUBSCRIPTIONGROUP_CONFIG: tables.one_group,
        Request.UPDATE_BROKER_CONFIG: configuration.update,
        Request.GET_BROKER_CONFIG: configuration.get,
        Request.GET_BROKER_RUNTIME_INFO: admin.runtime,
        Request.GET_ALL_DELAY_OFFSET: admin.delay_offsets,
        Request.GET_ALL_MESSAGE_REQUEST_MODE: admin.request_modes,
        Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: admin.system_topics,
        Request.GET_TOPIC_STATS_INFO: admin.topic_stats,
        Request.GET_CONSUME_STATS: admin.consume_stats,
        Request.QUERY_TOPIC_CONSUME_BY_WHO: admin.consumed_by,
        Request.QUERY_TOPICS_BY_CONSUMER: admin.topics_of,
        Request.QUERY_SUBSCRIPTION_BY_CONSUMER: admin.subscription_of,
        Request.QUERY_CONSUME_TIME_SPAN: admin.time_span,
        Request.CLONE_GROUP_OFFSET: admin.clone_offsets,
        Request.INVOKE_BROKER_TO_RESET_OFFSET: admin.reset_offset,
        Request.GET_CONSUMER_RUNNING_INFO: passing_on.running_info,
        Request.CONSUME_MESSAGE_DIRECTLY: passing_on.consume,
        Request.QUERY_CONSUME_QUEUE: inspection.queue_entries,
        Request.QUERY_CORRECTION_OFFSET: inspection.correction_offsets,
        Request.GET_BROKER_CONSUME_STATS: inspection.all_consume_stats,
        Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: inspection.consumer_status,
        Request.VIEW_BROKER_STATS_DATA: inspection.stats_of,
        Request.CLEAN_EXPIRED_CONSUMEQUEUE: maintenance.clean_queues,
        Request.CLEAN_UNUSED_TOPIC: maintenance.clean_queues,
        Request.DELETE_EXPIRED_COMMITLOG: maintenance.delete_expired,
        Request.UPDATE_AND_GET_GROUP_FORBIDDEN: maintenance.forbid,
        Request.NOTIFY_MIN_BROKER_ID_CHANGE: maintenance.note_least_broker,
        Request.RESET_MASTER_FLUSH_OFFSET: maintenance.reset_flushed,
        Request.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: spared.check_queues,
        Request.EXPORT_ROCKSDB_CONFIG_TO_JSON: spared.export_tables,
        Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: spared.set_thresholds,
        Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: spared.remove_threshold,
        Request.GET_COLD_DATA_FLOW_CTR_INFO: spared.thresholds,
        Request.SET_COMMITLOG_READ_MODE: spared.set_read_mode,
        Request.SWITCH_TIMER_ENGINE: spared.switch_timers,
        Request.POP_ROLLBACK: spared.roll_back_pops,
        Request.POP_LITE_MESSAGE: lite.pop,
        Request.LITE_SUBSCRIPTION_CTL: lite.subscribe,
        Request.GET_BROKER_LITE_INFO: lite.of_broker,
        Request.GET_PARENT_TOPIC_INFO: lite.of_topic,
        Request.GET_LITE_TOPIC_INFO: lite.of_topic,
        Request.GET_LITE_CLIENT_INFO: lite.of_topic,
        Request.GET_LITE_GROUP_INFO: lite.of_group,
        Request.TRIGGER_LITE_DISPATCH: lite.dispatch,
        Request.GET_BROKER_HA_STATUS: admin.ha_status,
        Request.EXCHANGE_BROKER_HA_INFO: admin.exchange_ha_info,
        Request.GET_BROKER_EPOCH_CACHE: admin.epochs,
        Request.NOTIFY_BROKER_ROLE_CHANGED: role_changed,
        Request.READ_LOG_RANGE: repair.read,
        Request.KEELMQ_LOG_DIGESTS: compare.digests,
        Request.KEELMQ_COPY_TABLES: copies.question,
        Request.KEELMQ_GIVE_TABLES: sources.give,
    }
    return {int(code): handler for code, handler in found.items()}
