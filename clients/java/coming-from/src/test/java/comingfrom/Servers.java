package comingfrom;

import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import io.keylatch.client.Keylatch;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;
import org.h2.tools.Server;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import org.springframework.data.redis.core.StringRedisTemplate;

/** The servers of the tests, each on a port of its own from its first use until the end of this process. */
final class Servers {
    static final String HOST = "127.0.0.1";

    private Servers() {}

    static final class Redis {
        static final int PORT = freePort();

        static {
            start(PORT, "redis-server", "--port", "" + PORT, "--bind", HOST, "--save", "");
        }
    }

    static final class Service {
        static final String URL;

        static {
            int port = freePort();
            URL = "http://" + HOST + ":" + port;
            String binary = System.getenv("KEYLATCH");
            if (binary == null) {
                throw new IllegalStateException("KEYLATCH names no binary of the service");
            }
            start(port, binary, "--store", "memory:", "--listen", HOST + ":" + port);
        }
    }

    static final class Database {
        static final String URL;

        static {
            try {
                Server server = Server.createTcpServer("-tcpPort", "0", "-ifNotExists").start();
                URL = "jdbc:h2:tcp://" + HOST + ":" + server.getPort() + "/mem:shop;DB_CLOSE_DELAY=-1";
            } catch (java.sql.SQLException failed) {
                throw new IllegalStateException(failed);
            }
        }
    }

    static final class ZooKeeper {
        static final String ADDRESS;

        static {
            try {
                Path folder = Files.createTempDirectory(Path.of("target"), "zookeeper");
                // A session may be as short as two ticks.
                ZooKeeperServer server = new ZooKeeperServer(folder.toFile(), folder.toFile(), 200);
                ServerCnxnFactory.createFactory(new InetSocketAddress(HOST, 0), 100).startup(server);
                ADDRESS = HOST + ":" + server.getClientPort();
            } catch (IOException | InterruptedException failed) {
                throw new IllegalStateException(failed);
            }
        }
    }

    static final class Map {
        static final HazelcastInstance MEMBER;

        static {
            Config config = new Config().setProperty("hazelcast.phone.home.enabled", "false");
            config.getNetworkConfig().getJoin().getAutoDetectionConfig().setEnabled(false);
            config.getNetworkConfig().getInterfaces().setEnabled(true).addInterface(HOST);
            MEMBER = Hazelcast.newHazelcastInstance(config);
        }
    }

    static StringRedisTemplate template() {
        JedisConnectionFactory connections = new JedisConnectionFactory(new RedisStandaloneConfiguration(HOST, Redis.PORT));
        connections.start();
        return new StringRedisTemplate(connections);
    }

    static Keylatch keylatch() {
        return Keylatch.builder().url(Service.URL).build();
    }

    /** Waits for a state. */
    static void until(Callable<Boolean> state) throws Exception {
        while (!state.call()) {
            Thread.sleep(5);
        }
    }

    private static int freePort() {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }

    private static void start(int port, String... command) {
        try {
            Path log = Files.createTempFile(Path.of("target"), "server", ".log");
            Process process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile()).start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
            until(() -> {
                if (!process.isAlive()) {
                    throw new IllegalStateException(command[0] + " ended: " + Files.readString(log));
                }
                return accepts(port);
            });
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static boolean accepts(int port) {
        try (Socket socket = new Socket(HOST, port)) {
            return socket.isConnected();
        } catch (IOException refused) {
            return false;
        }
    }
}
