package io.keylatch.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;

/** What a program sees of a client, in time that the test moves. */
class FakeKeylatchTest {
    private final FakeKeylatch fake = new FakeKeylatch();
    private final Keylatch keylatch = fake.client();
    private final Keylatch other = fake.client();

    @Test
    void leaseIsRenewedUntilItIsClosed() {
        try (Lease lease = keylatch.lock("a").acquire()) {
            fake.advance(Duration.ofHours(1));
            lease.check();
            assertTrue(lease.validFor().compareTo(Duration.ofSeconds(20)) >= 0, lease.validFor().toString());
            assertEquals("a", assertThrows(HeldException.class, () -> other.lock("a").acquire()).name());
        }
        assertTrue(other.show("a").isEmpty());
    }

    @Test
    void lostLeaseSaysByWhomAndThrowsFromItsEnd() {
        List<LeaseLostException> told = new ArrayList<>();
        Lease lease = keylatch.lock("a").acquire();
        lease.onLost(told::add);
        fake.lose("a");
        assertEquals("broken", told.get(0).reason());
        LeaseLostException lost = assertThrows(LeaseLostException.class, lease::check);
        assertEquals("the lease of a was broken by FakeKeylatch: the test has lost it", lost.getMessage());
        assertEquals(Duration.ZERO, lease.validFor());
        assertThrows(LeaseLostException.class, lease::close);
        lease.onLost(told::add);
        assertEquals(2, told.size());
    }

    @Test
    void exceptionOfTheBodyStaysTheException() {
        IOException own = new IOException("own");
        Throwable thrown = assertThrows(IOException.class, () -> {
            try (Lease lease = keylatch.lock("a").acquire()) {
                lease.check();
                fake.lose("a");
                throw own;
            }
        });
        assertEquals(own, thrown);
        assertThrows(LeaseLostException.class, () -> {
            try (Lease lease = keylatch.lock("a").acquire()) {
                fake.lose("a");
                lease.check();
            }
        });
    }

    @Test
    void releasedLeaseIsNotHeld() {
        Lease lease = keylatch.lock("a").acquire();
        assertTrue(lease.release());
        assertEquals("released", assertThrows(LeaseLostException.class, lease::check).reason());
        assertFalse(lease.isLost());
        lease.close();
    }

    @Test
    void unrenewedLeaseIsLostAtItsEnd() {
        Lease lease = keylatch.lock("a").ttl(Duration.ofSeconds(8)).unrenewed().acquire();
        fake.advance(Duration.ofMillis(7999));
        lease.check();
        fake.advance(Duration.ofMillis(1));
        assertEquals("unrenewed", assertThrows(LeaseLostException.class, lease::check).reason());
        assertTrue(other.lock("a").tryAcquire().isPresent());
    }

    @Test
    void pausedProcessHasLost() {
        Lease lease = keylatch.lock("a").acquire();
        fake.pause(Duration.ofMinutes(1));
        assertEquals(Duration.ZERO, lease.validFor());
        assertEquals("paused", assertThrows(LeaseLostException.class, lease::check).reason());
        assertTrue(other.lock("a").tryAcquire().isPresent());
        assertFalse(lease.release());
    }

    @Test
    void cancelledFutureLeavesTheQueue() throws Exception {
        Lease lease = keylatch.lock("a").acquire();
        CompletableFuture<Lease> waiting = other.lock("a").acquireAsync(Keylatch.FOREVER);
        CompletableFuture<Lease> next = other.lock("a").acquireAsync(Keylatch.FOREVER);
        fake.advance(Duration.ofMinutes(10));
        assertFalse(waiting.isDone());
        waiting.cancel(true);
        lease.close();
        assertThrows(CancellationException.class, waiting::join);
        assertTrue(next.isDone() && next.get().fencingToken() > lease.fencingToken());
    }

