import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * The unmodified client asks and replies. It replies to what is asked at TOPIC; asks COUNT times there, COUNT
 * times at OTHER, where another client replies, and once at DEAF, where nobody does; then replies on until its
 * standard input ends.
 */
public class RequestDriver {
    private static synchronized void line(String text) {
        System.out.println("DRIVER " + text);
        System.out.flush();
    }

    public static void main(String[] arguments) {
        try {
            run(arguments[0], arguments[1], arguments[2], arguments[3], Integer.parseInt(arguments[4]));
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static DefaultMQProducer producer(String namesrv, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20_000);
        producer.setInstanceName(group + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    private static void run(String namesrv, String topic, String other, String deaf, int count) throws Exception {
        DefaultMQProducer replies = producer(namesrv, "java_repliers");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java_repliers");
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20_000);
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                try {
                    String text = "java:" + new String(message.getBody(), StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(message, text.getBytes(StandardCharsets.UTF_8));
                    SendResult result = replies.send(reply, 10_000);
                    line("replied status=" + result.getSendStatus() + " body=" + text);
                } catch (Exception error) {
                    line("failed error=" + String.valueOf(error.getMessage()).replace(' ', '_'));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asks = producer(namesrv, "java_askers");
        for (String where : new String[] {topic, other}) {
            for (int i = 0; i < count; i++) {
                Message reply = asks.request(new Message(where, "t", ("ask-" + i).getBytes(StandardCharsets.UTF_8)), 40_000);
                MessageExt found = (MessageExt) reply;
                line("asked where=" + where + " reply=" + new String(reply.getBody(), StandardCharsets.UTF_8) + " topic=" + reply.getTopic()
                    + " queue=" + found.getQueueId() + " names=" + String.join(",", new TreeSet<>(reply.getProperties().keySet())));
            }
        }
        try {
            asks.request(new Message(deaf, "t", "ask".getBytes(StandardCharsets.UTF_8)), 1_500);
            line("deaf error=none");
        } catch (Exception error) {
            line("deaf error=" + error.getClass().getSimpleName());
        }
        line("done");
        while (System.in.read() >= 0) { }
        asks.shutdown();
        consumer.shutdown();
        replies.shutdown();
    }
}
