import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs several mqadmin commands in one JVM, which is most of a command's time: COMMAND ARGS -- COMMAND ARGS ... */
public class AdminDriver {
    public static void main(String[] args) {
        int from = 0;
        for (int at = 0; at <= args.length; at++) {
            if (at == args.length || args[at].equals("--")) {
                System.out.println("\nADMIN " + args[from]);
                MQAdminStartup.main0(java.util.Arrays.copyOfRange(args, from, at), null);
                System.out.flush();
                from = at + 1;
            }
        }
        System.exit(0);
    }
}
