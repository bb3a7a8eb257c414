package after;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import io.keylatch.client.Keylatch;
import io.keylatch.client.KeylatchLock;
import shop.Goods;

/** A sale under a mutex. */
public class CuratorShop {
    private final Keylatch client;
    private final Goods goods;

    public CuratorShop(Keylatch client, Goods goods) {
        this.client = client;
        this.goods = goods;
    }

    public boolean sell(Runnable payment) throws Exception {
        KeylatchLock lock = client.lock("/goods/1").ttl(Duration.ofSeconds(3)).asLock();
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
