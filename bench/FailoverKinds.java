import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.trace.*;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * Each kind of messages by the unmodified RocketMQ client, side by side, while masters die (bench/kinds.py).
 *
 *     FailoverKinds NAMESRV MS_BETWEEN_SENDS MS_TO_CATCH_UP
 *
 * Sends until a line comes on standard input, waits until all that was acknowledged has come, and prints a
 * line a kind: kind, then name=number. Of a send that failed nothing is known: it may come.
 */
public class FailoverKinds {
    /** What was sent and what came of one kind; keys are numbers. */
    static final class Kind {
        final String name, topic;
        final AtomicInteger next = new AtomicInteger(), failed = new AtomicInteger(), wrong = new AtomicInteger();
        final AtomicInteger again = new AtomicInteger(), early = new AtomicInteger();
        final Map<Integer, Long> acked = new ConcurrentHashMap<>(); // number -> when it was sent, ms
        final Map<Integer, AtomicInteger> came = new ConcurrentHashMap<>();

        Kind(String name) { this.name = name; this.topic = "Kinds_" + name; }

        void came(int number) {
            if (came.computeIfAbsent(number, k -> new AtomicInteger()).incrementAndGet() > 1) again.incrementAndGet();
        }

        int lost() {
            int found = 0;
            for (Integer number : acked.keySet()) if (!came.containsKey(number)) found++;
            return found;
        }

        String line() {
            return "kind " + name + " acked=" + acked.size() + " failed=" + failed.get() + " lost=" + lost() + " again="
                + again.get() + " wrong=" + wrong.get() + " early=" + early.get();
        }
    }

    interface Sender { boolean send(Message message, int number) throws Exception; }

    static final Map<String, Kind> KINDS = new LinkedHashMap<>();
    static final ScheduledExecutorService CLOCK = Executors.newScheduledThreadPool(12);
    static volatile boolean sending = true;
    static String namesrv;
    static int pace;

    public static void main(String[] arguments) throws Exception {
        namesrv = arguments[0];
        pace = Integer.parseInt(arguments[1]);
        long patience = Long.parseLong(arguments[2]);
        try {
            transaction();
            delay("delay");
            timer();
            orderly();
            retry();
            pop();
            request();
            sql();
            trace();
            System.out.println("begun");
            System.out.flush();
            System.in.read();
            sending = false;
            long end = System.currentTimeMillis() + patience;
            while (System.currentTimeMillis() < end && KINDS.values().stream().anyMatch(kind -> kind.lost() > 0)) Thread.sleep(200);
            Thread.sleep(3000); // what comes again
            for (Kind kind : KINDS.values()) System.out.println(kind.line());
            System.out.println("done");
            System.out.flush();
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static Kind kind(String name) {
        Kind kind = new Kind(name);
        KINDS.put(name, kind);
        return kind;
    }

    static <T extends ClientConfig> T at(T client) {
        client.setNamesrvAddr(namesrv);
        client.setPollNameServerInterval(1000);
        client.setInstanceName("k" + System.nanoTime());
        return client;
    }

    static DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = at(new DefaultMQProducer(group));
        producer.setSendMsgTimeout(3000);
        producer.start();
        return producer;
    }

    static DefaultMQPushConsumer consumer(Kind kind, String topic) throws Exception {
        DefaultMQPushConsumer consumer = at(new DefaultMQPushConsumer("kinds_" + topic.replace('%', '_')));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1);
        return consumer;
    }

    static int number(MessageExt message) { return Integer.parseInt(message.getKeys()); }

    static void counted(Kind kind, String topic, String tags) throws Exception {
        DefaultMQPushConsumer consumer = consumer(kind, topic);
        consumer.subscribe(topic, tags);
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) kind.came(number(message));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    /** A message each ``pace`` ms; ``sender`` says whether it must come. */
    static void send(Kind kind, Sender sender) {
        CLOCK.scheduleWithFixedDelay(() -> {
            if (!sending) return;
            int number = kind.next.getAndIncrement();
            Message message = new Message(kind.topic, "tag", String.valueOf(number), ("body " + number).getBytes(StandardCharsets.UTF_8));
            long begun = System.currentTimeMillis();
            try {
                if (sender.send(message, number)) kind.acked.put(number, begun);
            } catch (Throwable error) {
                kind.failed.incrementAndGet();
            }
        }, 0, pace, TimeUnit.MILLISECONDS);
    }

    static boolean stored(SendResult result) { return result.getSendStatus() == SendStatus.SEND_OK; }

