package after;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import io.keylatch.client.Keylatch;
import io.keylatch.client.KeylatchLock;
import shop.Goods;

/** A sale under a lock that a map keeps. */
public class HazelcastShop {
    private final Keylatch client;
    private final Goods goods;

    public HazelcastShop(Keylatch client, Goods goods) {
        this.client = client;
        this.goods = goods;
    }

    public boolean sell(Runnable payment) throws InterruptedException {
        KeylatchLock lock = client.lock("goods:1").ttl(Duration.ofSeconds(3)).asLock();
        if (!lock.tryLock(10, TimeUnit.SECONDS)) {
            return false;
        }
        try {
            int stock = goods.stock();
            if (stock == 0) {
                return false;
            }
            payment.run();
            return goods.sold(stock - 1, lock.fencingToken());
        } finally {
            lock.unlock();
        }
    }
}
