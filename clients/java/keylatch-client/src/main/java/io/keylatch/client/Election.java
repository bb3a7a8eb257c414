package io.keylatch.client;

import java.util.concurrent.CompletableFuture;

/** Leads while this process holds a lock, and again when it has lost it and holds it anew, until it is closed. */
public final class Election implements AutoCloseable {
    private final NamedLock lock;
    private final Leader leader;
    private final Thread thread;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private volatile boolean isClosed;
    private volatile Lease leading;

    /** What a leader does. */
    public interface Leader {
        /** Leads. This thread is interrupted when the lock is lost, a quarter of its TTL before another can lead, and by
         * {@link Election#close()}.
         * @param lease by which it leads
         * @throws Exception counts only while the lock is not lost: then it ends the election */
        void lead(Lease lease) throws Exception;
    }

    Election(NamedLock lock, Leader leader) {
        this.lock = lock;
        this.leader = leader;
        thread = Clock.Machine.daemon(this::run, "keylatch-elect-" + lock.names.get(0));
    }

    Election start() {
        thread.start();
        return this;
    }

    /** Whether this process leads now. It looks at the clock.
     * @return false also once it is closed */
    public boolean isLeader() {
        Lease lease = leading;
        return lease != null && !lease.isLost();
    }

    /** Says when the election has ended.
     * @return fails with what the leader threw while it led, or what the service refused the lock by */
    public CompletableFuture<Void> ended() {
        return ended.copy();
    }

    /** Ends the election: interrupts the leader, waits until it has returned, and releases the lock. */
    @Override
    public void close() {
        isClosed = true;
        thread.interrupt();
        if (Thread.currentThread() != thread) {
            ended.handle((none, why) -> why).join();
        }
    }

    private void run() {
        try {
            while (!isClosed) {
                Lease lease = lock.acquire(Keylatch.FOREVER);
                Throwable failed = lead(lease);
                boolean isLost = lease.isLost();
                try {
                    lease.close();
                } catch (LeaseLostException lost) {
                    isLost = true;
                }
                if (!isLost && !isClosed && failed != null) {
                    ended.completeExceptionally(failed);
                }
                if (!isLost) {
                    break;
                }
            }
        } catch (InterruptedException closed) {
            isClosed = true;
        } catch (RuntimeException refused) {
            ended.completeExceptionally(refused);
        }
        ended.complete(null);
    }

    private Throwable lead(Lease lease) {
        leading = lease;
        lease.onLost(loss -> interrupt(lease));
        try {
            leader.lead(lease);
            return null;
        } catch (Throwable failed) {
            lock.keylatch.wire.log.accept("keylatch: the leader of " + lock.names + " has failed", failed);
            return failed;
        } finally {
            stop();
        }
    }

    private synchronized void stop() {
        leading = null;
        // Both who interrupt have said so elsewhere: by the loss, or by isClosed.
        Thread.interrupted();
    }

    private synchronized void interrupt(Lease lease) {
        if (leading == lease) {
            thread.interrupt();
        }
    }
}
