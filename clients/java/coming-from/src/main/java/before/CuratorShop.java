package before;

import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import shop.Goods;

/** A sale under a mutex. */
public class CuratorShop {
    private final CuratorFramework client;
    private final Goods goods;

    public CuratorShop(CuratorFramework client, Goods goods) {
        this.client = client;
        this.goods = goods;
    }

    public boolean sell(Runnable payment) throws Exception {
        InterProcessMutex lock = new InterProcessMutex(client, "/goods/1");
        if (!lock.acquire(10, TimeUnit.SECONDS)) {
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
            lock.release();
        }
    }
}
