package before;

import java.util.UUID;
import java.util.List;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.params.SetParams;
import shop.Goods;

/** A lock by key and request id, which the holder releases by its id, and a sale under it. */
public class RedisTool {
    private static final String RELEASE =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

    public static boolean tryGetDistributedLock(JedisPooled client, String key, String requestId, long expire) {
        return "OK".equals(client.set(key, requestId, SetParams.setParams().nx().px(expire)));
    }

    public static void releaseDistributedLock(JedisPooled client, String key, String requestId) {
        client.eval(RELEASE, List.of(key), List.of(requestId));
    }

    public static boolean sell(JedisPooled client, Goods goods, long expire, Runnable payment) {
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
            return goods.sold(stock - 1);
        } finally {
            releaseDistributedLock(client, "goods:1", requestId);
        }
    }
}
