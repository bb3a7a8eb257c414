package after;

import java.util.UUID;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import io.keylatch.client.Keylatch;
import shop.Goods;

/** A lock by key and request id, which the holder releases by its id, and a sale under it. */
public class RedisTool {
    public static boolean tryGetDistributedLock(Keylatch client, String key, String requestId, long expire) throws InterruptedException {
        return client.lock(key).owner(requestId).ttl(Duration.ofMillis(expire)).asLock().tryLock(10, TimeUnit.SECONDS);
    }

    public static void releaseDistributedLock(Keylatch client, String key, String requestId) {
        client.lock(key).asLock().unlock();
    }

    public static boolean sell(Keylatch client, Goods goods, long expire, Runnable payment) throws InterruptedException {
        String requestId = UUID.randomUUID().toString();
        if (!tryGetDistributedLock(client, "goods:1", requestId, expire)) {
            return false;
        }
        try {
            int stock = goods.stock();
            if (stock == 0) {
                return false;
            }
            payment.run();
            return goods.sold(stock - 1, client.lock("goods:1").asLock().fencingToken());
        } finally {
            releaseDistributedLock(client, "goods:1", requestId);
        }
    }
}