    /** Of four, one is rolled back, one is left open until the broker asks. */
    static void transaction() throws Exception {
        Kind kind = kind("transaction");
        TransactionMQProducer producer = at(new TransactionMQProducer("kinds_transaction_senders"));
        producer.setSendMsgTimeout(3000);
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                int number = (Integer) argument;
                return number % 4 == 3 ? LocalTransactionState.UNKNOW : end(number);
            }
            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) { return end(number(message)); }
            LocalTransactionState end(int number) {
                return number % 4 == 2 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        DefaultMQPushConsumer consumer = consumer(kind, kind.topic);
        consumer.subscribe(kind.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                if (number(message) % 4 == 2) kind.wrong.incrementAndGet(); // it was rolled back
                kind.came(number(message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        send(kind, (message, number) -> stored(producer.sendMessageInTransaction(message, number)) && number % 4 != 2);
    }

    static void delay(String name) throws Exception {
        Kind kind = kind(name);
        DefaultMQProducer producer = producer("kinds_delay_senders");
        late(kind, 5000);
        send(kind, (message, number) -> {
            message.setDelayTimeLevel(2);
            return stored(producer.send(message));
        });
    }

    static void timer() throws Exception {
        Kind kind = kind("timer");
        DefaultMQProducer producer = producer("kinds_timer_senders");
        late(kind, 4000);
        send(kind, (message, number) -> {
            message.setDelayTimeMs(4000);
            return stored(producer.send(message));
        });
    }

    /** Counts what comes before it is due, by a second and more (timers are exact to one). */
    static void late(Kind kind, long wait) throws Exception {
        DefaultMQPushConsumer consumer = consumer(kind, kind.topic);
        consumer.subscribe(kind.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                if (System.currentTimeMillis() < message.getBornTimestamp() + wait - 1000) kind.early.incrementAndGet();
                kind.came(number(message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    /** wrong: the first delivery of a message after that of a later one of its queue. */
    static void orderly() throws Exception {
        Kind kind = kind("orderly");
        DefaultMQProducer producer = producer("kinds_orderly_senders");
        DefaultMQPushConsumer consumer = consumer(kind, kind.topic);
        consumer.subscribe(kind.topic, "*");
        Map<Integer, Integer> last = new ConcurrentHashMap<>();
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            for (MessageExt message : batch) {
                int number = number(message);
                if (!kind.came.containsKey(number) && number < last.getOrDefault(message.getQueueId(), -1)) kind.wrong.incrementAndGet();
                last.merge(message.getQueueId(), number, Math::max);
                kind.came(number);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        send(kind, (message, number) -> stored(producer.send(message, (queues, sent, argument) -> queues.get((Integer) argument % queues.size()), number)));
    }

    /** Each message fails once and comes back; one of five fails for ever and is to be a dead letter. */
    static void retry() throws Exception {
        Kind kind = kind("retry"), dead = kind("dead_letter");
        DefaultMQProducer producer = producer("kinds_retry_senders");
        DefaultMQPushConsumer consumer = consumer(kind, kind.topic);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(kind.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            for (MessageExt message : batch) {
                if (message.getReconsumeTimes() == 0 || number(message) % 5 == 0) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                kind.came(number(message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        counted(dead, "%DLQ%" + consumer.getConsumerGroup(), "*");
        send(kind, (message, number) -> {
            boolean stored = stored(producer.send(message));
            if (stored && number % 5 == 0) dead.acked.put(number, 0L);
            return stored && number % 5 != 0;
        });
    }

    /** The group was told to pop (setConsumeMode) before. */
    static void pop() throws Exception {
        Kind kind = kind("pop");
        DefaultMQProducer producer = producer("kinds_pop_senders");
        DefaultMQPushConsumer consumer = consumer(kind, kind.topic);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(10_000);
        consumer.subscribe(kind.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                if (message.getProperty(MessageConst.PROPERTY_POP_CK) == null) kind.wrong.incrementAndGet();
                kind.came(number(message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        send(kind, (message, number) -> stored(producer.send(message)));
    }

    /** acked: answered; failed: not within its time; wrong: answered with another one's reply. */
    static void request() throws Exception {
        Kind kind = kind("request_reply");
        DefaultMQProducer replies = producer("kinds_repliers"), asks = producer("kinds_askers");
        DefaultMQPushConsumer consumer = consumer(kind, kind.topic);
        consumer.subscribe(kind.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                kind.came(number(message));
                try {
                    replies.send(MessageUtil.createReplyMessage(message, message.getBody()), 3000);
                } catch (Exception error) {
                    // its asker is told by its time
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        send(kind, (message, number) -> {
            Message reply = asks.request(message, 5000);
            if (!new String(reply.getBody(), StandardCharsets.UTF_8).equals("body " + number)) kind.wrong.incrementAndGet();
            return true;
        });
    }

    static void sql() throws Exception {
        Kind kind = kind("sql");
        DefaultMQProducer producer = producer("kinds_sql_senders");
        DefaultMQPushConsumer consumer = consumer(kind, kind.topic);
        consumer.subscribe(kind.topic, MessageSelector.bySql("part BETWEEN 1 AND 2 AND colour IN ('red', 'blue')"));
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                if (number(message) % 3 == 0) kind.wrong.incrementAndGet();
                kind.came(number(message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        send(kind, (message, number) -> {
            message.putUserProperty("part", String.valueOf(number % 3));
            message.putUserProperty("colour", number % 2 == 0 ? "red" : "blue");
            return stored(producer.send(message)) && number % 3 != 0;
        });
    }

    /** lost: acknowledged messages whose trace never came; the client gives a trace up that it cannot send. */
    static void trace() throws Exception {
        Kind kind = kind("trace");
        DefaultMQProducer producer = at(new DefaultMQProducer("kinds_trace_senders"));
        producer.setEnableTrace(true);
        producer.setSendMsgTimeout(3000);
        producer.start();
        DefaultMQPushConsumer consumer = consumer(kind, "RMQ_SYS_TRACE_TOPIC");
        consumer.subscribe("RMQ_SYS_TRACE_TOPIC", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch)
                for (TraceContext told : TraceDataEncoder.decoderFromTraceDataString(new String(message.getBody(), StandardCharsets.UTF_8)))
                    if (told.getTraceType() == TraceType.Pub && told.isSuccess())
                        for (TraceBean bean : told.getTraceBeans())
                            if (bean.getTopic().equals(kind.topic)) kind.came(Integer.parseInt(bean.getKeys().trim()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        send(kind, (message, number) -> stored(producer.send(message)));
    }
}
