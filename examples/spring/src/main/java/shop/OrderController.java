package shop;

import java.util.List;
import java.util.Map;
import org.springframework.http.HttpStatus;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.ResponseStatus;
import org.springframework.web.bind.annotation.RestController;

/** Orders that know nothing of keylatch. */
@RestController
class OrderController {
    private final JdbcTemplate jdbc;

    OrderController(JdbcTemplate jdbc) {
        this.jdbc = jdbc;
    }

    @PostMapping("/orders")
    @ResponseStatus(HttpStatus.CREATED)
    Map<String, Object> order(@RequestHeader("X-User") String user, @RequestBody Map<String, String> order) {
        jdbc.update("INSERT INTO orders (item, buyer) VALUES (?, ?)", order.get("item"), user);
        return Map.of("item", order.get("item"), "buyer", user);
    }

    @GetMapping("/orders")
    List<Map<String, Object>> orders() {
        return jdbc.queryForList("SELECT item, buyer FROM orders");
    }
}
