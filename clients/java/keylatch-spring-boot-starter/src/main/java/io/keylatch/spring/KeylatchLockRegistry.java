package io.keylatch.spring;

import io.keylatch.client.Keylatch;
import io.keylatch.client.KeylatchLock;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import org.springframework.util.ClassUtils;

/**
 * Spring Integration's locks, held by threads. The client renews them, so {@link #renewLock(Object)} only asks whether the lease is
 * good. From Spring Integration 7 on each is a DistributedLock, whose lease ends with the TTL that is asked for.
 */
// Raw, for the interfaces are generic from Spring Integration 7 on only, and this class is for those before too.
@SuppressWarnings("rawtypes")
public final class KeylatchLockRegistry implements ExpirableLockRegistry, RenewableLockRegistry {
    private static final boolean HAS_DISTRIBUTED = ClassUtils.isPresent(
        "org.springframework.integration.support.locks.DistributedLock", KeylatchLockRegistry.class.getClassLoader());
    private final Keylatch keylatch;
    private final String prefix;
    private final Duration ttl;

    /** Makes a registry, which keeps nothing itself.
     * @param keylatch by which the locks are taken
     * @param prefix of the name of each lock, before its key
     * @param ttl how long a lock outlives this process */
    public KeylatchLockRegistry(Keylatch keylatch, String prefix, Duration ttl) {
        this.keylatch = keylatch;
        this.prefix = prefix;
        this.ttl = ttl;
    }

    private KeylatchLock lock(Object key) {
        return keylatch.lock(prefix + key).ttl(ttl).asLock();
    }

    /** A lock.
     * @param key whose text names it
     * @return the lock; all of one name count together */
    @Override
    public Lock obtain(Object key) {
        return HAS_DISTRIBUTED ? Distributed.of(lock(key)) : lock(key);
    }

    /** Asks whether this thread still holds a lock.
     * @param key of the lock
     * @throws io.keylatch.client.LeaseLostException where its lease is lost
     * @throws IllegalMonitorStateException where this thread does not hold it */
    @Override
    public void renewLock(Object key) {
        lock(key).lease().check();
    }

    /** Starts the lease of a lock again, for a time.
     * @param key of the lock
     * @param time until it ends, unless it is renewed before; sent in milliseconds
     * @throws io.keylatch.client.LeaseLostException where its lease is lost
     * @throws IllegalMonitorStateException where this thread does not hold it */
    @Override
    public void renewLock(Object key, Duration time) {
        lock(key).lease().extend(time);
    }

    /** Does nothing: the registry keeps no locks.
     * @param age in milliseconds */
    @Override
    public void expireUnusedOlderThan(long age) { }

    /** Is loaded from Spring Integration 7 on. */
    private static final class Distributed extends KeylatchLock implements DistributedLock {
        private Distributed(KeylatchLock lock) {
            super(lock);
        }

        static Lock of(KeylatchLock lock) {
            return new Distributed(lock);
        }

        @Override
        public void lock(Duration time) {
            lock(time.toNanos(), TimeUnit.NANOSECONDS);
        }

        @Override
        public boolean tryLock(Duration wait, Duration time) throws InterruptedException {
            return tryLock(wait.toNanos(), time.toNanos(), TimeUnit.NANOSECONDS);
        }
    }
}
