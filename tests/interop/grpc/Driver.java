import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** What the official Java gRPC client does and sees; the same lines as driver.py, by the same arguments. */
public class Driver {
    static final long DELAY_MS = 2000;
    static final ClientServiceProvider API = ClientServiceProvider.loadService();
    static String prefix;
    static ClientConfiguration config;

    static synchronized void say(String event, String... facts) {
        System.out.println("DRIVER " + event + " " + String.join(" ", facts));
    }

    static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }

    static String kind(String topic) {
        return topic.substring(prefix.length());
    }

    static String orDash(String text) {
        return text.isEmpty() ? "-" : text;
    }

    static void show(String event, MessageView message) {
        say(
                event,
                "body=" + body(message),
                "topic=" + kind(message.getTopic()),
                "tag=" + message.getTag().orElse("-"),
                "keys=" + orDash(String.join(",", message.getKeys())),
                "group=" + message.getMessageGroup().orElse("-"),
                "attempt=" + message.getDeliveryAttempt(),
                "properties=" + orDash(new TreeMap<>(message.getProperties()).entrySet().stream()
                        .map(one -> one.getKey() + ":" + one.getValue()).collect(Collectors.joining(","))));
    }

    static void await(String what, Callable<Boolean> holds) throws Exception {
        long end = System.currentTimeMillis() + 40_000;
        while (!holds.call()) {
            if (System.currentTimeMillis() > end) {
                say("late", "what=" + what);
                return;
            }
            Thread.sleep(50);
        }
    }

    /** Fails the first attempt of one message; notes what it took. */
    static class Listener implements MessageListener {
        final String failing;
        final List<String> taken = new ArrayList<>();
        final List<String> done = new ArrayList<>();
        final Map<String, Long> at = new ConcurrentHashMap<>();

        Listener(String failing) {
            this.failing = failing;
        }

        @Override
        public synchronized ConsumeResult consume(MessageView message) {
            String body = body(message);
            taken.add(body);
            at.put(body, System.currentTimeMillis());
            if (body.equals(failing) && Collections.frequency(taken, body) == 1) {
                return ConsumeResult.FAILURE;
            }
            show("pushed", message);
            done.add(body);
            return ConsumeResult.SUCCESS;
        }

        synchronized int count() {
            return done.size();
        }

        synchronized List<String> taken() {
            return new ArrayList<>(taken);
        }
    }

    static PushConsumer push(String group, Listener listener, String... topics) throws ClientException {
        Map<String, FilterExpression> subscriptions = new TreeMap<>();
        for (String topic : topics) {
            subscriptions.put(prefix + topic, FilterExpression.SUB_ALL);
        }
        return API.newPushConsumerBuilder().setClientConfiguration(config).setConsumerGroup(prefix + group)
                .setSubscriptionExpressions(subscriptions).setMessageListener(listener).build();
    }

    /** Takes three, acknowledges two; the third one's invisible time is cut and it comes again. */
    static void simple(SimpleConsumer consumer) throws Exception {
        List<String> acked = new ArrayList<>();
        await("simple", () -> {
            for (MessageView one : consumer.receive(16, Duration.ofSeconds(3))) {
                show("received", one);
                if (body(one).equals("n-2") && one.getDeliveryAttempt() == 1) {
                    consumer.changeInvisibleDuration(one, Duration.ofSeconds(1));
                } else {
                    consumer.ack(one);
                    acked.add(body(one));
                }
            }
            return acked.size() == 3;
        });
        Collections.sort(acked);
        say("acked", "bodies=" + String.join(",", acked));
    }

    static MessageBuilder message(String topic, String body) {
        return API.newMessageBuilder().setTopic(prefix + topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static void wrong(Producer producer, Message message) {
        String refused = "no";
        try {
            producer.send(message);
        } catch (ClientException | IllegalArgumentException e) {
            refused = "yes";
        }
        say("wrong", "topic=" + kind(message.getTopic()), "refused=" + refused);
    }

    /** Returns when the delayed message is due; the one sent after it is recalled. */
    static long sendAll(Producer producer) throws Exception {
        for (int number = 0; number < 3; number++) {
            producer.send(message("normal", "n-" + number).setTag("a").setKeys("k-" + number)
                    .addProperty("p", "" + number).build());
        }
        for (int number = 0; number < 6; number++) {
            String group = number % 2 == 0 ? "even" : "odd";
            producer.send(message("fifo", "f-" + number).setMessageGroup(group).build());
        }
        long due = (System.currentTimeMillis() / 1000 + 1) * 1000 + DELAY_MS;
        producer.send(message("delay", "d-0").setDeliveryTimestamp(due).build());
        String handle = producer.send(message("delay", "d-1").setDeliveryTimestamp(due + DELAY_MS).build())
                .getRecallHandle();
        producer.recallMessage(prefix + "delay", handle);
        for (String end : new String[] {"commit", "rollback", "check"}) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("trans", "t-" + end).build(), transaction);
            if (end.equals("commit")) {
                transaction.commit();
            } else if (end.equals("rollback")) {
                transaction.rollback();
            }
        }
        wrong(producer, message("fifo", "wrong").build());
        wrong(producer, message("normal", "wrong").setMessageGroup("even").build());
        return due;
    }

    static String order(Listener listener, String rest) {
        return listener.taken().stream().filter(body -> rest.indexOf(body.charAt(body.length() - 1)) >= 0)
                .collect(Collectors.joining(","));
    }

    public static void main(String[] arguments) throws Exception {
        prefix = arguments[1];
        config = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        Producer producer = API.newProducerBuilder().setClientConfiguration(config)
                .setTopics(prefix + "normal", prefix + "fifo", prefix + "delay", prefix + "trans")
                .setTransactionChecker(message -> {
                    say("checked", "body=" + body(message), "topic=" + kind(message.getTopic()));
                    return TransactionResolution.COMMIT;
                }).build();
        Listener free = new Listener("n-1");
        Listener inOrder = new Listener("f-2");
        push("push", free, "normal", "delay", "trans");
        push("order", inOrder, "fifo");
        SimpleConsumer taker = API.newSimpleConsumerBuilder().setClientConfiguration(config)
                .setConsumerGroup(prefix + "simple").setAwaitDuration(Duration.ofSeconds(1))
                .setSubscriptionExpressions(Map.of(prefix + "normal", FilterExpression.SUB_ALL)).build();
        long due = sendAll(producer);
        simple(taker);
        await("push", () -> free.count() >= 6);
        await("order", () -> inOrder.count() >= 6);
        // What was recalled, or acknowledged, does not come.
        Thread.sleep(Math.max(0, due + DELAY_MS + 2000 - System.currentTimeMillis()));
        say("order", "group=even", "bodies=" + order(inOrder, "024"));
        say("order", "group=odd", "bodies=" + order(inOrder, "135"));
        boolean early = free.at.getOrDefault("d-0", due) < due;
        say("done", "push=" + free.taken().stream().sorted().collect(Collectors.joining(",")),
                "early=" + (early ? "True" : "False"));
        say("rest", "simple=" + taker.receive(16, Duration.ofSeconds(3)).size());
        System.exit(0);
    }
}
