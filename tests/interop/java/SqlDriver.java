import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** Lines of base64: an expression, a tab, properties (name, U+0001, value, U+0002 ...). Says E(rror), T or F. */
public class SqlDriver {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder said = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", -1);
            said.append(answer(text(parts[0]), text(parts[1]))).append('\n');
        }
        System.out.print(said);
    }

    private static String text(String encoded) {
        return new String(Base64.getDecoder().decode(encoded), StandardCharsets.UTF_8);
    }

    private static char answer(String expression, String packed) {
        BooleanExpression compiled;
        try {
            compiled = SelectorParser.parse(expression);
        } catch (Throwable e) {
            return 'E';
        }
        Map<String, String> properties = new HashMap<>();
        for (String one : packed.split("\u0002")) {
            if (!one.isEmpty()) {
                String[] pair = one.split("\u0001", -1);
                properties.put(pair[0], pair[1]);
            }
        }
        try {
            return Boolean.TRUE.equals(compiled.evaluate(new MessageEvaluationContext(properties))) ? 'T' : 'F';
        } catch (Throwable e) {
            return 'F';
        }
    }
}
