package io.keylatch.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.keylatch.client.HeldException;
import io.keylatch.client.Lease;
import io.keylatch.client.LeaseLostException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.support.TransactionTemplate;

/** The lock of a method begins before its transaction and ends after its commit. */
class LockedTest extends StarterTest {
    @Autowired private Shop.Stock stock;
    @Autowired private Shop.Watched transactions;
    @Autowired private JdbcTemplate database;

    @BeforeEach
    void onePiece() {
        database.execute("DROP TABLE IF EXISTS stock");
        database.execute("CREATE TABLE stock (pieces INT)");
        database.execute("INSERT INTO stock VALUES (1)");
        transactions.seen.clear();
    }

    private int pieces() {
        return database.queryForObject("SELECT pieces FROM stock", Integer.class);
    }

    private static <T> CompletableFuture<T> elsewhere(java.util.function.Supplier<T> action) {
        return CompletableFuture.supplyAsync(action, task -> new Thread(task).start());
    }

    @Test
    void methodRunsUnderTheLockOfItsArgument() {
        assertEquals("held1", stock.order(17L));
        assertTrue(keylatch.show("order:17").isEmpty());
        assertEquals(1, stock.alone());
    }

    /** What the order of the advice is for: by hand within the transaction, others see the stock of before its commit. */
    @Test
    void lockByHandEndsBeforeTheCommit() {
        stock.buyByHand();
        assertEquals(List.of("begin free", "commit free"), transactions.seen);
    }

    @Test
    void transactionIsWithinTheLock() {
        stock.buy();
        assertEquals(List.of("begin locked", "commit locked"), transactions.seen);
        assertTrue(keylatch.show("stock").isEmpty());
    }

    @Test
    void onePieceIsSoldOnce() {
        List<CompletableFuture<Boolean>> buyers = IntStream.range(0, 8).mapToObj(i -> elsewhere(stock::buy)).collect(Collectors.toList());
        assertEquals(1, buyers.stream().map(CompletableFuture::join).filter(isSold -> isSold).count());
    }

    @Test
    void runningTransactionKeepsTheLockUntilItsEnd() {
        new TransactionTemplate(transactions).executeWithoutResult(status -> {
            stock.buy();
            stock.buy();
            assertFalse(keylatch.show("stock").isEmpty());
        });
        assertEquals(List.of("begin free", "commit locked"), transactions.seen);
        assertTrue(keylatch.show("stock").isEmpty());
        new TransactionTemplate(transactions).executeWithoutResult(status -> {
            stock.buy();
            status.setRollbackOnly();
        });
        assertTrue(keylatch.show("stock").isEmpty());
        assertEquals(-1, pieces());
    }

    @Test
    void lostLockRollsTheRunningTransactionBack() {
        assertThrows(LeaseLostException.class, () -> new TransactionTemplate(transactions).executeWithoutResult(status -> {
            stock.buy();
            CompletableFuture<Object> lost = new CompletableFuture<>();
            keylatch.lock("stock").asLock().lease().onLost(lost::complete);
            keylatch.breakLock("stock", "test");
            lost.join();
        }));
        assertEquals(1, pieces());
    }

    @Test
    void methodThatMeetsAHolderIsRefusedOrSkipped() {
        try (Lease other = keylatch.lock("stock").owner("ann").acquire()) {
            assertNull(stock.skip());
            transactions.seen.clear();
            HeldException held = assertThrows(HeldException.class, () -> stock.later(new CompletableFuture<>()));
            assertEquals("ann", held.holder().get().owner());
            assertTrue(other.validFor().compareTo(Duration.ZERO) > 0);
        }
        assertEquals("ran", stock.skip());
    }

    @Test
    void interruptEndsTheWait() {
        try (Lease other = keylatch.lock("stock").acquire()) {
            Thread.currentThread().interrupt();
            assertThrows(CancellationException.class, stock::buy);
            assertTrue(Thread.interrupted());
            assertFalse(other.isLost());
        }
    }

    @Test
    void stageKeepsTheLockUntilItsEnd() {
        CompletableFuture<String> work = new CompletableFuture<>();
        CompletableFuture<CompletableFuture<String>> call = elsewhere(() -> stock.later(work));
        while (keylatch.show("stock").isEmpty()) {
            Thread.onSpinWait();
        }
        assertFalse(call.isDone());
        work.complete("done");
        assertEquals("done", call.join().join());
        assertTrue(keylatch.show("stock").isEmpty());
        assertThrows(IllegalStateException.class, stock::reactive);
    }

    @Test
    void runningTransactionWaitsForTheStage() {
        CompletableFuture<String> doneWhenAwaited = new CompletableFuture<>() {
            @Override
            public CompletableFuture<String> toCompletableFuture() {
                complete("done");
                return this;
            }
        };
        new TransactionTemplate(transactions).executeWithoutResult(status -> assertTrue(stock.later(doneWhenAwaited).isDone()));
    }

    @Test
    void nameWithoutAValueIsRefused() {
        String said = assertThrows(IllegalArgumentException.class, () -> stock.order(null)).getMessage();
        assertTrue(said.contains("#userId"), said);
    }
}