    @Test
    void interruptEndsAWaitAndNoClose() {
        Lease lease = keylatch.lock("a").acquire();
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> other.lock("a").acquire(Duration.ofMinutes(1)));
        Thread.currentThread().interrupt();
        lease.close();
        assertTrue(Thread.interrupted());
        assertTrue(other.show("a").isEmpty());
    }

    @Test
    void setSharedAndCounted() {
        try (Lease lease = keylatch.locks("a", "b").acquire()) {
            assertEquals(List.of("a", "b"), List.copyOf(lease.fencingTokens().keySet()));
            assertEquals("b", assertThrows(HeldException.class, () -> other.locks("c", "b").acquire()).name());
        }
        NamedLock counted = keylatch.lock("c").limit(2);
        try (Lease one = counted.acquire(); Lease two = counted.acquire()) {
            assertEquals(List.of(OptionalInt.of(0), OptionalInt.of(1)), List.of(one.slot(), two.slot()));
            assertTrue(counted.tryAcquire().isEmpty());
        }
        try (Lease one = keylatch.lock("d").shared().acquire(); Lease two = other.lock("d").shared().acquire()) {
            assertTrue(other.lock("d").tryAcquire().isEmpty(), one + " " + two);
        }
    }

    @Test
    void ownTokenIsUsedByOneAtATime() {
        NamedLock lock = keylatch.lock("a").token("t".repeat(20));
        try (Lease lease = lock.ttl(Duration.ofSeconds(5)).acquire()) {
            assertThrows(InUseException.class, lock::acquire);
            lock.entry("inner").acquire().close();
            assertThrows(InUseException.class, lock::acquire);
            lease.check();
        }
        lock.acquire().close();
    }

    @Test
    void ownTokenIsUsedByOneRunAtATime() {
        Once once = keylatch.once("k").token("t".repeat(20));
        Run run = once.begin();
        assertThrows(InUseException.class, once.retention(Duration.ofHours(1))::begin);
        run.abandon();
        CompletableFuture<Run> waiting = once.beginAsync(Duration.ofMinutes(1));
        waiting.join().leave();
        run.leave();
        once.begin().complete(Answer.text("done"));
        assertTrue(once.begin().answer().isPresent() && once.begin().answer().isPresent());
        NamedLock traced = fake.client(Keylatch.builder().traceparent(() -> {
            if (run.hasEnded()) {
                throw new IllegalStateException("own");
            }
            return "";
        })).lock("a").token("t".repeat(20));
        assertThrows(IllegalStateException.class, traced::acquire);
        assertThrows(IllegalStateException.class, traced::acquire);
    }

    @Test
    void thingIsDoneOnce() {
        Answer made = keylatch.once("k").call(run -> Answer.json(201, Map.of("no", 17)).header("X-Two", "1").header("x-two", "2"));
        Answer read = other.once("k").call(run -> {
            throw new AssertionError("again");
        });
        assertEquals("{\"no\":17} 201 [1, 2]", read.text() + " " + read.status() + " " + read.headers().get("x-TWO"));
        assertEquals(made.text(), read.text());
    }

    @Test
    void failedThingIsUnknownUnlessNothingWasDone() {
        assertThrows(IOException.class, () -> keylatch.once("k").call(run -> {
            throw new IOException("half way");
        }));
        assertEquals("outcome-unknown", assertThrows(ProblemException.class, () -> keylatch.once("k").begin()).code());
        assertThrows(NothingDoneException.class, () -> keylatch.once("free").call(run -> {
            throw new NothingDoneException("no stock");
        }));
        assertThrows(IllegalStateException.class, () -> keylatch.once("free").onCrash("rerun").call(run -> {
            throw new IllegalStateException("safe to do again");
        }));
        Run run = keylatch.once("free").begin();
        fake.advance(Duration.ofHours(1));
        run.check();
        run.complete(Answer.text("done"));
        assertEquals("done", keylatch.once("free").begin().answer().get().text());
    }

    @Test
    void duplicateWaitsAlsoWithoutAThread() {
        Run run = keylatch.once("k").begin();
        CompletableFuture<Answer> duplicate = other.once("k").callAsync(Duration.ofMinutes(1), again -> {
            throw new AssertionError("again");
        });
        fake.advance(Duration.ofSeconds(10));
        assertFalse(duplicate.isDone());
        run.complete(Answer.of(200, new byte[] {-1}));
        assertEquals(-1, duplicate.join().body()[0]);
        CompletableFuture<Answer> failed = other.once("l").callAsync(Duration.ZERO, one -> CompletableFuture.failedFuture(new IOException("x")));
        assertEquals(IOException.class, assertThrows(CompletionException.class, failed::join).getCause().getClass());
        assertEquals("outcome-unknown", assertThrows(ProblemException.class, () -> keylatch.once("l").begin()).code());
        CompletableFuture<Answer> none = other.once("n").callAsync(Duration.ZERO, one -> null);
        assertEquals(NullPointerException.class, assertThrows(CompletionException.class, none::join).getCause().getClass());
        assertEquals("outcome-unknown", assertThrows(ProblemException.class, () -> keylatch.once("n").begin()).code());
    }

    @Test
    void runThatIsLeftIsUnknownWhenItsLeaseIsOver() {
        keylatch.once("k").begin().leave();
        assertEquals("request-in-progress", assertThrows(ProblemException.class, () -> keylatch.once("k").begin()).code());
        fake.advance(Duration.ofSeconds(31));
        assertEquals("outcome-unknown", assertThrows(ProblemException.class, () -> keylatch.once("k").begin()).code());
    }

    @Test
    void leaderIsInterruptedByTheLossAndLeadsAgain() throws Exception {
        CountDownLatch leads = new CountDownLatch(1);
        CountDownLatch again = new CountDownLatch(2);
        CountDownLatch interrupted = new CountDownLatch(2);
        Election election = keylatch.lock("leader").elect(lease -> {
            leads.countDown();
            again.countDown();
            try {
                new CountDownLatch(1).await();
            } finally {
                interrupted.countDown();
            }
        });
        leads.await();
        assertTrue(election.isLeader());
        fake.lose("leader");
        again.await();
        election.close();
        interrupted.await();
        assertFalse(election.isLeader());
        assertTrue(election.ended().isDone());
        assertTrue(other.lock("leader").tryAcquire().isPresent());
    }

    @Test
    void leaderThatReturnsEndsTheElection() {
        try (Election election = keylatch.lock("leader").elect(lease -> {
            throw new IOException("own");
        })) {
            assertEquals(IOException.class, assertThrows(CompletionException.class, election.ended()::join).getCause().getClass());
        }
    }
}
