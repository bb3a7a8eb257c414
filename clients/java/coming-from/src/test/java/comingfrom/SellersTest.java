package comingfrom;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.parallel.ResourceLock;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import shop.Goods;

/** All is well: two sellers at once sell each piece once, with either lock. */
@ResourceLock("goods")
class SellersTest {
    @ParameterizedTest
    @ValueSource(strings = {
        "before.RedisTool", "before.RedissonShop", "before.CuratorShop", "before.HazelcastShop",
        "after.RedisTool", "after.RedissonShop", "after.CuratorShop", "after.HazelcastShop",
    })
    void eachPieceIsSoldOnce(String program) throws Exception {
        Goods goods = new Goods(Servers.Database.URL);
        goods.reset(20);
        String address = Seller.address(program);
        try (Seller first = new Seller(program, address, goods, 9_000); Seller second = new Seller(program, address, goods, 9_000)) {
            CompletableFuture<Void> beside = CompletableFuture.runAsync(() -> sellOut(first, goods), task -> new Thread(task).start());
            sellOut(second, goods);
            beside.get();
        }
        assertEquals(20, goods.sales());
    }

    private static void sellOut(Seller seller, Goods goods) {
        try {
            while (goods.stock() > 0) {
                seller.sell(() -> { });
            }
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }
}
