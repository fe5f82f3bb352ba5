import com.alibaba.fastjson2.JSON;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.AclSigner;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.auth.authentication.builder.DefaultAuthenticationContextBuilder;
import org.apache.rocketmq.auth.authentication.context.DefaultAuthenticationContext;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.netty.NettyEncoder;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.header.CreateTopicRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeaderV2;
import org.apache.rocketmq.remoting.protocol.header.controller.ElectMasterRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.namesrv.BrokerHeartbeatRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.namesrv.RegisterBrokerRequestHeader;

/**
 * Prints one JSON line for each request that the real AclClientRPCHook signed: its frame as the real encoder
 * writes it, and whether the real server's rule accepts it. tests/golden/acl/signed.jsonl was made by it.
 */
public class SignedFrames {
    static final String ACCESS = "keelmq";
    static final String SECRET = "a secret of 28 bytes, \u00e9\u4e2d";

    public static void main(String[] args) throws Exception {
        RegisterBrokerRequestHeader register = new RegisterBrokerRequestHeader();
        register.setBrokerName("broker-a");
        register.setBrokerAddr("127.0.0.1:10911");
        register.setClusterName("DefaultCluster");
        register.setHaServerAddr("127.0.0.1:10912");
        register.setBrokerId(0L);
        register.setBodyCrc32(7);
        show("register_broker", RequestCode.REGISTER_BROKER, register, "{\"filterServerList\":[]}", null, null);
        show("register_broker_binary", RequestCode.REGISTER_BROKER, register, "{}", null, SerializeType.ROCKETMQ);

        BrokerHeartbeatRequestHeader beat = new BrokerHeartbeatRequestHeader();
        beat.setBrokerAddr("127.0.0.1:10911");
        beat.setBrokerName("broker-a");
        beat.setClusterName("DefaultCluster");
        beat.setBrokerId(2L);
        beat.setEpoch(3);
        beat.setMaxOffset(4096L);
        beat.setConfirmOffset(4000L);
        beat.setHeartbeatTimeoutMills(10000L);
        show("broker_heartbeat", RequestCode.BROKER_HEARTBEAT, beat, null, null, null);

        show("elect_master", RequestCode.CONTROLLER_ELECT_MASTER,
            ElectMasterRequestHeader.ofAdminTrigger("DefaultCluster", "broker-a", 2L), null, null, null);

        CreateTopicRequestHeader topic = new CreateTopicRequestHeader();
        topic.setTopic("T\u00e9\u4e2d");
        topic.setDefaultTopic("TBW102");
        topic.setReadQueueNums(4);
        topic.setWriteQueueNums(4);
        topic.setPerm(6);
        topic.setTopicFilterType("SINGLE_TAG");
        topic.setTopicSysFlag(0);
        topic.setOrder(false);
        topic.setAttributes("");
        show("create_topic_with_a_token", RequestCode.UPDATE_AND_CREATE_TOPIC, topic, null, "a token", null);

        show("no_fields", RequestCode.CONTROLLER_GET_METADATA_INFO, null, null, null, null);

        // Keys are sorted as Java sorts them: by UTF-16 units, where U+10400 comes before U+FF5E.
        Map<String, String> odd = new LinkedHashMap<>();
        odd.put("\uff5e", "last");
        odd.put("\ud801\udc00", "before last");
        odd.put("b", "2");
        odd.put("B", "1");
        show("keys_in_utf16_order", RequestCode.UPDATE_CONTROLLER_CONFIG, odd, "x=1", 0);

        SendMessageRequestHeaderV2 send = new SendMessageRequestHeaderV2();
        send.setA("producers");
        send.setB("T");
        send.setC("TBW102");
        send.setD(4);
        send.setE(1);
        send.setF(0);
        send.setG(1700000000000L);
        send.setH(0);
        send.setI("");
        send.setJ(0);
        send.setK(false);
        send.setL(0);
        send.setM(false);
        show("send_v2_binary", RequestCode.SEND_MESSAGE_V2, send, "hello", null, SerializeType.ROCKETMQ);

        // What a client up to 4.9.3 left out of its signature, and a later one did not.
        for (int past = 0; past < 2; past++) {
            Map<String, String> query = new LinkedHashMap<>();
            query.put("topic", "T");
            query.put("key", "K");
            query.put("_UNIQUE_KEY_QUERY", "true");
            show(past == 0 ? "unique_query_4_9_3" : "unique_query_4_9_4", RequestCode.QUERY_MESSAGE, query, null,
                MQVersion.Version.V4_9_3.ordinal() + past);
        }
        System.exit(0);
    }

