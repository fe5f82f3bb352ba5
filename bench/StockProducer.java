import java.nio.charset.StandardCharsets;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * An unmodified producer with default settings that sends one message after the other at a steady rate until
 * its standard input ends. Each send is one line: outcome, wall clock at its begin and end (ms), and why it
 * failed or where the message is and its id.
 *
 * <p>Arguments: namesrv, topic, sends per second.
 */
public class StockProducer {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("stock_producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                error.printStackTrace();
            }
        });
        input.setDaemon(true);
        input.start();
        long period = 1_000_000_000L / Long.parseLong(arguments[2]);
        long due = System.nanoTime();
        StringBuilder line = new StringBuilder();
        for (long number = 0; input.isAlive(); number++) {
            String key = "k" + number;
            byte[] body = key.getBytes(StandardCharsets.UTF_8);
            long begun = System.currentTimeMillis();
            line.setLength(0);
            try {
                SendResult result = producer.send(new Message(arguments[1], "", key, body));
                boolean good = result.getSendStatus() == SendStatus.SEND_OK;
                line.append(good ? "ok" : "failed").append(' ').append(begun).append(' ');
                line.append(System.currentTimeMillis()).append(' ');
                line.append(good
                    ? key + ' ' + result.getMessageQueue().getQueueId() + ' ' + result.getQueueOffset()
                        + ' ' + result.getMsgId()
                    : result.getSendStatus().name());
            } catch (Exception error) {
                line.append("failed ").append(begun).append(' ').append(System.currentTimeMillis());
                line.append(' ').append(String.valueOf(error.getMessage()).replaceAll("\\s+", "_"));
            }
            System.out.println(line);
            // Never faster than the rate to make up for what was late: a client waits as long as it waits.
            due = Math.max(due + period, System.nanoTime());
            LockSupport.parkNanos(due - System.nanoTime());
        }
        System.exit(0); // the client's own threads would keep the process alive
    }
}
