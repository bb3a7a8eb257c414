package io.keylatch.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.keylatch.client.LeaseLostException;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;

/** The locks of Spring Integration and of ShedLock. */
class LocksOfOthersTest extends StarterTest {
    @Autowired private Shop shop;
    @Autowired private KeylatchLockRegistry registry;
    @Autowired private ExtensibleLockProvider provider;
    private final String name = UUID.randomUUID().toString();

    private Duration expiresIn() {
        return keylatch.show(name).map(held -> held.holders().get(0).expiresIn()).orElse(Duration.ZERO);
    }

    private LockConfiguration job(int atMost, int atLeast) {
        return new LockConfiguration(Instant.now(), name, Duration.ofSeconds(atMost), Duration.ofSeconds(atLeast));
    }

    @Test
    void registryGivesLocksOfThreads() throws Exception {
        Lock lock = registry.obtain(name);
        lock.lock();
        assertTrue(registry.obtain(name).tryLock(1, TimeUnit.SECONDS));
        assertFalse(CompletableFuture.supplyAsync(registry.obtain(name)::tryLock).join());
        lock.unlock();
        registry.renewLock(name);
        registry.renewLock(name, Duration.ofMinutes(2));
        assertTrue(expiresIn().compareTo(Duration.ofMinutes(1)) > 0, expiresIn().toString());
        lock.unlock();
        assertTrue(keylatch.show(name).isEmpty());
        assertThrows(IllegalMonitorStateException.class, () -> registry.renewLock(name));
    }

    @Test
    void registrySaysOfALostLock() {
        registry.obtain(name).lock();
        keylatch.breakLock(name, "test");
        assertThrows(LeaseLostException.class, () -> registry.renewLock(name, Duration.ofSeconds(9)));
        assertThrows(LeaseLostException.class, registry.obtain(name)::unlock);
    }

    /** From Spring Integration 7 on: its interface is not there before. */
    @Test
    void distributedLockHasATtlOfItsOwn() throws Exception {
        Lock lock = registry.obtain(name);
        Class<?> type = lock.getClass().getInterfaces()[0];
        assertEquals(KeylatchAutoConfiguration.class.getClassLoader()
            .getResource("org/springframework/integration/support/locks/DistributedLock.class") != null, type.getSimpleName().equals("DistributedLock"));
        if (type.getSimpleName().equals("DistributedLock")) {
            type.getMethod("lock", Duration.class).invoke(lock, Duration.ofMinutes(2));
            assertTrue(expiresIn().compareTo(Duration.ofMinutes(1)) > 0);
            lock.unlock();
            assertEquals(true, type.getMethod("tryLock", Duration.class, Duration.class).invoke(lock, Duration.ZERO, Duration.ofMinutes(2)));
            lock.unlock();
        }
    }

    @Test
    void leaderIsOneUntilItsLockIsLost() throws InterruptedException {
        assertEquals("OnGrantedEvent captain", shop.leading.poll(20, TimeUnit.SECONDS));
        assertEquals(1, keylatch.show("captain").get().holders().size());
        keylatch.breakLock("captain", "test", null, Duration.ZERO);
        assertEquals("OnRevokedEvent captain", shop.leading.poll(20, TimeUnit.SECONDS));
        assertEquals("OnGrantedEvent captain", shop.leading.poll(20, TimeUnit.SECONDS));
    }

    @Test
    void jobHasItsLockForAtLeastSoLong() {
        SimpleLock lock = provider.lock(job(300, 60)).get();
        assertEquals(Optional.empty(), provider.lock(job(300, 60)));
        assertTrue(expiresIn().compareTo(Duration.ofSeconds(200)) > 0);
        lock.unlock();
        Duration left = expiresIn();
        assertTrue(left.compareTo(Duration.ofSeconds(60)) <= 0 && !left.isZero(), left.toString());
        assertEquals(Optional.empty(), provider.lock(job(300, 60)));
        assertThrows(IllegalStateException.class, lock::unlock);
    }

    @Test
    void jobThatIsDoneFreesItsLock() {
        provider.lock(job(300, 0)).get().unlock();
        SimpleLock lock = provider.lock(job(30, 0)).get();
        SimpleLock longer = lock.extend(Duration.ofSeconds(300), Duration.ZERO).get();
        assertTrue(expiresIn().compareTo(Duration.ofSeconds(200)) > 0);
        keylatch.breakLock(name, "test", null, Duration.ZERO);
        assertEquals(Optional.empty(), longer.extend(Duration.ofSeconds(300), Duration.ZERO));
    }
}
