package io.keylatch.client;

import java.time.Duration;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.TimeUnit;

/**
 * A counted lock with the names of {@code java.util.concurrent.Semaphore}. As there, any thread may release a permit that this object
 * has. Where a permit is to be told from another, {@link NamedLock#limit} gives a lease for each.
 */
public final class KeylatchSemaphore {
    private final NamedLock lock;
    private final ConcurrentLinkedDeque<Lease> leases = new ConcurrentLinkedDeque<>();

    KeylatchSemaphore(NamedLock lock) {
        this.lock = lock;
    }

    /** Waits for a permit without end.
     * @throws InterruptedException where this thread is interrupted: it has left the queue then */
    public void acquire() throws InterruptedException {
        leases.push(lock.acquire(Keylatch.FOREVER));
    }

    /** Takes a permit if there is one.
     * @return whether there was */
    public boolean tryAcquire() {
        return lock.tryAcquire().map(leases::offerFirst).orElse(false);
    }

    /** Takes a permit, and waits for it.
     * @param time how long to wait
     * @param unit of the time
     * @return whether there was one
     * @throws InterruptedException where this thread is interrupted: it has left the queue then */
    public boolean tryAcquire(long time, TimeUnit unit) throws InterruptedException {
        try {
            leases.push(lock.acquire(Duration.ofNanos(unit.toNanos(time))));
            return true;
        } catch (HeldException held) {
            return false;
        }
    }

    /** Gives the permit back that was taken last, but one that was lost before the others.
     * @throws IllegalMonitorStateException where this object has none
     * @throws LeaseLostException where its lease was lost before */
    public void release() {
        Lease lost = leases.stream().filter(Lease::isLost).findFirst().orElse(null);
        Lease lease = lost != null && leases.remove(lost) ? lost : leases.poll();
        if (lease == null) {
            throw new IllegalMonitorStateException("no permit of " + lock.names.get(0) + " is held here");
        }
        lease.close();
    }
}
