package before;

import java.util.concurrent.TimeUnit;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import shop.Goods;

/** A sale under a lock that a map keeps. */
public class HazelcastShop {
    private final HazelcastInstance client;
    private final Goods goods;

    public HazelcastShop(HazelcastInstance client, Goods goods) {
        this.client = client;
        this.goods = goods;
    }

    public boolean sell(Runnable payment) throws InterruptedException {
        IMap<String, String> locks = client.getMap("locks");
        if (!locks.tryLock("goods:1", 10, TimeUnit.SECONDS)) {
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
            locks.unlock("goods:1");
        }
    }
}
