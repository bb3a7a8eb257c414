package io.keylatch.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.keylatch.client.HeldException;
import io.keylatch.client.Keylatch;
import io.keylatch.client.Lease;
import io.keylatch.client.LeaseLostException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.springframework.transaction.support.TransactionTemplate;

/** A lock around a method ends after the transaction of that method. */
@SpringBootTest(classes = Shop.class)
class LockedTest {
    @Autowired private Shop.Stock stock;
    @Autowired private Shop.Watched transactions;
    @Autowired private Keylatch keylatch;
    @Autowired private JdbcTemplate database;

    @DynamicPropertySource
    static void settings(DynamicPropertyRegistry settings) {
        Service.settings(settings);
    }

    @BeforeEach
    void onePiece() {
        database.execute("DROP TABLE IF EXISTS stock");
        database.execute("CREATE TABLE stock (pieces INT)");
        database.execute("INSERT INTO stock VALUES (1)");
        transactions.seen.clear();
    }

    @Test
    void methodRunsUnderTheLockOfItsArgument() {
        assertEquals("held1", stock.order(17L));
        assertTrue(keylatch.show("order:17").isEmpty());
    }
}
