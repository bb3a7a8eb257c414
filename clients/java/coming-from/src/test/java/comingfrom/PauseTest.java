package comingfrom;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.parallel.ResourceLock;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import shop.Goods;

/** A process is paused for longer than its lock lasts, as a laptop's lid, a hypervisor or a collection of garbage does it. */
@ResourceLock("goods")
class PauseTest {
    private static final int LASTS = 1_000;

    @ParameterizedTest
    @CsvSource({
        "before.RedisTool, 2", "before.RedissonShop, 2", "before.CuratorShop, 2",
        "after.RedisTool, 1", "after.RedissonShop, 1", "after.CuratorShop, 1",
        // With its fencing token Redisson is safe as well.
        "RFencedLock, 1",
    })
    void lastPieceIsSold(String program, int times) throws Exception {
        Goods goods = new Goods(Servers.Database.URL);
        goods.reset(1);
        String address = Seller.address(program);
        try (Child paused = new Child(program, address, Servers.Database.URL, "" + LASTS);
                Seller other = new Seller(program, address, goods, LASTS)) {
            assertEquals("inside", paused.said());
            paused.pause();
            Servers.until(() -> other.sell(() -> { }));
            String end = paused.goOn();
            assertEquals(times, goods.sales(), end);
            assertTrue(times == 2 || !end.equals("true"), "it knows");
        }
    }
}
