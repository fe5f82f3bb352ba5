import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * The unmodified client with the hook of rocketmq-acl, of 4.9 or 5.x. Commands: VERB KEY SECRET TOPIC ... -- ...
 * A key "-" signs nothing. Each prints "DRIVER verb who=KEY topic=T done=N code=C text=URLENCODED".
 */
public class AclDriver {
    public static void main(String[] args) {
        try {
            String namesrv = args[0];
            List<String> words = new ArrayList<>();
            for (int at = 1; at <= args.length; at++) {
                if (at == args.length || args[at].equals("--")) {
                    run(namesrv, words.toArray(new String[0]));
                    words.clear();
                } else {
                    words.add(args[at]);
                }
            }
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void run(String namesrv, String[] w) throws Exception {
        int done = 0, code = 0;
        String text = "";
        try {
            switch (w[0]) {
                case "send": done = send(namesrv, w, false); break;
                case "batch": done = send(namesrv, w, true); break;
                case "pull": done = pull(namesrv, w); break;
                case "consume": done = consume(namesrv, w); break;
                case "flow": done = flow(namesrv, w); break;
                default: throw new IllegalArgumentException(w[0]);
            }
        } catch (MQBrokerException e) {
            code = e.getResponseCode();
            text = e.getErrorMessage();
        } catch (MQClientException e) {
            code = e.getResponseCode();
            text = e.getErrorMessage() == null ? String.valueOf(e.getMessage()) : e.getErrorMessage();
            if (e.getCause() instanceof MQBrokerException) {
                code = ((MQBrokerException) e.getCause()).getResponseCode();
                text = ((MQBrokerException) e.getCause()).getErrorMessage();
            }
        }
        System.out.println("DRIVER " + w[0] + " who=" + w[1] + " topic=" + w[3] + " done=" + done + " code=" + code
            + " text=" + URLEncoder.encode(String.valueOf(text), "UTF-8"));
        System.out.flush();
    }

    static RPCHook hook(String[] w) {
        return w[1].equals("-") ? null : new AclClientRPCHook(new SessionCredentials(w[1], w[2]));
    }

    static DefaultMQProducer producer(String namesrv, String[] w) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("acl_producer", hook(w));
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("p" + System.nanoTime());
        producer.setSendMsgTimeout(15_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setPollNameServerInterval(1_000);
        producer.start();
        return producer;
    }

    static int send(String namesrv, String[] w, boolean batch) throws Exception {
        DefaultMQProducer producer = producer(namesrv, w);
        try {
            int count = Integer.parseInt(w[4]);
            List<Message> all = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                Message message = new Message(w[3], "tag", "key-" + i, ("body " + i + " é中").getBytes(StandardCharsets.UTF_8));
                message.putUserProperty("number", String.valueOf(i));
                all.add(message);
            }
            if (batch) {
                producer.send(all);
                return count;
            }
            int sent = 0;
            for (Message message : all) {
                producer.send(message);
                sent++;
            }
            return sent;
        } finally {
            producer.shutdown();
        }
    }

    /** One message at a time for w[4] ms; "done" is how many were acknowledged; the longest gap is printed. */
    static int flow(String namesrv, String[] w) throws Exception {
        DefaultMQProducer producer = producer(namesrv, w);
        producer.setSendMsgTimeout(1_000);
        producer.setRetryTimesWhenSendFailed(5);
        long until = System.currentTimeMillis() + Long.parseLong(w[4]), last = System.currentTimeMillis(), gap = 0;
        int sent = 0, failed = 0;
        String why = "";
        System.out.println("DRIVER flowing who=" + w[1] + " topic=" + w[3]);
        System.out.flush();
        while (System.currentTimeMillis() < until) {
            try {
                producer.send(new Message(w[3], ("flow " + sent).getBytes(StandardCharsets.UTF_8)));
                sent++;
                gap = Math.max(gap, System.currentTimeMillis() - last);
                last = System.currentTimeMillis();
            } catch (Exception e) {
                failed++;
                Throwable told = e.getCause() instanceof MQBrokerException ? e.getCause() : e;
                // A broker's word is kept: while the master is down the failure is of another kind.
                if (told instanceof MQBrokerException) why = ((MQBrokerException) told).getErrorMessage();
                else if (why.isEmpty()) why = e.toString();
            }
            Thread.sleep(50);
        }
        System.out.println("DRIVER flowed who=" + w[1] + " topic=" + w[3] + " failed=" + failed + " gap=" + gap
            + " silent=" + (System.currentTimeMillis() - last)
            + " why=" + URLEncoder.encode(String.valueOf(why), "UTF-8"));
        producer.shutdown();
        return sent;
    }

    static int pull(String namesrv, String[] w) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(w[4], hook(w));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.start();
        try {
            int found = 0;
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(w[3])) {
                PullResult result = consumer.pull(queue, "*", 0, 32, 10_000);
                found += result.getMsgFoundList() == null ? 0 : result.getMsgFoundList().size();
            }
            return found;
        } finally {
            consumer.shutdown();
        }
    }

    static int consume(String namesrv, String[] w) throws Exception {
        int count = Integer.parseInt(w[5]);
        CountDownLatch wanted = new CountDownLatch(count);
        AtomicInteger got = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(w[4], hook(w), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(w[3], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> { got.incrementAndGet(); wanted.countDown(); });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        wanted.await(Long.parseLong(w[6]), TimeUnit.MILLISECONDS);
        consumer.shutdown();
        return got.get();
    }
}
