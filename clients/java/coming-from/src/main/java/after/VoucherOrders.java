package after;

import java.util.Set;
import java.time.Duration;
import java.util.function.Function;
import io.keylatch.client.Keylatch;
import io.keylatch.client.NamedLock;

/** One voucher for each user, under a lock behind an interface. */
public class VoucherOrders {
    public interface ILock {
        boolean tryLock(long timeoutSec);

        void unlock();
    }

    public static class SimpleRedisLock implements ILock {
        private final NamedLock lock;

        public SimpleRedisLock(Keylatch keylatch, String name) {
            lock = keylatch.lock("lock:" + name);
        }

        @Override
        public boolean tryLock(long timeoutSec) {
            Boolean done = lock.ttl(Duration.ofSeconds(timeoutSec)).asLock().tryLock();
            return Boolean.TRUE.equals(done);
        }

        @Override
        public void unlock() {
            lock.asLock().unlock();
        }
    }

    private final Function<String, ILock> locks;
    private final Set<Long> served;

    public VoucherOrders(Function<String, ILock> locks, Set<Long> served) {
        this.locks = locks;
        this.served = served;
    }

    public boolean order(long userId) {
        ILock lock = locks.apply("order:" + userId);
        if (!lock.tryLock(5)) {
            return false;
        }
        try {
            return served.add(userId);
        } finally {
            lock.unlock();
        }
    }
}
