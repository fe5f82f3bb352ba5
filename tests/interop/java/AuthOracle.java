import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.stream.Collectors;
import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authorization.builder.DefaultAuthorizationContextBuilder;
import org.apache.rocketmq.auth.authorization.chain.AclAuthorizationHandler;
import org.apache.rocketmq.auth.authorization.context.DefaultAuthorizationContext;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.auth.converter.AclConverter;
import org.apache.rocketmq.common.action.Action;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestHeaderRegistry;
import org.apache.rocketmq.remoting.protocol.body.AclInfo;

/**
 * What the real classes of ACL 2.0 say. Lines of JSON in, lines "SAID {...}" out:
 * {"code", "ext", "body"} -> what the request needs; {"acl", "kind", "name", "actions", "ip"} -> the refusal.
 */
public class AuthOracle {
    public static void main(String[] args) throws Exception {
        RequestHeaderRegistry.getInstance().initialize();
        AuthConfig config = new AuthConfig();
        config.setClusterName("DefaultCluster");
        DefaultAuthorizationContextBuilder builder = new DefaultAuthorizationContextBuilder(config);
        EmbeddedChannel channel = new EmbeddedChannel(new ChannelInboundHandlerAdapter());
        ChannelHandlerContext context = channel.pipeline().firstContext();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            JSONObject asked = JSON.parseObject(line);
            JSONObject said = new JSONObject(true);
            try {
                if (asked.containsKey("code")) {
                    said.put("needs", needs(builder, context, asked));
                } else {
                    said.put("refused", refused(asked));
                }
            } catch (Exception e) {
                said.put("error", String.valueOf(e.getMessage()));
            }
            System.out.println("SAID " + said.toJSONString());
        }
    }

    static List<Object> needs(DefaultAuthorizationContextBuilder builder, ChannelHandlerContext context, JSONObject asked) {
        RemotingCommand command = RemotingCommand.createRequestCommand(asked.getIntValue("code"), null);
        HashMap<String, String> ext = new HashMap<>();
        asked.getJSONObject("ext").forEach((k, v) -> ext.put(k, String.valueOf(v)));
        command.setExtFields(ext);
        if (asked.containsKey("body")) {
            command.setBody(asked.getString("body").getBytes(StandardCharsets.UTF_8));
        }
        List<Object> found = new ArrayList<>();
        for (DefaultAuthorizationContext one : builder.build(context, command)) {
            found.add(Arrays.asList(one.getResource().getResourceKey(),
                one.getActions().stream().map(Action::getName).collect(Collectors.toList())));
        }
        return found;
    }

    static String refused(JSONObject asked) throws Exception {
        Acl acl = AclConverter.convertAcl(JSON.parseObject(asked.getString("acl"), AclInfo.class));
        acl.getPolicies().forEach(p -> {
            if (p.getPolicyType() == null) p.setPolicyType(org.apache.rocketmq.auth.authorization.enums.PolicyType.CUSTOM);
        });
        List<Action> actions = asked.getJSONArray("actions").stream().map(a -> Action.getByName((String) a)).collect(Collectors.toList());
        Resource resource = Resource.of(asked.getString("resource"));
        DefaultAuthorizationContext context = DefaultAuthorizationContext.of(User.of("u"), resource, actions, asked.getString("ip"));
        AclAuthorizationHandler handler = new AclAuthorizationHandler(new AuthConfig());
        java.lang.reflect.Method match = AclAuthorizationHandler.class.getDeclaredMethod("matchPolicyEntries", DefaultAuthorizationContext.class, Acl.class);
        match.setAccessible(true);
        Object entry = match.invoke(handler, context, acl);
        if (entry == null) return "none";
        Object decision = entry.getClass().getMethod("getDecision").invoke(entry);
        return decision.toString();
    }
}
