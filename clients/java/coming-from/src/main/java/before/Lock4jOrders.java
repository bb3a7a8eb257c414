package before;

import com.baomidou.lock.annotation.Lock4j;
import java.util.Set;

/** One order for each user, under a lock. */
public class Lock4jOrders {
    private final Set<Long> served;

    public Lock4jOrders(Set<Long> served) {
        this.served = served;
    }

    @Lock4j(name = "order", keys = "#userId", expire = 60_000, acquireTimeout = 1_000)
    public boolean order(long userId) {
        return served.add(userId);
    }
}
