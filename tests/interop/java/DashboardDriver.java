import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.*;

/**
 * Does what the pages of rocketmq-dashboard do (cluster, topic, consumer, producer, message, trace, dead letters, and
 * what it collects by itself), by the admin client as it has it. "TOOL asked" names each request code with the codes of
 * its answers. NAMESRV: one broker, "broker-a", with the default topic.
 */
public class DashboardDriver {
    private static final String TOPIC = "DashOrders", GROUP = "dash_readers", AWAY = "dash_away", FIFO = "DashFifo";
    private static final int COUNT = 8;
    private static final SortedMap<Integer, SortedSet<Integer>> ASKED = Collections.synchronizedSortedMap(new TreeMap<>());

    static final class Noted implements RPCHook {
        @Override public void doBeforeRequest(String address, RemotingCommand request) { }
        @Override public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            ASKED.computeIfAbsent(request.getCode(), code -> new TreeSet<>()).add(response == null ? -1 : response.getCode());
        }
    }

    interface Step { Object ask() throws Exception; }

    static void told(String what, Object value) { System.out.println("TOOL " + what + " " + value); }

    /** Notes a refusal as an answer, for it is compared as one. */
    static void step(String what, Step step) throws Exception {
        try {
            told(what, step.ask());
        } catch (MQClientException error) {
            told(what, "refused " + error.getResponseCode());
        } catch (MQBrokerException error) {
            told(what, "refused " + error.getResponseCode());
        }
    }

    static void await(String what, Callable<Boolean> holds) throws Exception {
        long end = System.currentTimeMillis() + 90_000;
        while (!holds.call()) {
            if (System.currentTimeMillis() > end) throw new IllegalStateException("waited for " + what);
            Thread.sleep(100);
        }
    }

    private final String namesrv;
    private final Noted hook = new Noted();
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(hook, 20_000);
    private final Queue<String> handled = new ConcurrentLinkedQueue<>();
    private String master, cluster;

    DashboardDriver(String namesrv) { this.namesrv = namesrv; }

    public static void main(String[] arguments) {
        try {
            new DashboardDriver(arguments[0]).run();
            ASKED.forEach((code, answers) -> told("asked " + code, answers));
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private void run() throws Exception {
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("dashboard" + System.nanoTime());
        admin.start();
        clusterPage();
        topicPage();
        DefaultMQPushConsumer consumer = consumer();
        List<SendResult> sent = send();
        await("the messages", () -> handled.size() >= COUNT);
        producerPage();
        messagePage(sent);
        consumerPage(consumer);
        collected();
        consumer.shutdown();
        deleted();
    }

    private void clusterPage() throws Exception {
        var info = admin.examineBrokerClusterInfo();
        cluster = info.getClusterAddrTable().keySet().iterator().next();
        master = info.getBrokerAddrTable().get("broker-a").getBrokerAddrs().get(0L);
        told("cluster", info.getClusterAddrTable() + " " + info.getBrokerAddrTable().get("broker-a").getBrokerAddrs().keySet());
        var table = admin.fetchBrokerRuntimeStats(master).getTable();
        for (String name : "brokerVersionDesc putTps getTransferredTps msgPutTotalTodayNow msgGetTotalTodayNow msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning".split(" "))
            told("cluster page " + name, table.containsKey(name));
        var config = admin.getBrokerConfig(master);
        told("config page", config.getProperty("brokerName") + " " + config.getProperty("defaultTopicQueueNums"));
    }

    private void topicPage() throws Exception {
        TopicConfig topic = new TopicConfig(TOPIC, 4, 4, 6);
        admin.createAndUpdateTopicConfig(master, topic);
        TopicConfig fifo = new TopicConfig(FIFO, 2, 2, 6);
        fifo.setOrder(true);
        fifo.setAttributes(Map.of("+message.type", "FIFO"));
        admin.createAndUpdateTopicConfig(master, fifo);
        await("its route", () -> admin.fetchAllTopicList().getTopicList().contains(TOPIC));
        var all = admin.getAllTopicConfig(master, 10_000).getTopicConfigTable();
        told("topics", all.values().stream().filter(t -> t.getTopicName().startsWith("Dash")).map(DashboardDriver::shown).sorted().collect(Collectors.toList()));
        told("topic config", shown(admin.examineTopicConfig(master, FIFO)));
        step("topic config of none", () -> shown(admin.examineTopicConfig(master, "DashNone")));
        told("topic route", admin.examineTopicRouteInfo(TOPIC).getQueueDatas());
        told("topic status", admin.examineTopicStats(TOPIC).getOffsetTable().size());
        told("topic readers", admin.queryTopicConsumeByWho(TOPIC).getGroupList());
        DefaultMQProducer asks = new DefaultMQProducer("SELF_TEST_P_GROUP", hook);
        asks.setNamesrvAddr(namesrv);
        asks.setInstanceName("system" + System.nanoTime());
        asks.start();
        var system = asks.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl().getSystemTopicList(20_000).getTopicList();
        told("system topics", system.stream().filter(t -> !t.contains("ROCKSDB")).sorted().collect(Collectors.toList()));
        asks.shutdown();
    }

    private static String shown(TopicConfig t) {
        return t.getTopicName() + " " + t.getReadQueueNums() + "/" + t.getWriteQueueNums() + " " + t.getPerm() + " " + t.isOrder() + " " + t.getTopicSysFlag() + " " + new TreeMap<>(t.getAttributes());
    }

    private DefaultMQPushConsumer consumer() throws Exception {
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(AWAY);
        group.setRetryMaxTimes(3);
        admin.createAndUpdateSubscriptionGroupConfig(master, group);
        group.setGroupName(GROUP);
        admin.createAndUpdateSubscriptionGroupConfig(master, group);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20_000);
        consumer.setInstanceName("readers");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) handled.add(message.getKeys());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private DefaultMQProducer producer;

    private List<SendResult> send() throws Exception {
        producer = new DefaultMQProducer("dash_senders", hook, true, "RMQ_SYS_TRACE_TOPIC");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        List<SendResult> sent = new ArrayList<>();
        for (int n = 0; n < COUNT; n++)
            sent.add(producer.send(new Message(TOPIC, "tag", "key-" + n, ("body " + n).getBytes(StandardCharsets.UTF_8)), new MessageQueue(TOPIC, "broker-a", n % 4)));
        TransactionMQProducer both = new TransactionMQProducer("SELF_TEST_P_GROUP", hook);
        both.setNamesrvAddr(namesrv);
        both.setInstanceName("paid" + System.nanoTime());
        both.setSendMsgTimeout(20_000);
        both.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message m, Object a) { return LocalTransactionState.COMMIT_MESSAGE; }
            @Override public LocalTransactionState checkLocalTransaction(MessageExt m) { return LocalTransactionState.COMMIT_MESSAGE; }
        });
        both.start();
        told("sent in a transaction", both.sendMessageInTransaction(new Message("DashPaid", "tag", "paid", "paid".getBytes()), null).getSendStatus());
        both.shutdown();
        return sent;
    }

    private void producerPage() throws Exception {
        await("the producer", () -> {
            try {
                return admin.examineProducerConnectionInfo("dash_senders", TOPIC).getConnectionSet().size() == 1;
            } catch (MQBrokerException error) {
                return false; // before its heartbeat
            }
        });
        told("producers", admin.examineProducerConnectionInfo("dash_senders", TOPIC).getConnectionSet().size());
        step("producers of none", () -> admin.examineProducerConnectionInfo("dash_none", TOPIC).getConnectionSet().size());
    }

    private void messagePage(List<SendResult> sent) throws Exception {
        String id = sent.get(3).getMsgId();
        await("the index", () -> {
            try {
                return admin.viewMessage(TOPIC, id) != null;
            } catch (MQClientException error) {
                return false;
            }
        });
        MessageExt seen = admin.viewMessage(TOPIC, id);
        told("message by id", seen.getKeys() + " " + seen.getQueueId() + " " + seen.getQueueOffset() + " " + new String(seen.getBody()));
        told("message by offset id", admin.viewMessage(TOPIC, sent.get(4).getOffsetMsgId()).getKeys());
        step("message of no id", () -> admin.viewMessage(TOPIC, "7F000001000000000000000000000000").getKeys());
        told("messages by key", admin.queryMessage(TOPIC, "key-5", 64, 0, System.currentTimeMillis()).getMessageList().size());
        step("messages by no key", () -> admin.queryMessage(TOPIC, "key-none", 64, 0, System.currentTimeMillis()).getMessageList().size());
        await("what the reader committed", () -> admin.examineConsumeStats(GROUP, TOPIC).computeTotalDiff() == 0);
        told("tracks", admin.messageTrackDetail(seen).stream().map(t -> t.getConsumerGroup() + " " + t.getTrackType()).sorted().collect(Collectors.toList()));
        String client = admin.examineConsumerConnectionInfo(GROUP).getConnectionSet().iterator().next().getClientId();
        handled.clear();
        var again = admin.consumeMessageDirectly(GROUP, client, TOPIC, id);
        told("consumed directly", again.getConsumeResult() + " " + again.isOrder() + " " + again.isAutoCommit() + " " + new ArrayList<>(handled));
        step("consumed directly by nobody", () -> admin.consumeMessageDirectly(GROUP, "nobody", TOPIC, id).getConsumeResult());
        DefaultMQPullConsumer pages = new DefaultMQPullConsumer("TOOLS_CONSUMER", hook);
        pages.setNamesrvAddr(namesrv);
        pages.start();
        List<String> found = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(pages.fetchSubscribeMessageQueues(TOPIC))) {
            long begin = pages.searchOffset(queue, seen.getBornTimestamp() - 60_000), end = pages.searchOffset(queue, System.currentTimeMillis());
            PullResult part = pages.pull(queue, "*", begin, 32);
            found.add(queue.getQueueId() + ":" + begin + "-" + end + " " + part.getPullStatus() + " " + part.getMsgFoundList().size() + " "
                + pages.pull(queue, "*", part.getNextBeginOffset(), 32).getPullStatus());
        }
        told("messages by time", found);
        pages.shutdown();
        await("the trace", () -> {
            try {
                return admin.queryMessage("RMQ_SYS_TRACE_TOPIC", id, 64, 0, System.currentTimeMillis()).getMessageList().size() > 0;
            } catch (MQClientException error) {
                return false;
            }
        });
        told("trace", admin.queryMessage("RMQ_SYS_TRACE_TOPIC", id, 64, 0, System.currentTimeMillis()).getMessageList().size());
        step("dead letters", () -> admin.examineTopicRouteInfo("%DLQ%" + GROUP).getQueueDatas());
    }

    private void consumerPage(DefaultMQPushConsumer consumer) throws Exception {
        var groups = admin.getAllSubscriptionGroup(master, 20_000).getSubscriptionGroupTable();
        told("groups", groups.values().stream().filter(g -> g.getGroupName().startsWith("dash_")).map(DashboardDriver::shown).sorted().collect(Collectors.toList()));
        told("group config", shown(admin.examineSubscriptionGroupConfig(master, GROUP)));
        var online = admin.examineConsumerConnectionInfo(GROUP, master);
        told("group online", online.getConnectionSet().size() + " " + online.getConsumeType() + " " + online.getMessageModel() + " " + online.getConsumeFromWhere() + " " + new TreeSet<>(online.getSubscriptionTable().keySet()));
        step("group not online", () -> admin.examineConsumerConnectionInfo(AWAY).getConnectionSet().size());
        String client = online.getConnectionSet().iterator().next().getClientId();
        for (boolean stacks : new boolean[] {false, true}) {
            var running = admin.getConsumerRunningInfo(GROUP, client, stacks);
            told("running " + stacks, running.getMqTable().size() + " " + running.getSubscriptionSet().size() + " " + running.getStatusTable().keySet() + " " + (running.getJstack() != null));
        }
        told("group progress", admin.examineConsumeStats(GROUP).getOffsetTable().entrySet().stream().filter(e -> e.getKey().getTopic().equals(TOPIC))
            .map(e -> e.getKey().getQueueId() + ":" + e.getValue().getConsumerOffset() + "/" + e.getValue().getBrokerOffset()).sorted().collect(Collectors.toList()));
        step("progress of a group that read nothing", () -> admin.examineConsumeStats(AWAY).getOffsetTable().size());
        handled.clear();
        step("reset, online", () -> reset(admin.resetOffsetByTimestamp(TOPIC, GROUP, 0, true)));
        step("reset, not online", () -> reset(admin.resetOffsetByTimestamp(TOPIC, AWAY, 0, true)));
        step("reset, the old way", () -> admin.resetOffsetByTimestampOld(AWAY, TOPIC, 0, true).size());
        await("the messages again", () -> handled.size() >= COUNT);
        told("read again", new TreeSet<>(handled));
    }

    private static String reset(Map<MessageQueue, Long> to) {
        return to.entrySet().stream().map(e -> e.getKey().getQueueId() + ":" + e.getValue()).sorted().collect(Collectors.joining(" "));
    }

    private static String shown(SubscriptionGroupConfig g) {
        return g.getGroupName() + " " + g.isConsumeEnable() + " " + g.isConsumeBroadcastEnable() + " " + g.getRetryQueueNums() + " " + g.getRetryMaxTimes() + " " + g.getBrokerId() + " " + g.isConsumeMessageOrderly();
    }

    private void collected() throws Exception {
        await("the counters", () -> {
            try {
                return admin.viewBrokerStatsData(master, "TOPIC_PUT_NUMS", TOPIC).getStatsMinute().getSum() > 0
                    && admin.viewBrokerStatsData(master, "GROUP_GET_NUMS", TOPIC + "@" + GROUP).getStatsMinute().getSum() > 0;
            } catch (MQClientException error) {
                return false;
            }
        });
        told("counters", admin.viewBrokerStatsData(master, "TOPIC_PUT_NUMS", TOPIC).getStatsMinute().getTps() > 0);
        String[] rates = admin.fetchBrokerRuntimeStats(master).getTable().get("getTotalTps").split(" ");
        told("rates", rates.length > 0 && Double.parseDouble(rates[0]) >= 0);
    }

    private void deleted() throws Exception {
        producer.shutdown();
        for (String group : new String[] {GROUP, AWAY}) {
            admin.deleteSubscriptionGroup(master, group, true);
            for (String topic : new String[] {"%RETRY%" + group, "%DLQ%" + group}) {
                step("delete " + topic, () -> { admin.deleteTopicInBroker(Set.of(master), topic); return "done"; });
                step("forget " + topic, () -> { admin.deleteTopicInNameServer(Set.of(namesrv.split(";")), topic); return "done"; });
            }
        }
        for (String topic : new String[] {TOPIC, FIFO}) {
            admin.deleteTopicInBroker(Set.of(master), topic);
            admin.deleteTopicInNameServer(Set.of(namesrv.split(";")), topic);
        }
        step("route, deleted", () -> admin.examineTopicRouteInfo(TOPIC).getQueueDatas());
    }
}
