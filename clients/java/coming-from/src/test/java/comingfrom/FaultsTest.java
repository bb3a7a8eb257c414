package comingfrom;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.keylatch.client.HeldException;
import io.keylatch.client.Keylatch;
import io.keylatch.client.LeaseLostException;
import java.time.Clock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.redisson.api.RedissonClient;
import org.springframework.data.redis.core.StringRedisTemplate;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPooled;

/** Each fault that the texts tell of happens with the lock of before, and not with keylatch. */
class FaultsTest {
    private static final Executor OTHER_THREAD = task -> new Thread(task).start();
    private static final String REDIS = Servers.HOST + ":" + Servers.Redis.PORT;
    private static StringRedisTemplate template;
    private static JedisPooled jedis;
    private final Keylatch keylatch = Servers.keylatch();
    private final Keylatch other = Servers.keylatch();

    @BeforeAll
    static void connect() {
        template = Servers.template();
        jedis = Seller.jedis(REDIS);
    }

    @AfterAll
    static void disconnect() {
        jedis.close();
    }

    @Test
    void crashBeforeExpireHoldsTheLockForEver() throws Exception {
        try (Child crashing = new Child("before.DaemonLock", REDIS)) {
            crashing.process.waitFor();
        }
        assertEquals(-1, jedis.ttl("payment"), "it has no end");
        assertFalse(new before.DaemonLock(jedis, "payment", 2).lock());
    }

    @Test
    void afterCrashTheLockEndsByItself() throws Exception {
        try (Child crashing = new Child("after.DaemonLock", Servers.Service.URL)) {
            crashing.process.waitFor();
        }
        assertTrue(keylatch.show("payment").isPresent(), "it crashed with the lock");
        Servers.until(new after.DaemonLock(keylatch, "payment", 4)::lock);
    }

    @Test
    void lateUnlockDeletesTheLockOfAnother() throws Exception {
        before.VoucherOrders.ILock late = new before.VoucherOrders.SimpleRedisLock(template, "late");
        assertTrue(late.tryLock(1));
        before.VoucherOrders.ILock next = new before.VoucherOrders.SimpleRedisLock(template, "late");
        Servers.until(() -> next.tryLock(60));
        late.unlock();
        assertTrue(new before.VoucherOrders.SimpleRedisLock(template, "late").tryLock(60), "a third is in, beside the next");
    }

    @Test
    void lateUnlockLeavesTheLockOfAnother() throws Exception {
        after.VoucherOrders.ILock late = new after.VoucherOrders.SimpleRedisLock(keylatch, "late");
        assertTrue(late.tryLock(60));
        keylatch.breakLock("lock:late", "ends now", null, Duration.ZERO);
        after.VoucherOrders.ILock next = new after.VoucherOrders.SimpleRedisLock(other, "late");
        Servers.until(() -> next.tryLock(60));
        assertThrows(LeaseLostException.class, late::unlock);
        assertFalse(new after.VoucherOrders.SimpleRedisLock(Servers.keylatch(), "late").tryLock(60));
        next.unlock();
    }

    @Test
    void threadThatEntersAgainLocksItselfOut() {
        before.VoucherOrders.ILock outer = new before.VoucherOrders.SimpleRedisLock(template, "again");
        assertTrue(outer.tryLock(60));
        assertFalse(new before.VoucherOrders.SimpleRedisLock(template, "again").tryLock(60));
        outer.unlock();
    }

    @Test
    void threadEntersAgain() {
        after.VoucherOrders.ILock outer = new after.VoucherOrders.SimpleRedisLock(keylatch, "again");
        after.VoucherOrders.ILock inner = new after.VoucherOrders.SimpleRedisLock(keylatch, "again");
        assertTrue(outer.tryLock(60) && inner.tryLock(60));
        inner.unlock();
        assertTrue(keylatch.show("lock:again").isPresent(), "the outer one still holds it");
        outer.unlock();
        assertTrue(keylatch.show("lock:again").isEmpty());
    }

    @Test
    void callerDoesNotWait() {
        String id = UUID.randomUUID().toString();
        assertTrue(before.RedisTool.tryGetDistributedLock(jedis, "busy", id, 60_000));
        assertFalse(before.RedisTool.tryGetDistributedLock(jedis, "busy", "another", 60_000), "it is free in a moment");
        before.RedisTool.releaseDistributedLock(jedis, "busy", id);
    }

