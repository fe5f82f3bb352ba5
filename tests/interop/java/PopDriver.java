import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer that the broker tells to pop (its mode was set by mqadmin) and that lets the broker share the
 * queues. Sends "count" messages, handles each once, but fails the first time on the one with number 3.
 */
public class PopDriver {
    public static void main(String[] arguments) {
        try {
            System.exit(run(arguments[0], arguments[1], arguments[2], Integer.parseInt(arguments[3])) ? 0 : 2);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static boolean run(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("pop_senders");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20_000);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        for (int i = 0; i < count; i++)
            producer.send(new Message(topic, "tag", "pop-" + i, ("body " + i).getBytes(StandardCharsets.UTF_8)));
        producer.shutdown();
        Set<String> done = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setClientRebalance(false); // the broker says which queues, and that they are popped
        consumer.setPopInvisibleTime(30_000);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                List<String> names = new ArrayList<>(new TreeSet<>(message.getProperties().keySet()));
                synchronized (System.out) {
                    System.out.println("DRIVER popped key=" + message.getKeys() + " topic=" + message.getTopic() + " reconsume="
                        + message.getReconsumeTimes() + " body=" + new String(message.getBody(), StandardCharsets.UTF_8).replace(' ', '_')
                        + " names=" + String.join(",", names));
                    System.out.flush();
                }
                if (message.getKeys().equals("pop-3") && message.getReconsumeTimes() == 0) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                done.add(message.getKeys());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long end = System.currentTimeMillis() + 120_000;
        while (System.currentTimeMillis() < end && done.size() < count) Thread.sleep(100);
        Thread.sleep(3000); // nothing comes twice
        consumer.shutdown();
        return done.size() == count;
    }
}
