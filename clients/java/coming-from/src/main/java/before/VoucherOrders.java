package before;

import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.springframework.data.redis.core.StringRedisTemplate;

/** One voucher for each user, under a lock behind an interface. */
public class VoucherOrders {
    public interface ILock {
        boolean tryLock(long timeoutSec);

        void unlock();
    }

    public static class SimpleRedisLock implements ILock {
        private final StringRedisTemplate redis;
        private final String key;

        public SimpleRedisLock(StringRedisTemplate redis, String name) {
            this.redis = redis;
            this.key = "lock:" + name;
        }

        @Override
        public boolean tryLock(long timeoutSec) {
            Boolean done = redis.opsForValue().setIfAbsent(key, "locked", timeoutSec, TimeUnit.SECONDS);
            return Boolean.TRUE.equals(done);
        }

        @Override
        public void unlock() {
            redis.delete(key);
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
