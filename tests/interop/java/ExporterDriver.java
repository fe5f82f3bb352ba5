import java.util.*;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Asks what rocketmq-exporter asks (its six tasks: topic offsets, producers, consumer offsets, counters by topic, of
 * brokers, their runtime), in its order, by the admin client of 4.9 as it has it. "TOOL asked" names each request code
 * with the codes of its answers, the other lines what the exporter's metrics are made of. NAMESRV TOPIC...
 */
public class ExporterDriver {
    private static final SortedMap<Integer, SortedSet<Integer>> ASKED = Collections.synchronizedSortedMap(new TreeMap<>());

    static final class Noted implements RPCHook {
        @Override public void doBeforeRequest(String address, RemotingCommand request) { }
        @Override public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            ASKED.computeIfAbsent(request.getCode(), code -> new TreeSet<>()).add(response == null ? -1 : response.getCode());
        }
    }

    interface Step { Object ask() throws Exception; }

    static void told(String what, Object value) { System.out.println("TOOL " + what + " " + value); }

    static void step(String what, Step step) throws Exception {
        try {
            told(what, step.ask());
        } catch (MQClientException error) {
            told(what, "refused " + error.getResponseCode());
        } catch (MQBrokerException error) {
            told(what, "refused " + error.getResponseCode());
        }
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
            ASKED.forEach((code, answers) -> told("asked " + code, answers));
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // threads of its clients would keep the process
        }
    }

    private static void run(String[] arguments) throws Exception {
        Noted hook = new Noted();
        DefaultMQAdminExt admin = new DefaultMQAdminExt(hook, 20_000);
        admin.setNamesrvAddr(arguments[0]);
        admin.setInstanceName("exporter" + System.nanoTime());
        admin.start();
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer("TOOLS_CONSUMER", hook);
        puller.setNamesrvAddr(arguments[0]);
        puller.setInstanceName("puller" + System.nanoTime());
        puller.start();
        puller.getDefaultMQPullConsumerImpl().getPullAPIWrapper().setConnectBrokerByUser(true);
        List<String> topics = Arrays.asList(arguments).subList(1, arguments.length);

        var cluster = admin.examineBrokerClusterInfo();
        var all = admin.fetchAllTopicList().getTopicList();
        for (String topic : new TreeSet<>(all)) {
            boolean ours = topics.contains(topic);
            var stats = admin.examineTopicStats(topic);
            if (ours) told("offsets " + topic, stats.getOffsetTable().entrySet().stream()
                .map(e -> e.getKey().getQueueId() + ":" + e.getValue().getMinOffset() + "-" + e.getValue().getMaxOffset() + (e.getValue().getLastUpdateTimestamp() > 0))
                .sorted().collect(Collectors.joining(" ")));
        }
        for (var broker : cluster.getBrokerAddrTable().values())
            for (var group : new TreeMap<>(admin.getAllProducerInfo(broker.getBrokerAddrs().get(0L)).getData()).entrySet())
                if (!group.getKey().startsWith("CLIENT_INNER")) told("producers " + group.getKey(), group.getValue().size());
        for (String topic : topics) consumers(admin, puller, topic);
        for (String topic : topics) counters(admin, topic);
        for (var named : cluster.getClusterAddrTable().entrySet())
            for (String broker : named.getValue()) {
                String master = cluster.getBrokerAddrTable().get(broker).getBrokerAddrs().get(0L);
                for (String name : new String[] {"BROKER_PUT_NUMS", "BROKER_GET_NUMS"})
                    step("counter " + name, () -> admin.viewBrokerStatsData(master, name, named.getKey()).getStatsDay().getSum() > 0);
                runtime(new TreeMap<>(admin.fetchBrokerRuntimeStats(master).getTable()));
            }
    }

    private static void consumers(DefaultMQAdminExt admin, DefaultMQPullConsumer puller, String topic) throws Exception {
        for (String group : new TreeSet<>(admin.queryTopicConsumeByWho(topic).getGroupList())) {
            String what = topic + " " + group;
            step("online " + what, () -> {
                var online = admin.examineConsumerConnectionInfo(group);
                for (var one : online.getConnectionSet()) {
                    var running = admin.getConsumerRunningInfo(group, one.getClientId(), false);
                    told("running " + what, running.getProperties().get("PROP_CONSUME_TYPE") + " " + running.getSubscriptionSet().size() + " " + running.getMqTable().size());
                }
                return online.getConnectionSet().size() + " " + online.getMessageModel() + " " + online.getConsumeType();
            });
            step("behind " + what, () -> { // a group without a retry topic is left out there, too
                var stats = admin.examineConsumeStats(group, topic);
                List<String> pulled = new ArrayList<>();
                for (Map.Entry<MessageQueue, ?> row : new TreeMap<MessageQueue, Object>(stats.getOffsetTable()).entrySet()) {
                    var place = stats.getOffsetTable().get(row.getKey());
                    var found = puller.pull(row.getKey(), "*", place.getConsumerOffset(), 1);
                    pulled.add(row.getKey().getQueueId() + ":" + place.getConsumerOffset() + "/" + place.getBrokerOffset() + " " + found.getPullStatus());
                }
                return stats.computeTotalDiff() + " " + pulled;
            });
        }
    }

    private static void counters(DefaultMQAdminExt admin, String topic) throws Exception {
        var route = admin.examineTopicRouteInfo(topic);
        var groups = new TreeSet<>(admin.queryTopicConsumeByWho(topic).getGroupList());
        for (var broker : route.getBrokerDatas()) {
            String master = broker.getBrokerAddrs().get(0L);
            for (String name : new String[] {"TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"})
                step("counter " + name + " " + topic, () -> admin.viewBrokerStatsData(master, name, topic).getStatsDay().getSum() > 0);
            for (String group : groups)
                for (String name : new String[] {"GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"})
                    step("counter " + name + " " + topic + "@" + group, () -> admin.viewBrokerStatsData(master, name, topic + "@" + group).getStatsDay().getSum() > 0);
        }
    }

    /** What the exporter takes apart; it gives a broker up whose table lacks one, or has another form of it. */
    private static void runtime(Map<String, String> table) {
        for (String name : ("msgPutTotalTodayNow msgGetTotalTodayNow msgPutTotalTodayMorning msgGetTotalTodayMorning msgPutTotalYesterdayMorning"
            + " msgGetTotalYesterdayMorning sendThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills"
            + " queryThreadPoolQueueSize pullThreadPoolQueueSize sendThreadPoolQueueSize sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity"
            + " queryThreadPoolQueueCapacity bootTimestamp commitLogMinOffset commitLogMaxOffset dispatchMaxBuffer brokerVersion pageCacheLockTimeMills"
            + " getMessageEntireTimeMax putMessageEntireTimeMax putMessageTimesTotal startAcceptSendRequestTimeStamp earliestMessageTimeStamp"
            + " remainTransientStoreBufferNumbs putMessageSizeTotal dispatchBehindBytes").split(" ")) told("runtime " + name, table.containsKey(name) ? Long.parseLong(table.get(name)) >= -1 : "absent");
        for (String name : "consumeQueueDiskRatio commitLogDiskRatio putMessageAverageSize putLatency99 putLatency999".split(" "))
            told("runtime " + name, table.containsKey(name) ? Double.parseDouble(table.get(name)) >= -1 : "absent");
        told("runtime remainHowManyDataToFlush", Double.parseDouble(table.get("remainHowManyDataToFlush").split(" ")[0]) >= 0);
        for (String name : "putTps getMissTps getTransferredTps getTotalTps getFoundTps".split(" "))
            told("runtime " + name, Arrays.stream(table.get(name).trim().split(" ")).mapToDouble(Double::parseDouble).min().getAsDouble() >= 0);
        String[] capacity = table.get("commitLogDirCapacity").split(" ");
        told("runtime commitLogDirCapacity", capacity.length + " " + (Double.parseDouble(capacity[2]) > 0) + capacity[3] + (Double.parseDouble(capacity[6]) > 0) + capacity[7]);
        String times = table.get("putMessageDistributeTime");
        told("runtime putMessageDistributeTime", "null".equals(times) ? times : Arrays.stream(times.split(" ")).map(part -> part.split(":")[0]).collect(Collectors.toList()));
        told("runtime scheduleMessageOffset", table.entrySet().stream().filter(e -> e.getKey().startsWith("scheduleMessageOffset"))
            .allMatch(e -> e.getValue().split(",").length == 2));
        told("runtime runtime", table.get("runtime").replaceAll("\\d+", "n"));
    }
}
