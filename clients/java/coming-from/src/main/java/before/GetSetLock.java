package before;

import java.time.Clock;
import java.time.LocalDate;
import redis.clients.jedis.JedisPooled;

/** Order numbers, one after another. */
public class GetSetLock {
    private static final String KEY = "order-numbers";
    private final JedisPooled jedis;
    private final Clock clock;
    private int last;

    public GetSetLock(JedisPooled jedis, Clock clock) {
        this.jedis = jedis;
        this.clock = clock;
    }

    public boolean lock() {
        String end = String.valueOf(clock.millis() + 30_000);
        if (jedis.setnx(KEY, end) == 1) {
            return true;
        }
        String old = jedis.get(KEY);
        // Where it is over, several may come here: the one whose GETSET reads the old end has the lock.
        return old != null && Long.parseLong(old) < clock.millis() && old.equals(jedis.getSet(KEY, end));
    }

    public void unlock() {
        jedis.del(KEY);
    }

    public String next() {
        if (!lock()) {
            throw new IllegalStateException("please try again");
        }
        try {
            return LocalDate.now(clock) + "-" + ++last;
        } finally {
            unlock();
        }
    }
}
