import java.lang.reflect.Field;
import java.util.*;
import org.apache.rocketmq.common.action.RocketMQAction;
import org.apache.rocketmq.common.action.Action;
import org.apache.rocketmq.common.resource.RocketMQResource;
import org.apache.rocketmq.remoting.protocol.RequestHeaderRegistry;

/** What the authorization of a request asks for, by the annotations of its header class: one JSON line a code. */
public class AuthMap {
    public static void main(String[] args) throws Exception {
        RequestHeaderRegistry registry = RequestHeaderRegistry.getInstance();
        registry.initialize();
        Field f = RequestHeaderRegistry.class.getDeclaredField("requestHeaderMap");
        f.setAccessible(true);
        Map<Integer, Class<?>> map = new TreeMap<>((Map<Integer, Class<?>>) f.get(registry));
        for (Map.Entry<Integer, Class<?>> e : map.entrySet()) {
            RocketMQAction action = e.getValue().getAnnotation(RocketMQAction.class);
            StringBuilder actions = new StringBuilder();
            for (Action a : action.action()) actions.append(actions.length() == 0 ? "" : ",").append('"').append(a.getName()).append('"');
            StringBuilder fields = new StringBuilder();
            for (Field field : e.getValue().getDeclaredFields()) {
                RocketMQResource r = field.getAnnotation(RocketMQResource.class);
                if (r == null) continue;
                fields.append(fields.length() == 0 ? "" : ",").append("[\"" + field.getName() + "\",\"" + r.value() + "\",\"" + r.splitter() + "\"]");
            }
            System.out.println("MAP {\"code\":" + e.getKey() + ",\"header\":\"" + e.getValue().getSimpleName() + "\",\"resource\":\"" + action.resource() + "\",\"actions\":[" + actions + "],\"fields\":[" + fields + "]}");
        }
    }
}
