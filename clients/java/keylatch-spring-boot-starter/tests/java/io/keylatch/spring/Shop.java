package io.keylatch.spring;

import io.keylatch.client.Keylatch;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import javax.sql.DataSource;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.event.EventListener;
import org.springframework.http.ResponseEntity;
import org.springframework.integration.annotation.ServiceActivator;
import org.springframework.integration.channel.DirectChannel;
import org.springframework.integration.leader.event.AbstractLeaderEvent;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.security.access.AccessDeniedException;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.DefaultTransactionStatus;
import org.springframework.web.bind.annotation.PatchMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** A program with a lock, a transaction and a database. */
@SpringBootConfiguration
@EnableAutoConfiguration
class Shop {
    /** Sees who holds "stock" when a transaction begins, and when it commits. */
    static class Watched extends DataSourceTransactionManager {
        private static final long serialVersionUID = 1;
        private final transient Keylatch keylatch;
        final transient List<String> seen = new ArrayList<>();

        Watched(DataSource database, Keylatch keylatch) {
            super(database);
            this.keylatch = keylatch;
        }

        private void see(String what) {
            boolean isHeld = keylatch.show("stock").isPresent();
            synchronized (seen) {
                seen.add(what + (isHeld ? " locked" : " free"));
            }
        }

        @Override
        protected void doBegin(Object transaction, TransactionDefinition definition) {
            see("begin");
            super.doBegin(transaction, definition);
        }

        @Override
        protected void doCommit(DefaultTransactionStatus status) {
            see("commit");
            super.doCommit(status);
        }
    }

    @Bean
    Watched transactionManager(DataSource database, Keylatch keylatch) {
        return new Watched(database, keylatch);
    }

    @Bean
    Stock stock(JdbcTemplate database, Keylatch keylatch) {
        return new Stock(database, keylatch);
    }

    static class Stock {
        private final JdbcTemplate database;
        private final Keylatch keylatch;

        Stock(JdbcTemplate database, Keylatch keylatch) {
            this.database = database;
            this.keylatch = keylatch;
        }

        private boolean sell() {
            int left = database.queryForObject("SELECT pieces FROM stock", Integer.class);
            database.update("UPDATE stock SET pieces = ?", left - 1);
            return left > 0;
        }

        /** As the textbooks have it: the transaction is that of the proxy around this method. */
        @Transactional
        public boolean buyByHand() {
            Lock lock = keylatch.lock("stock").asLock();
            lock.lock();
            try {
                return sell();
            } finally {
                lock.unlock();
            }
        }

        @Locked(value = "stock", waitFor = "20s", ttl = "9s")
        @Transactional
        public boolean buy() {
            return sell();
        }

        @Locked("order:#{#userId}")
        public String order(Long userId) {
            return keylatch.show("order:" + userId).map(held -> "held").orElse("free")
                + keylatch.lock("order:" + userId).asLock().getHoldCount();
        }

        @Locked(value = "stock", onHeld = Locked.OnHeld.SKIP)
        public String skip() {
            return "ran";
        }

        @Locked("stock")
        @Retention(RetentionPolicy.RUNTIME)
        @interface Alone { }

        @Alone
        public int alone() {
            return keylatch.lock("stock").asLock().getHoldCount();
        }

        @Locked("stock")
        public CompletableFuture<String> later(CompletableFuture<String> work) {
            return work;
        }

        @Locked("stock")
        public java.util.concurrent.Flow.Publisher<String> reactive() {
            return null;
        }
    }

    /** When this program led, and when it did no more. */
    final BlockingQueue<String> leading = new LinkedBlockingQueue<>();

    @EventListener
    void led(AbstractLeaderEvent event) {
        leading.add(event.getClass().getSimpleName() + " " + event.getRole());
    }

    @Bean
    DirectChannel events() {
        return new DirectChannel();
    }

    @Bean
    Mail mail() {
        return new Mail();
    }

    record Event(String id, int no) { }

    record Receipt(String id, List<Integer> numbers) { }

    static class DeclinedException extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    /** What listeners of messages do. */
    static class Mail {
        int runs;
        RuntimeException failing;