    static void show(String name, int code, CommandCustomHeader header, String body, String token,
        SerializeType type) throws Exception {
        RemotingCommand command = RemotingCommand.createRequestCommand(code, header);
        if (header == null) {
            command.setExtFields(new HashMap<>());
        }
        command.setVersion(479);
        if (type != null) {
            command.setSerializeTypeCurrentRPC(type);
        }
        finish(name, command, body, token);
    }

    static void show(String name, int code, Map<String, String> fields, String body, int version) throws Exception {
        RemotingCommand command = RemotingCommand.createRequestCommand(code, null);
        command.setExtFields(new HashMap<>(fields));
        command.setVersion(version == 0 ? 479 : version);
        String left = version != 0 && version <= MQVersion.Version.V4_9_3.ordinal()
            ? command.getExtFields().remove("_UNIQUE_KEY_QUERY") : null;
        if (left != null) {
            hook(null).doBeforeRequest("", command);
            command.addExtField("_UNIQUE_KEY_QUERY", left);
        }
        finish(name, command, body, null);
    }

    static AclClientRPCHook hook(String token) {
        return new AclClientRPCHook(new SessionCredentials(ACCESS, SECRET, token));
    }

    static void finish(String name, RemotingCommand command, String body, String token) throws Exception {
        command.setOpaque(5);
        if (body != null) {
            command.setBody(body.getBytes("UTF-8"));
        }
        if (command.getExtFields() == null || !command.getExtFields().containsKey("Signature")) {
            hook(token).doBeforeRequest("", command);
        }
        EmbeddedChannel out = new EmbeddedChannel(new NettyEncoder());
        out.writeOutbound(command);
        ByteBuf frame = Unpooled.buffer();
        for (ByteBuf part = out.readOutbound(); part != null; part = out.readOutbound()) {
            frame.writeBytes(part);
        }
        byte[] bytes = new byte[frame.readableBytes()];
        frame.getBytes(0, bytes);
        StringBuilder hex = new StringBuilder();
        for (byte b : bytes) {
            hex.append(String.format("%02x", b));
        }
        RemotingCommand heard = RemotingCommand.decode(Unpooled.wrappedBuffer(bytes, 4, bytes.length - 4));
        EmbeddedChannel in = new EmbeddedChannel(new ChannelInboundHandlerAdapter());
        DefaultAuthenticationContext context =
            new DefaultAuthenticationContextBuilder().build(in.pipeline().firstContext(), heard);
        boolean accepted = AclSigner.calSignature(context.getContent(), SECRET).equals(context.getSignature());

        Map<String, Object> header = new LinkedHashMap<>();
        header.put("code", command.getCode());
        header.put("extFields", heard.getExtFields());
        header.put("flag", command.getFlag());
        header.put("language", "JAVA");
        header.put("opaque", command.getOpaque());
        header.put("version", command.getVersion());
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("name", name);
        line.put("accessKey", ACCESS);
        line.put("secretKey", SECRET);
        line.put("accepted", accepted);
        line.put("serialize", heard.getSerializeTypeCurrentRPC().name());
        line.put("header", header);
        line.put("body_len", heard.getBody() == null ? 0 : heard.getBody().length);
        line.put("hex", hex.toString());
        System.out.println("FRAME " + JSON.toJSONString(line));
    }
}
