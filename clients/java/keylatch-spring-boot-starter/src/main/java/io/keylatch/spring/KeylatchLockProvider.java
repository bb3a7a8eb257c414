package io.keylatch.spring;

import io.keylatch.client.Keylatch;
import io.keylatch.client.Lease;
import io.keylatch.client.LeaseLostException;
import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * ShedLock's locks. {@code lockAtMostFor} is the TTL, and the client does not renew it. If {@code lockAtLeastFor} is not over
 * when the job is done, unlock renews the lease a last time, for the rest, instead of releasing it.
 */
public final class KeylatchLockProvider implements ExtensibleLockProvider {
    private final Keylatch keylatch;
    private final String prefix;

    /** Makes a provider.
     * @param keylatch by which the locks are taken
     * @param prefix of the name of each lock, before that of its job */
    public KeylatchLockProvider(Keylatch keylatch, String prefix) {
        this.keylatch = keylatch;
        this.prefix = prefix;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration job) {
        return keylatch.lock(prefix + job.getName()).ttl(job.getLockAtMostFor()).unrenewed().tryAcquire().map(lease -> new Held(job, lease));
    }

    private static final class Held extends AbstractSimpleLock {
        private final Lease lease;
        private final long since = System.nanoTime();

        Held(LockConfiguration job, Lease lease) {
            super(job);
            this.lease = lease;
        }

        @Override
        protected void doUnlock() {
            Duration left = lockConfiguration.getLockAtLeastFor().minusNanos(System.nanoTime() - since);
            if (left.toMillis() <= 0 || lease.isLost()) {
                lease.release();
                return;
            }
            try {
                lease.extend(left);
            } catch (LeaseLostException lost) {
                return;
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration job) {
            try {
                lease.extend(job.getLockAtMostFor());
                return Optional.of(new Held(job, lease));
            } catch (LeaseLostException lost) {
                return Optional.empty();
            }
        }
    }
}