        private void run() {
            runs++;
            if (failing != null) {
                throw failing;
            }
        }

        @Once(key = "#{#event.id}")
        public void send(Event event) {
            run();
        }

        @ServiceActivator(inputChannel = "events")
        @Once(key = "#{#event.id}")
        public void receive(Event event) {
            run();
        }

        @Once(key = "#{#event.id}", fingerprint = "#{#event.no}")
        public Receipt book(Event event) {
            run();
            return new Receipt(event.id(), List.of(event.no(), runs));
        }

        @Once(key = "#{#event.id}")
        public Receipt none(Event event) {
            run();
            return null;
        }

        @Once(key = "#{#event.id}")
        @Locked(value = "mail", onHeld = Locked.OnHeld.SKIP)
        public void skip(Event event) {
            run();
        }

        @Once(key = "#{#no}")
        public void count(Integer no) {
            run();
        }

        @Once(key = "#{#no}")
        public void count(String no) {
            run();
        }

        @Once(key = "#{#event.id}", nothingDoneOn = DeclinedException.class)
        public void pay(Event event) {
            run();
        }

        @Once(key = "#{#event.id}", rerun = true)
        @Transactional
        public void repeat(Event event) {
            run();
        }

        @Locked("mail")
        @Once(key = "#{#event.id}")
        public void both(Event event) {
            run();
        }

        @Once(key = "#{#event.id}")
        public CompletableFuture<String> later(Event event) {
            return null;
        }
    }

    /** Another listener of the same messages. */
    static class Parcels extends Mail { }

    /** What keeps any result, and one that keeps receipts. */
    static class Desk<T> {
        @Once(key = "#{#event.id}")
        public T keep(Event event, T what) {
            return what;
        }
    }

    static class Till extends Desk<Receipt> { }

    @Bean
    Till till() {
        return new Till();
    }

    /** The routes of a shop. */
    @RestController
    static class Orders {
        final AtomicInteger made = new AtomicInteger();
        volatile CompletableFuture<String> paying = new CompletableFuture<>();

        @PostMapping("/orders")
        ResponseEntity<Map<String, Object>> order(@RequestBody Map<String, Object> order, HttpServletRequest request) {
            int no = made.incrementAndGet();
            boolean isFenced = (Long) request.getAttribute("keylatch.fencing-token") > 0;
            return ResponseEntity.created(URI.create("/orders/" + no)).header("X-Piece", "a", "b")
                .body(Map.of("no", no, "fenced", isFenced, "amount", order.get("amount")));
        }

        @PatchMapping("/orders/form")
        String change(@RequestParam("amount") String amount) {
            return made.incrementAndGet() + ":" + amount;
        }

        @PostMapping("/orders/form")
        String form(@RequestParam("amount") String amount) {
            return made.incrementAndGet() + ":" + amount;
        }

        @PostMapping("/orders/status/{status}")
        ResponseEntity<String> status(@PathVariable("status") int status, @RequestBody(required = false) String body) {
            made.incrementAndGet();
            return ResponseEntity.status(status).body("made " + made.get());
        }

        @PostMapping("/orders/busy")
        ResponseEntity<String> busy() {
            made.incrementAndGet();
            return ResponseEntity.status(503).header("Retry-After", "1").build();
        }

        @PostMapping("/orders/bug")
        String bug() {
            made.incrementAndGet();
            throw new IllegalStateException("bug");
        }

        @PostMapping("/orders/denied")
        String denied() {
            made.incrementAndGet();
            throw new AccessDeniedException() { };
        }

        @PostMapping("/orders/none")
        void none(HttpServletResponse response) throws IOException {
            made.incrementAndGet();
            response.sendError(404);
        }

        @PostMapping("/payments")
        CompletableFuture<String> pay() {
            made.incrementAndGet();
            return paying;
        }

        /** What does not use Spring for its asynchronous responses. */
        @PostMapping("/orders/raw")
        void raw(HttpServletRequest request) {
            made.incrementAndGet();
            var asynchronous = request.startAsync();
            paying.thenRun(asynchronous::complete);
        }

        @PostMapping("/search")
        String search() {
            return "found " + made.incrementAndGet();
        }
    }
}
