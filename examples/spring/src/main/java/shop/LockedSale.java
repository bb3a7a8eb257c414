package shop;

import io.keylatch.client.Keylatch;
import io.keylatch.client.Lease;
import java.time.Duration;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;

/** A flash sale in which a lock keeps the stock, and lets each user buy once. */
@RestController
class LockedSale {
    private final Keylatch keylatch;
    private final JdbcTemplate jdbc;
    private final TransactionTemplate transaction;

    LockedSale(Keylatch keylatch, JdbcTemplate jdbc, TransactionTemplate transaction) {
        this.keylatch = keylatch;
        this.jdbc = jdbc;
        this.transaction = transaction;
    }

    @PostMapping("/sale/locked")
    ResponseEntity<String> buy(@RequestHeader("X-User") String user) throws InterruptedException {
        // The lock is around the transaction, so that it is released after the commit.
        try (Lease lease = keylatch.lock("goods/1").acquire(Duration.ofSeconds(60))) {
            return transaction.execute(begun -> sell(user, lease.fencingToken()));
        }
    }

    private ResponseEntity<String> sell(String user, long fence) {
        int stock = jdbc.queryForObject("SELECT stock FROM goods WHERE id = 1", Integer.class);
        if (stock == 0) {
            return ResponseEntity.status(410).body("sold out");
        }
        if (jdbc.queryForObject("SELECT count(*) FROM orders WHERE item = 'locked' AND buyer = ?", Integer.class, user) > 0) {
            return ResponseEntity.status(409).body("one for each user");
        }
        if (jdbc.update("UPDATE goods SET stock = ?, fence = ? WHERE id = 1 AND fence < ?", stock - 1, fence, fence) == 0) {
            return ResponseEntity.status(503).body("please try again: the lock was lost");
        }
        jdbc.update("INSERT INTO orders (item, buyer) VALUES ('locked', ?)", user);
        return ResponseEntity.status(201).body("ordered");
    }
}
