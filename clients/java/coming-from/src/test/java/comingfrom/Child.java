package comingfrom;

import io.keylatch.client.Keylatch;
import io.keylatch.client.KeylatchException;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.zookeeper.KeeperException;
import redis.clients.jedis.JedisPooled;
import shop.Goods;

/** A process of its own that runs a program, to be stopped or to crash. It says "inside" while it holds the lock, and then waits for a line. */
final class Child implements Closeable {
    final Process process;
    private final BufferedReader said;

    Child(String... arguments) throws IOException {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        List<String> command = new ArrayList<>(List.of(java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", System.getProperty("java.class.path"),
            Child.class.getName()));
        command.addAll(List.of(arguments));
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        said = process.inputReader();
    }

    String said() throws IOException {
        return said.readLine();
    }

    /** As kubernetes, a debugger, a laptop's lid or a stop-the-world collection do. */
    void pause() throws Exception {
        signal("-STOP");
    }

    /** Lets it go on, and says how it ended: whether it sold, or with which exception. */
    String goOn() throws Exception {
        signal("-CONT");
        process.outputWriter().append('\n').close();
        return said.readLine();
    }

    private void signal(String signal) throws Exception {
        new ProcessBuilder("kill", signal, "" + process.pid()).inheritIO().start().waitFor();
    }

    @Override
    public void close() {
        process.destroyForcibly();
    }

    public static void main(String[] arguments) throws Exception {
        String address = arguments[1];
        switch (arguments[0]) {
            case "before.DaemonLock" -> crashBeforeExpire(address);
            case "after.DaemonLock" -> {
                new after.DaemonLock(Keylatch.builder().url(address).build(), "payment", 4).lock();
                Runtime.getRuntime().halt(1);
            }
            default -> {
                try (Seller seller = new Seller(arguments[0], address, new Goods(arguments[2]), Integer.parseInt(arguments[3]))) {
                    System.out.println(seller.sell(Child::pay));
                } catch (KeylatchException | KeeperException lost) {
                    System.out.println(lost.getClass().getSimpleName());
                }
            }
        }
    }

    private static void crashBeforeExpire(String address) {
        JedisPooled crashing = new JedisPooled("redis://" + address) {
            @Override
            public long expire(String key, long seconds) {
                Runtime.getRuntime().halt(1);
                return 0;
            }
        };
        new before.DaemonLock(crashing, "payment", 2).lock();
    }

    private static void pay() {
        System.out.println("inside");
        try {
            System.in.read();
        } catch (IOException gone) {
            throw new IllegalStateException(gone);
        }
    }
}
