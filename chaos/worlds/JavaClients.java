import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;

/**
 * The load of a drill by the official client: one producer for each queue, and a group of consumers. Every event
 * is a line of JSON on standard output; chaos/java_events.py reads it. Commands come on standard input: "ping N",
 * "go", "stop". It ends with its drill: when nobody holds the other end of standard input any more.
 */
public class JavaClients {
    private static final PrintStream EVENTS = System.out;
    private static volatile boolean stopping;

    private final Map<String, String> options;
    private final DefaultMQProducer producer;
    private final List<DefaultLitePullConsumer> members = new ArrayList<>();

    private JavaClients(Map<String, String> options) throws Exception {
        this.options = options;
        producer = new DefaultMQProducer("GID_" + text("name") + "p");
        at(producer, "p");
        producer.setSendMsgTimeout(number("send_timeout_ms"));
        // One send is one attempt: a second one could store its key twice.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryAnotherBrokerWhenNotStoreOK(false);
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // libraries print there: only events go to standard output
        Map<String, String> options = new HashMap<>();
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            options.put(argument.substring(0, at), argument.substring(at + 1));
        }
        try {
            new JavaClients(options).obey();
            Runtime.getRuntime().halt(0); // the client's own threads would keep the process alive
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private void obey() throws Exception {
        producer.start();
        Thread joins = thread("join", () -> {
            for (int i = 0; i < number("members"); i++) members.add(started("c" + i));
            tell("ready", "");
        });
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<Thread> producers = new ArrayList<>();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            if (line.startsWith("ping ")) {
                tell("pong", ",\"number\":" + line.substring(5));
            } else if (line.equals("go")) {
                joins.join();
                for (int queue = 0; queue < number("queues"); queue++) {
                    for (int own = 0; own < number("producers"); own++) producers.add(begin(queue, own));
                }
                for (int i = 0; i < members.size(); i++) consume(i);
            } else if (line.equals("stop")) {
                stopping = true;
                thread("end", () -> {
                    for (Thread one : producers) one.join();
                    tell("stopped", "");
                });
            }
        }
    }

    private void at(ClientConfig client, String instance) {
        client.setNamesrvAddr(text("namesrv"));
        client.setInstanceName(text("name") + instance);
        client.setPollNameServerInterval(number("poll_ms"));
        client.setMqClientApiTimeout(number("ask_timeout_ms"));
        client.setHeartbeatBrokerInterval(5000);
    }

    /** A start asks for the route: on a busy machine that may take too long. The drill knows when to give up. */
    private DefaultLitePullConsumer started(String instance) throws Exception {
        for (int tries = 0; ; tries++) {
            DefaultLitePullConsumer member = member(instance + "." + tries);
            try {
                member.start();
                return member;
            } catch (Exception error) {
                error.printStackTrace();
                member.shutdown();
                Thread.sleep(200);
            }
        }
    }

    private DefaultLitePullConsumer member(String instance) throws Exception {
        DefaultLitePullConsumer member = new DefaultLitePullConsumer("GID_" + text("name") + "c");
        at(member, instance);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // A pull holds its thread as long as its broker holds the pull: fewer threads than queues keep some waiting.
        member.setPullThreadNums(number("queues"));
        // A broker may hold a pull for 20 s, and that client takes no other number: its answer is to be waited for.
        member.setConsumerTimeoutMillisWhenSuspend(25_000);
        member.setAutoCommit(false);
        member.subscribe(text("topic"), "*");
        return member;
    }

    private Thread begin(int queue, int own) {
        String name = text("name") + "p" + queue + (own == 0 ? "" : "." + own);
        Random chance = new Random(Long.parseLong(text("seed")) * 31 + queue * 1009L + own);
        MessageQueue where = new MessageQueue(text("topic"), text("broker"), queue);
        return thread(name, () -> {
            long period = (long) (1e9 / Double.parseDouble(text("per_second")));
            long late = number("make_up_ms") * 1_000_000L;
            int low = number("body_min"), high = number("body_max");
            // A random phase: producers that start together would send together for ever.
            long due = System.nanoTime() + (long) (chance.nextDouble() * period);
            for (int count = 1; ; count++) {
                long left = due - System.nanoTime();
                if (left > 0) Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
                if (stopping) return;
                byte[] body = new byte[low + chance.nextInt(high - low + 1)];
                chance.nextBytes(body);
                send(name, String.format("%s-%06d", name, count), where, body);
                due = Math.max(due + period, System.nanoTime() - late);
            }
        });
    }

