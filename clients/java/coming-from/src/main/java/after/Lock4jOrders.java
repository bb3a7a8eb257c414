package after;

import io.keylatch.client.Keylatch;
import java.time.Duration;
import java.util.Set;

/** One order for each user, under a lock. */
public class Lock4jOrders {
    private final Keylatch keylatch;
    private final Set<Long> served;

    public Lock4jOrders(Keylatch keylatch, Set<Long> served) {
        this.keylatch = keylatch;
        this.served = served;
    }

    public boolean order(long userId) throws InterruptedException {
        try (var lease = keylatch.lock("order:" + userId).acquire(Duration.ofSeconds(1))) {
            return served.add(userId);
        }
    }
}
