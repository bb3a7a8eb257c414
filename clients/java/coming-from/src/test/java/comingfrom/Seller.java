package comingfrom;

import io.keylatch.client.Keylatch;
import java.io.Closeable;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryOneTime;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.JedisPooled;
import shop.Goods;

/** One of the programs that sell goods, by its name; each is a client of its own. */
final class Seller implements Closeable {
    interface Program {
        boolean sell(Runnable payment) throws Exception;
    }

    private final Program program;
    private final Closeable client;

    /** Connects to the server at an address. Where the program leaves it open, the lock of one that is paused lasts for so many milliseconds. */
    Seller(String name, String address, Goods goods, int lasts) {
        switch (name) {
            case "before.RedisTool" -> {
                JedisPooled jedis = jedis(address);
                client = jedis::close;
                program = payment -> before.RedisTool.sell(jedis, goods, lasts, payment);
            }
            case "before.RedissonShop", "RFencedLock" -> {
                RedissonClient redisson = redisson(address, 0, lasts);
                client = () -> redisson.shutdown(0, 1, TimeUnit.SECONDS);
                program = name.equals("RFencedLock") ? payment -> sellFenced(redisson.getFencedLock("fenced"), goods, payment)
                    : new before.RedissonShop(redisson, goods)::sell;
            }
            case "before.CuratorShop" -> {
                CuratorFramework curator = CuratorFrameworkFactory.newClient(address, lasts, 10_000, new RetryOneTime(100));
                curator.start();
                client = curator;
                program = new before.CuratorShop(curator, goods)::sell;
            }
            case "before.HazelcastShop" -> {
                client = () -> { };
                program = new before.HazelcastShop(Servers.Map.MEMBER, goods)::sell;
            }
            default -> {
                Keylatch keylatch = Keylatch.builder().url(address).build();
                client = () -> { };
                program = switch (name) {
                    case "after.RedisTool" -> payment -> after.RedisTool.sell(keylatch, goods, lasts, payment);
                    case "after.HazelcastShop" -> new after.HazelcastShop(keylatch, goods)::sell;
                    case "after.RedissonShop" -> new after.RedissonShop(keylatch, goods)::sell;
                    default -> new after.CuratorShop(keylatch, goods)::sell;
                };
            }
        }
    }

    /** What {@code before.RedissonShop} is with the one lock of Redisson that has a fencing token. */
    private static boolean sellFenced(RFencedLock lock, Goods goods, Runnable payment) {
        Long fence = lock.tryLockAndGetToken(10, TimeUnit.SECONDS);
        if (fence == null) {
            return false;
        }
        try {
            int stock = goods.stock();
            payment.run();
            return goods.sold(stock - 1, fence);
        } finally {
            if (lock.isHeldByCurrentThread()) {
                lock.unlock();
            }
        }
    }

    static RedissonClient redisson(String address, int database, int lasts) {
        Config config = new Config().setLockWatchdogTimeout(lasts);
        config.useSingleServer().setAddress("redis://" + address).setDatabase(database)
            .setConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
        return Redisson.create(config);
    }

    static JedisPooled jedis(String address) {
        return new JedisPooled("redis://" + address);
    }

    static String address(String name) {
        return name.startsWith("after.") ? Servers.Service.URL
            : name.equals("before.CuratorShop") ? Servers.ZooKeeper.ADDRESS : Servers.HOST + ":" + Servers.Redis.PORT;
    }

    boolean sell(Runnable payment) throws Exception {
        return program.sell(payment);
    }

    @Override
    public void close() throws java.io.IOException {
        client.close();
    }
}
