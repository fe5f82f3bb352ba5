import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * Drives the unmodified RocketMQ client from the tests: each command prints one line of JSON-free "key=value"
 * facts per event on standard output and exits 0 when the client saw what it was promised.
 */
public class ClientDriver {
    private static final PrintStreamLock OUT = new PrintStreamLock();

    static final class PrintStreamLock {
        synchronized void line(String text) {
            System.out.println("DRIVER " + text);
            System.out.flush();
        }
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the client's own threads would keep the process alive
        }
    }

    private static void run(String[] arguments) throws Exception {
        String command = arguments[0], namesrv = arguments[1], topic = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        boolean good;
        switch (command) {
            case "sync": good = sync(namesrv, topic, count); break;
            case "async": good = async(namesrv, topic, count); break;
            case "oneway": good = oneway(namesrv, topic, count); break;
            case "batch": good = batch(namesrv, topic, count); break;
            case "group": good = group(namesrv, topic, count, arguments[4], Integer.parseInt(arguments[5])); break;
            case "pull": good = pull(namesrv, topic, count); break;
            case "retry": good = retry(namesrv, topic, count, arguments[4]); break;
            case "trace": good = trace(namesrv, topic, count, arguments[4]); break;
            case "starts": good = starts(namesrv, topic, count, arguments[4]); break;
            case "sql": good = sql(namesrv, topic, count, arguments[4], String.join(" ", Arrays.copyOfRange(arguments, 5, arguments.length))); break;
            default: throw new IllegalArgumentException("unknown command " + command);
        }
        System.exit(good ? 0 : 2);
    }

    private static void at(ClientConfig client, String namesrv) {
        client.setNamesrvAddr(namesrv);
        client.setMqClientApiTimeout(20_000); // a cold JVM on a busy machine needs more than the default 3 s
    }

    private static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop_producer");
        at(producer, namesrv);
        producer.setInstanceName("p" + System.nanoTime());
        producer.setSendMsgTimeout(20_000);
        producer.start();
        return producer;
    }

    /** Sends and consumes with the message trace on. */
    private static boolean trace(String namesrv, String topic, int count, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("traced_java", true, null); // as 4.9 has it, too
        at(producer, namesrv);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        Set<String> keys = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, null);
        at(consumer, namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) keys.add(message.getKeys());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int i = 0; i < count; i++) told(producer.send(message(topic, "traced", i)), "traced-" + i);
        long end = System.currentTimeMillis() + 90_000;
        while (System.currentTimeMillis() < end && keys.size() < count) Thread.sleep(100);
        Thread.sleep(6000); // what is told leaves every 5 s
        consumer.shutdown();
        producer.shutdown();
        return keys.size() >= count;
    }

    private static Message message(String topic, String kind, int number) {
        Message message = new Message(topic, number % 2 == 0 ? "even" : "odd", kind + "-" + number,
            (kind + " body " + number).getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", String.valueOf(number));
        return message;
    }

    private static void told(SendResult result, String key) {
        OUT.line("sent key=" + key + " status=" + result.getSendStatus() + " queue=" + result.getMessageQueue().getQueueId()
            + " offset=" + result.getQueueOffset() + " msgId=" + result.getMsgId() + " offsetMsgId=" + result.getOffsetMsgId());
    }

    private static boolean sync(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        int good = 0;
        for (int i = 0; i < count; i++) {
            SendResult result = producer.send(message(topic, "sync", i));
            told(result, "sync-" + i);
            if (result.getSendStatus() == SendStatus.SEND_OK) good++;
        }
        producer.shutdown();
        return good == count;
    }

    private static boolean async(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        CountDownLatch done = new CountDownLatch(count);
        AtomicInteger good = new AtomicInteger();
        Semaphore window = new Semaphore(32);
        for (int i = 0; i < count; i++) {
            final String key = "async-" + i;
            window.acquire();
            producer.send(message(topic, "async", i), new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    told(result, key);
                    if (result.getSendStatus() == SendStatus.SEND_OK) good.incrementAndGet();
                    window.release();
                    done.countDown();
                }
                @Override public void onException(Throwable error) {
                    OUT.line("failed key=" + key + " error=" + error);
                    window.release();
                    done.countDown();
                }
            });
        }
        done.await(60, TimeUnit.SECONDS);
        producer.shutdown();
        return good.get() == count;
    }

    private static boolean oneway(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        for (int i = 0; i < count; i++) producer.sendOneway(message(topic, "oneway", i));
        Thread.sleep(1000);
        producer.shutdown();
        return true;
    }

    private static boolean batch(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < count; i++) messages.add(message(topic, "batch", i));
        SendResult result = producer.send(messages);
        told(result, "batch");
        producer.shutdown();
        return result.getSendStatus() == SendStatus.SEND_OK && result.getMsgId().split(",").length == count;
    }

    /** Two members of one push group read until COUNT different keys were seen; each must own queues. */
    private static boolean group(String namesrv, String topic, int count, String group, int seconds) throws Exception {
        Set<String> keys = ConcurrentHashMap.newKeySet();
        List<Set<Integer>> queues = new ArrayList<>();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (int member = 0; member < 2; member++) {
            final int number = member;
            final Set<Integer> own = ConcurrentHashMap.newKeySet();
            queues.add(own);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            at(consumer, namesrv);
            consumer.setInstanceName("c" + member + System.nanoTime());
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                for (MessageExt message : batch) {
                    own.add(message.getQueueId());
                    keys.add(message.getKeys());
                    OUT.line("read member=" + number + " key=" + message.getKeys() + " queue=" + message.getQueueId()
                        + " offset=" + message.getQueueOffset() + " tags=" + message.getTags() + " number=" + message.getUserProperty("number"));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            members.add(consumer);
        }
        for (DefaultMQPushConsumer consumer : members) consumer.start();
        long end = System.currentTimeMillis() + seconds * 1000L;
        boolean split = false;
        while (System.currentTimeMillis() < end && !(keys.size() >= count && split)) {
            Thread.sleep(200);
            int first = members.get(0).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().size();
            int second = members.get(1).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().size();
            Set<MessageQueue> both = new HashSet<>(members.get(0).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet());
            both.retainAll(members.get(1).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet());
            split = first > 0 && second > 0 && both.isEmpty();
        }
        OUT.line("group keys=" + keys.size() + " split=" + split);
        for (DefaultMQPushConsumer consumer : members) consumer.shutdown();
        return keys.size() >= count && split;
    }

    /** A listener that fails each message once: all must come back through the retry topic. */
    /** Consumes what a SQL92 expression takes, and a second longer than it takes to get ``count`` of it. */
    private static boolean sql(String namesrv, String topic, int count, String group, String expression) throws Exception {
        Set<String> keys = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        at(consumer, namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, org.apache.rocketmq.client.consumer.MessageSelector.bySql(expression));
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                keys.add(message.getKeys());
                OUT.line("chosen key=" + message.getKeys() + " number=" + message.getUserProperty("number"));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long end = System.currentTimeMillis() + 90_000;
        while (System.currentTimeMillis() < end && keys.size() < count) Thread.sleep(100);
        Thread.sleep(1000);
        consumer.shutdown();
        return keys.size() == count;
    }

    /** COUNT new groups one after the other: how long each took from its start to all messages of the topic. */
    private static boolean starts(String namesrv, String topic, int count, String messages) throws Exception {
        int good = 0, wanted = Integer.parseInt(messages);
        for (int number = 0; number < count; number++) {
            Set<String> keys = ConcurrentHashMap.newKeySet();
            CountDownLatch all = new CountDownLatch(wanted);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("starts_" + number + "_" + System.nanoTime());
            at(consumer, namesrv);
            consumer.setInstanceName("s" + System.nanoTime());
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                for (MessageExt message : batch) if (keys.add(message.getKeys())) all.countDown();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            long begin = System.nanoTime();
            consumer.start();
            if (all.await(40, TimeUnit.SECONDS)) good++;
            OUT.line("started number=" + number + " ms=" + (System.nanoTime() - begin) / 1_000_000 + " read=" + keys.size());
            consumer.shutdown();
        }
        return good == count;
    }

    private static boolean retry(String namesrv, String topic, int count, String group) throws Exception {
        Map<String, AtomicInteger> seen = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        at(consumer, namesrv);
        consumer.setInstanceName("r" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            boolean again = false;
            for (MessageExt message : batch) {
                int times = seen.computeIfAbsent(message.getKeys(), k -> new AtomicInteger()).incrementAndGet();
                OUT.line("try key=" + message.getKeys() + " reconsume=" + message.getReconsumeTimes() + " times=" + times);
                if (message.getReconsumeTimes() == 0) again = true;
            }
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long end = System.currentTimeMillis() + 120_000;
        boolean all = false;
        while (System.currentTimeMillis() < end && !all) {
            Thread.sleep(200);
            all = seen.size() >= count && seen.values().stream().allMatch(n -> n.get() >= 2);
        }
        consumer.shutdown();
        return all;
    }

    /** Every message of every queue between its minimum and maximum offset, COUNT in all. */
    @SuppressWarnings("deprecation")
    private static boolean pull(String namesrv, String topic, int count) throws Exception {
        org.apache.rocketmq.client.consumer.DefaultMQPullConsumer consumer =
            new org.apache.rocketmq.client.consumer.DefaultMQPullConsumer("interop_puller");
        at(consumer, namesrv);
        consumer.setInstanceName("l" + System.nanoTime());
        consumer.start();
        int read = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue), end = consumer.maxOffset(queue);
            for (int idle = 0; offset < end && idle < 20; ) {
                org.apache.rocketmq.client.consumer.PullResult result = consumer.pull(queue, "*", offset, 32, 5000);
                if (result.getPullStatus() == org.apache.rocketmq.client.consumer.PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        read++;
                        OUT.line("read key=" + message.getKeys() + " queue=" + message.getQueueId() + " offset=" + message.getQueueOffset()
                            + " tags=" + message.getTags() + " number=" + message.getUserProperty("number") + " physical=" + message.getCommitLogOffset()
                            + " body=" + new String(message.getBody(), StandardCharsets.UTF_8).replace(' ', '_'));
                    }
                } else idle++;
                offset = Math.max(offset, result.getNextBeginOffset());
            }
        }
        consumer.shutdown();
        OUT.line("pulled count=" + read);
        return read == count;
    }
}