    private void send(String process, String key, MessageQueue where, byte[] body) {
        String named = ",\"process\":" + quoted(process) + ",\"key\":" + quoted(key);
        Message message = new Message(where.getTopic(), "", key, body);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, key);
        tell("began", named + ",\"queue\":" + where.getQueueId() + ",\"body_crc\":" + crc(body));
        try {
            SendResult result = producer.send(message, where);
            tell("acked", named + ",\"status\":" + quoted(result.getSendStatus().name())
                + ",\"broker\":" + quoted(result.getMessageQueue().getBrokerName())
                + ",\"queue\":" + result.getMessageQueue().getQueueId() + ",\"offset\":" + result.getQueueOffset()
                + ",\"msg_id\":" + quoted(result.getMsgId()) + ",\"offset_msg_id\":" + quoted(result.getOffsetMsgId()));
        } catch (MQBrokerException error) {
            tell("refused", named + ",\"code\":" + error.getResponseCode() + ",\"text\":" + quoted(error.getErrorMessage()));
        } catch (MQClientException | RemotingConnectException error) {
            tell("unsent", named + ",\"text\":" + quoted(error.toString()));
        } catch (Exception error) {
            // Also when the connection ended while it waited: that may be after the broker had it.
            tell("open", named + ",\"text\":" + quoted(error.toString()));
        }
    }

    private void consume(int number) {
        DefaultLitePullConsumer member = members.get(number);
        String name = text("name") + "c" + number;
        thread(name, () -> {
            Map<MessageQueue, Long> next = new HashMap<>();
            long commits = System.nanoTime();
            while (true) {
                for (MessageExt one : member.poll(200)) {
                    tell("received", ",\"process\":" + quoted(name) + ",\"key\":" + quoted(one.getMsgId())
                        + ",\"broker\":" + quoted(one.getBrokerName()) + ",\"queue\":" + one.getQueueId()
                        + ",\"offset\":" + one.getQueueOffset() + ",\"body_crc\":" + crc(one.getBody()));
                    next.put(new MessageQueue(one.getTopic(), one.getBrokerName(), one.getQueueId()), one.getQueueOffset() + 1);
                }
                if (System.nanoTime() - commits < 1_000_000_000L || next.isEmpty()) continue;
                member.commit(next, true);
                for (Map.Entry<MessageQueue, Long> one : next.entrySet()) {
                    tell("committed", ",\"process\":" + quoted(name) + ",\"queue\":" + one.getKey().getQueueId()
                        + ",\"offset\":" + one.getValue());
                }
                next.clear(); // what another member has meanwhile is its own to commit
                commits = System.nanoTime();
            }
        });
    }

    private interface Work {
        void run() throws Exception;
    }

    /** A thread whose end by an error is the end of all: a load that goes on by half would prove less. */
    private static Thread thread(String name, Work work) {
        Thread made = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }, name);
        made.setDaemon(true);
        made.start();
        return made;
    }

    /** The time is taken by whoever holds the pipe: lines are in the order of their times. */
    private static void tell(String event, String more) {
        synchronized (EVENTS) {
            EVENTS.println("{\"event\":\"" + event + "\",\"at_ns\":" + System.nanoTime() + more + "}");
            EVENTS.flush();
        }
    }

    private static long crc(byte[] body) {
        CRC32 sum = new CRC32();
        sum.update(body);
        return sum.getValue() & 0x7fffffff;
    }

    private static String quoted(String text) {
        if (text == null) return "\"\"";
        StringBuilder out = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') out.append('\\').append(one);
            else if (one < ' ' || one > '~') out.append(String.format("\\u%04x", (int) one));
            else out.append(one);
        }
        return out.append('"').toString();
    }

    private String text(String name) {
        return options.get(name);
    }

    private int number(String name) {
        return Integer.parseInt(text(name));
    }
}
