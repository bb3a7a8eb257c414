package io.keylatch.client;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock that a thread holds, with the names of {@code java.util.concurrent} and of Redisson's {@code RLock}. A thread enters it again
 * at once: all locks of one client, one name and one mode count together. Each call may throw what {@link NamedLock#acquire()} throws,
 * HeldException only where the service ends a wait.
 */
public class KeylatchLock implements Lock {
    private final NamedLock lock;
    private final Object key;
    /** The key of the lock of the reader, for that of the writer, and the other way round. A counted lock has none. */
    private final Object other;

    KeylatchLock(NamedLock lock) {
        this.lock = lock;
        key = List.of(lock.names, lock.limit == null ? lock.isShared : lock.limit);
        other = List.of(lock.names, lock.limit == null ? !lock.isShared : "none");
    }

    /** The same lock, for a class with the names of a framework too.
     * @param same which it counts together with */
    protected KeylatchLock(KeylatchLock same) {
        this(same.lock);
    }

    /** What a thread holds, and how often it has entered. */
    static final class Held {
        private final Object key;
        private final Lease lease;
        /** The writer's, within which a reader has entered. */
        private final Held within;
        private int count = 1;
        /** The program knows of the loss, and has no reason to unlock. */
        private boolean isTold;

        Held(Object key, Lease lease, Held within) {
            this.key = key;
            this.lease = lease;
            this.within = within;
        }

        void leave(Map<Object, Held> held) {
            if (--count > 0) {
                return;
            }
            held.remove(key);
            if (within != null) {
                within.leave(held);
            } else {
                lease.close();
            }
        }
    }

    private Map<Object, Held> held() {
        return lock.keylatch.heldByThread.get();
    }

    /** What this thread holds by a key, without a loss that it was told of. */
    private Held held(Object by) {
        Held mine = held().get(by);
        if (mine == null || !mine.isTold) {
            return mine;
        }
        held().values().removeIf(each -> each.lease == mine.lease);
        try {
            mine.lease.close();
        } catch (LeaseLostException told) {
            // The program knows.
        }
        return null;
    }

    /** Enters again what this thread holds; false where it holds nothing. */
    private boolean hasEntered() {
        Held mine = held(key);
        Held others = held(other);
        if (mine != null) {
            mine.lease.check();
            mine.count++;
        } else if (others != null && !lock.isShared) {
            throw new IllegalMonitorStateException("a reader cannot become the writer: it would wait for itself");
        } else if (others != null) {
            others.lease.check();
            others.count++;
            held().put(key, new Held(key, others.lease, others));
        } else {
            return false;
        }
        return true;
    }

    private boolean take(Lease lease) {
        held().put(key, new Held(key, lease, null));
        return true;
    }

    /** Waits for the lock without end. An interrupt comes afterwards. */
    @Override
    public void lock() {
        if (!hasEntered()) {
            take(lock.acquireUninterruptibly());
        }
    }

    /** As {@link #lock()}, with a lease that ends after a time.
     * @param leaseTime without renewal; -1 for a lease that is renewed
     * @param unit of the time */
    public void lock(long leaseTime, TimeUnit unit) {
        if (!hasEntered()) {
            take(leased(leaseTime, unit).acquireUninterruptibly());
        }
    }

    /** Waits for the lock without end.
     * @throws InterruptedException where this thread is interrupted: it has left the queue then */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        if (!hasEntered()) {
            take(lock.acquire(Keylatch.FOREVER));
        }
    }

    /** Waits for the lock, and says who holds it where this takes too long.
     * @param wait how long to wait
     * @throws InterruptedException where this thread is interrupted: it has left the queue then
     * @throws HeldException where others hold it until the wait is over */
    public void enter(Duration wait) throws InterruptedException {
        if (!hasEntered()) {
            take(wait.isZero() ? lock.acquire() : lock.acquire(wait));
        }
    }

    /** Gets the lock if it is free. */
    @Override
    public boolean tryLock() {
        return hasEntered() || lock.tryAcquire().map(this::take).orElse(false);
    }

    /** Gets the lock, and waits for it. */
    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return tryLock(time, -1, unit);
    }

    /** Gets the lock with a lease that ends after a time, and waits for it.
     * @param waitTime how long to wait
     * @param leaseTime without renewal; -1 for a lease that is renewed
     * @param unit of both times
     * @return whether this thread holds it now
     * @throws InterruptedException where this thread is interrupted: it has left the queue then */
    public boolean tryLock(long waitTime, long leaseTime, TimeUnit unit) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        try {
            return hasEntered() || take(leased(leaseTime, unit).acquire(Duration.ofNanos(unit.toNanos(waitTime))));
        } catch (HeldException held) {
            return false;
        }
    }

    private NamedLock leased(long leaseTime, TimeUnit unit) {
        return leaseTime < 0 ? lock : lock.ttl(Duration.ofNanos(unit.toNanos(leaseTime))).unrenewed();
    }

    /** Leaves the lock, and releases it where this thread has entered it once.
     * @throws IllegalMonitorStateException where another thread holds it, or none
     * @throws LeaseLostException where the lease was lost before */
    @Override
    public void unlock() {
        mine().leave(held());
    }

    private Held mine() {
        Held mine = held().get(key);
        if (mine == null) {
            throw new IllegalMonitorStateException("this thread does not hold " + getName());
        }
        return mine;
    }

    /** Not supported.
     * @throws UnsupportedOperationException always */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock over a network has no conditions");
    }

    /** The lease by which this thread holds the lock.
     * @return the lease, to be asked and not to be closed
     * @throws IllegalMonitorStateException where this thread does not hold it */
    public Lease lease() {
        return mine().lease;
    }

    /** The fencing token of this thread's lease, for the resource.
     * @return a positive number
     * @throws IllegalMonitorStateException where this thread does not hold the lock */
    public long fencingToken() {
        return mine().lease.fencingToken();
    }

    /** The lock.
     * @return its name */
    public String getName() {
        return lock.names.get(0);
    }

    /** Whether anybody holds the lock. It asks the service.
     * @return what is so by now */
    public boolean isLocked() {
        return lock.keylatch.show(getName()).isPresent();
    }

    /** Whether this thread holds the lock. It looks at the clock.
     * @return false also where it is lost */
    public boolean isHeldByCurrentThread() {
        Held mine = held().get(key);
        if (mine != null) {
            mine.isTold = mine.lease.isLost();
        }
        return mine != null && !mine.isTold;
    }

    /** How often this thread has entered the lock.
     * @return 0 where it does not hold it */
    public int getHoldCount() {
        return isHeldByCurrentThread() ? held().get(key).count : 0;
    }

    /** How long the lease of the holder lasts unless it is renewed. It asks the service.
     * @return in milliseconds; -2 where nobody holds the lock */
    public long remainTimeToLive() {
        return lock.keylatch.show(getName()).map(held -> held.holders().get(0).expiresIn().toMillis()).orElse(-2L);
    }

    /** Breaks the lock: its holders renew it no more. It is free when their validity has ended, not before.
     * @return whether anybody held it */
    public boolean forceUnlock() {
        return lock.keylatch.breakLock(getName(), "forceUnlock", lock.owner.isEmpty() ? null : lock.owner, null);
    }
}
