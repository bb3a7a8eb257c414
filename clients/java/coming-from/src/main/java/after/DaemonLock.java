package after;

import io.keylatch.client.Keylatch;
import io.keylatch.client.KeylatchLock;
import java.time.Duration;

/** A lock that a daemon thread extends for as long as the work takes. */
public class DaemonLock {
    private final KeylatchLock lock;

    public DaemonLock(Keylatch keylatch, String key, long seconds) {
        lock = keylatch.lock(key).ttl(Duration.ofSeconds(seconds)).asLock();
    }

    public boolean lock() {
        return lock.tryLock();
    }

    public void unlock() {
        lock.unlock();
    }
}
