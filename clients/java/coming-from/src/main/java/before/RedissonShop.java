package before;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import shop.Goods;

/** A sale under a lock that is extended for as long as it takes. */
public class RedissonShop {
    private final RedissonClient client;
    private final Goods goods;

    public RedissonShop(RedissonClient client, Goods goods) {
        this.client = client;
        this.goods = goods;
    }

    public boolean sell(Runnable payment) throws InterruptedException {
        RLock lock = client.getLock("goods:1");
        if (!lock.tryLock(10, TimeUnit.SECONDS)) {
            return false;
        }
        try {
            int stock = goods.stock();
            if (stock == 0) {
                return false;
            }
            payment.run();
            return goods.sold(stock - 1);
        } finally {
            if (lock.isHeldByCurrentThread()) {
                lock.unlock();
            }
        }
    }
}
