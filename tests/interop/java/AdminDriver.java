import java.util.Arrays;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs several mqadmin commands in one JVM, which is most of a command's time: COMMAND ARGS -- COMMAND ARGS ...
 * One that would begin anew for ever is interrupted in its first rest.
 */
public class AdminDriver {
    private static final String ENDLESS = "clusterRT";

    public static void main(String[] args) throws InterruptedException {
        int from = 0;
        for (int at = 0; at <= args.length; at++) {
            if (at == args.length || args[at].equals("--")) {
                String[] command = Arrays.copyOfRange(args, from, at);
                System.out.println("\nADMIN " + command[0]);
                Thread running = new Thread(() -> MQAdminStartup.main0(command, null));
                running.start();
                while (command[0].equals(ENDLESS) && running.isAlive()) {
                    if (rests(running)) {
                        running.interrupt();
                    }
                    Thread.sleep(50);
                }
                running.join();
                System.out.flush();
                from = at + 1;
            }
        }
        System.exit(0);
    }

    /** Whether the command itself sleeps, and no call of the client. */
    private static boolean rests(Thread command) {
        boolean sleeps = false;
        for (StackTraceElement frame : command.getStackTrace()) {
            if (!frame.getClassName().equals("java.lang.Thread")) {
                return sleeps && frame.getClassName().startsWith("org.apache.rocketmq.tools.command.");
            }
            sleeps |= frame.getMethodName().startsWith("sleep");
        }
        return false;
    }
}
