import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The unmodified client, 4.9 or 5.x, with or without -Dtls.enable: what it sent and read, one line each. TLS is
 * said by system properties only, as its users do.
 */
public class TlsDriver {
    public static void main(String[] arguments) {
        try {
            boolean good = "send".equals(arguments[0])
                ? send(arguments[1], arguments[2], Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]))
                : read(arguments[1], arguments[2], Integer.parseInt(arguments[3]), arguments[4]);
            System.exit(good ? 0 : 2);
        } catch (Throwable error) {
            line("failed key=- error=" + flat(error));
            System.exit(2); // the client's own threads would keep the process alive
        }
    }

    private static synchronized void line(String text) {
        System.out.println("DRIVER " + text);
        System.out.flush();
    }

    private static String flat(Throwable error) {
        return String.valueOf(error).replaceAll("\\s+", "_");
    }

    private static void at(ClientConfig client, String namesrv) {
        client.setNamesrvAddr(namesrv);
        client.setPollNameServerInterval(1000);
        client.setInstanceName("t" + System.nanoTime());
    }

    /** Each message is tried for so many seconds until it is acknowledged. */
    private static boolean send(String namesrv, String topic, int count, int seconds) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("tls_producer");
        at(producer, namesrv);
        producer.setSendMsgTimeout(5000);
        producer.start();
        int good = 0;
        for (int number = 0; number < count; number++) {
            String key = "tls-" + number;
            long end = System.currentTimeMillis() + seconds * 1000L;
            boolean done = false;
            do {
                try {
                    SendResult result = producer.send(new Message(topic, "t", key, key.getBytes(StandardCharsets.UTF_8)));
                    done = result.getSendStatus() == SendStatus.SEND_OK;
                    line((done ? "sent" : "unsure") + " key=" + key + " offset=" + result.getQueueOffset());
                } catch (Exception error) {
                    line("failed key=" + key + " error=" + flat(error));
                    Thread.sleep(200);
                }
            } while (!done && System.currentTimeMillis() < end);
            if (!done) return false;
            good++;
        }
        producer.shutdown();
        return good == count;
    }

    private static boolean read(String namesrv, String topic, int count, String group) throws Exception {
        Set<String> keys = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        at(consumer, namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) keys.add(message.getKeys());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long end = System.currentTimeMillis() + 60_000;
        while (keys.size() < count && System.currentTimeMillis() < end) Thread.sleep(100);
        line("read keys=" + keys.size());
        consumer.shutdown();
        return keys.size() >= count;
    }
}
