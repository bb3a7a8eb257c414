package after;

import io.keylatch.client.Keylatch;
import io.keylatch.client.KeylatchLock;
import java.time.Clock;
import java.time.LocalDate;

/** Order numbers, one after another. */
public class GetSetLock {
    private static final String KEY = "order-numbers";
    private final KeylatchLock lock;
    private final Clock clock;
    private int last;

    public GetSetLock(Keylatch keylatch, Clock clock) {
        lock = keylatch.lock(KEY).asLock();
        this.clock = clock;
    }

    public boolean lock() {
        return lock.tryLock();
    }

    public void unlock() {
        lock.unlock();
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