    @Test
    void callerWaitsInAQueue() throws Exception {
        assertTrue(after.RedisTool.tryGetDistributedLock(keylatch, "busy", "one", 9_000));
        CompletableFuture<Boolean> waiting = CompletableFuture.supplyAsync(() -> {
            try {
                return after.RedisTool.tryGetDistributedLock(other, "busy", "another", 9_000);
            } catch (InterruptedException never) {
                throw new IllegalStateException(never);
            }
        }, OTHER_THREAD);
        Servers.until(() -> keylatch.show("busy").orElseThrow().waiting() == 1);
        after.RedisTool.releaseDistributedLock(keylatch, "busy", "one");
        assertTrue(waiting.get());
    }

    @Test
    void workThatIsLongerThanTheTtlLetsAnotherIn() throws Exception {
        assertTrue(before.RedisTool.tryGetDistributedLock(jedis, "slow", "one", 1_000));
        Servers.until(() -> before.RedisTool.tryGetDistributedLock(jedis, "slow", "another", 60_000));
    }

    @Test
    void workMayBeLongerThanTheTtl() throws Exception {
        assertTrue(after.RedisTool.tryGetDistributedLock(keylatch, "slow", "one", 3_000));
        assertThrows(HeldException.class, () -> other.lock("slow").acquire(Duration.ofSeconds(4)));
        after.RedisTool.releaseDistributedLock(keylatch, "slow", "one");
    }

    @Test
    void clockThatIsAheadEndsTheLockOfAnother() {
        Clock ahead = Clock.offset(Clock.systemUTC(), Duration.ofMinutes(1));
        assertTrue(new before.GetSetLock(jedis, Clock.systemUTC()).lock());
        assertTrue(new before.GetSetLock(jedis, ahead).lock(), "both hold it");
    }

    @Test
    void clockThatIsAheadEndsNothing() {
        Clock ahead = Clock.offset(Clock.systemUTC(), Duration.ofMinutes(1));
        after.GetSetLock holder = new after.GetSetLock(keylatch, Clock.systemUTC());
        assertTrue(holder.lock());
        assertFalse(new after.GetSetLock(other, ahead).lock());
        holder.unlock();
        assertTrue(new after.GetSetLock(other, ahead).lock(), "and it is free at once");
    }

    @Test
    void jobOfTwoMachinesRunsOnOne() {
        List<String> runs = Collections.synchronizedList(new ArrayList<>());
        before.NightlyReport one = new before.NightlyReport(new RedisLockProvider(template.getRequiredConnectionFactory()));
        // A thread of ShedLock enters again; another machine is another thread.
        one.run(() -> {
            runs.add("before");
            CompletableFuture.runAsync(() -> one.run(() -> runs.add("twice")), OTHER_THREAD).join();
        });
        after.NightlyReport other = new after.NightlyReport(this.other);
        new after.NightlyReport(keylatch).run(() -> {
            runs.add("after");
            other.run(() -> runs.add("twice"));
        });
        assertEquals(List.of("before", "after"), runs);
    }

    @Test
    void fencingTokensOfRedissonStartAgainWithTheData() {
        RedissonClient redisson = Seller.redisson(REDIS, 1, 9_000);
        try (Jedis its = new Jedis("redis://" + REDIS + "/1")) {
            for (int time = 0; time < 2; time++) {
                assertEquals(1, redisson.getFencedLock("fenced").lockAndGetToken());
                its.flushDB();
            }
        } finally {
            redisson.shutdown();
        }
    }

    @Test
    void eachUserIsServedOnce() throws Exception {
        Set<Long> served = ConcurrentHashMap.newKeySet();
        before.VoucherOrders first = new before.VoucherOrders(name -> new before.VoucherOrders.SimpleRedisLock(template, name), served);
        assertTrue(first.order(1) && !first.order(1));
        after.VoucherOrders second = new after.VoucherOrders(name -> new after.VoucherOrders.SimpleRedisLock(keylatch, name), served);
        assertTrue(second.order(2) && !second.order(2));
    }
}
