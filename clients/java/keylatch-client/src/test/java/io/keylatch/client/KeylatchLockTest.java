package io.keylatch.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;

/** The names of java.util.concurrent and of Redisson. */
class KeylatchLockTest {
    private final FakeKeylatch fake = new FakeKeylatch();
    private final Keylatch keylatch = fake.client();

    private static <T> T inAnotherThread(Supplier<T> action) {
        return CompletableFuture.supplyAsync(action, task -> new Thread(task).start()).join();
    }

    @Test
    void threadEntersAgainAndAnotherDoesNot() throws InterruptedException {
        KeylatchLock lock = keylatch.lock("a").asLock();
        lock.lock();
        assertTrue(keylatch.lock("a").asLock().tryLock());
        assertEquals(2, lock.getHoldCount());
        assertFalse(inAnotherThread(() -> keylatch.lock("a").asLock().tryLock()));
        assertFalse(inAnotherThread(lock::isHeldByCurrentThread));
        lock.unlock();
        assertTrue(lock.isHeldByCurrentThread() && lock.isLocked() && lock.fencingToken() > 0 && lock.remainTimeToLive() > 0);
        lock.unlock();
        assertFalse(lock.isHeldByCurrentThread() || lock.isLocked());
        assertTrue(lock.tryLock(1, TimeUnit.SECONDS));
        lock.unlock();
        assertEquals(-2, lock.remainTimeToLive());
    }

    @Test
    void enterSaysWhoHoldsTheLock() throws InterruptedException {
        KeylatchLock lock = keylatch.lock("a").owner("ann").asLock();
        lock.enter(Duration.ZERO);
        lock.enter(Duration.ofSeconds(1));
        assertEquals(2, lock.getHoldCount());
        HeldException held = inAnotherThread(() -> assertThrows(HeldException.class, () -> lock.enter(Duration.ZERO)));
        assertEquals("ann", held.holder().get().owner());
        lock.unlock();
        lock.unlock();
        assertFalse(lock.isLocked());
    }

    @Test
    void extendedLeaseHasAnotherTtlOnce() {
        Lease lease = keylatch.lock("a").ttl(Duration.ofSeconds(9)).unrenewed().acquire();
        lease.extend(Duration.ofSeconds(60));
        fake.advance(Duration.ofSeconds(50));
        lease.check();
        lease.extend(Duration.ofSeconds(3));
        fake.advance(Duration.ofSeconds(4));
        assertThrows(LeaseLostException.class, () -> lease.extend(Duration.ofSeconds(9)));
        Lease renewed = keylatch.lock("a").ttl(Duration.ofSeconds(9)).acquire();
        renewed.extend(Duration.ofSeconds(60));
        fake.advance(Duration.ofHours(1));
        renewed.check();
        fake.lose("a");
        assertThrows(LeaseLostException.class, () -> renewed.extend(Duration.ofSeconds(9)));
    }

    @Test
    void unlockByAnotherThreadIsRefused() {
        KeylatchLock lock = keylatch.lock("a").asLock();
        lock.lock();
        inAnotherThread(() -> assertThrows(IllegalMonitorStateException.class, lock::unlock));
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertThrows(UnsupportedOperationException.class, lock::newCondition);
    }

    @Test
    void lockThatIsLostThrows() {
        KeylatchLock lock = keylatch.lock("a").asLock();
        lock.lock();
        fake.lose("a");
        assertThrows(LeaseLostException.class, lock::lock);
        assertThrows(LeaseLostException.class, lock::unlock);
        lock.lock();
        lock.unlock();
    }

    @Test
    void threadThatWasToldOfALossLocksAgain() {
        KeylatchReadWriteLock lock = keylatch.lock("a").asReadWriteLock();
        lock.writeLock().lock();
        lock.readLock().lock();
        fake.lose("a");
        assertFalse(lock.writeLock().isHeldByCurrentThread());
        lock.writeLock().lock();
        assertEquals(1, lock.writeLock().getHoldCount());
        assertFalse(lock.readLock().isHeldByCurrentThread());
        lock.writeLock().unlock();
        assertFalse(lock.writeLock().isLocked());
    }

    @Test
    void readerDoesNotEnterAsTheWriter() {
        KeylatchLock shared = keylatch.lock("a").shared().asLock();
        shared.lock();
        assertThrows(IllegalMonitorStateException.class, keylatch.lock("a").asLock()::tryLock);
        shared.unlock();
        KeylatchLock named = keylatch.lock("reader of a").asLock();
        named.lock();
        assertThrows(IllegalMonitorStateException.class, keylatch.lock("a").asReadWriteLock().readLock()::unlock);
        named.unlock();
        KeylatchLock writer = keylatch.lock("a").shared().asReadWriteLock().writeLock();
        writer.lock();
        assertEquals(false, inAnotherThread(keylatch.lock("a").shared().asLock()::tryLock));
        writer.unlock();
    }

    @Test
    void leaseTimeEndsTheLease() throws InterruptedException {
        KeylatchLock lock = keylatch.lock("a").asLock();
        assertTrue(lock.tryLock(0, 8, TimeUnit.SECONDS));
        fake.advance(Duration.ofSeconds(9));
        assertFalse(lock.isHeldByCurrentThread());
        assertEquals(true, inAnotherThread(lock::tryLock));
        assertFalse(lock.tryLock(0, 8, TimeUnit.SECONDS));
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertTrue(lock.forceUnlock());
    }

    @Test
    void interruptEndsAWait() {
        KeylatchLock lock = keylatch.lock("a").asLock();
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, lock::lockInterruptibly);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void readersShareAndAWriterMayRead() {
        KeylatchReadWriteLock lock = keylatch.lock("a").asReadWriteLock();
        lock.readLock().lock();
        assertTrue(inAnotherThread(() -> {
            boolean isRead = lock.readLock().tryLock();
            lock.readLock().unlock();
            return isRead && !lock.writeLock().tryLock();
        }));
        assertThrows(IllegalMonitorStateException.class, lock.writeLock()::tryLock);
        lock.readLock().unlock();
        lock.writeLock().lock();
        lock.readLock().lock();
        lock.writeLock().unlock();
        assertEquals(false, inAnotherThread(lock.readLock()::tryLock));
        lock.readLock().unlock();
        assertFalse(lock.writeLock().isHeldByCurrentThread() || lock.writeLock().isLocked());
    }

    @Test
    void semaphoreHasPermits() throws InterruptedException {
        KeylatchSemaphore semaphore = keylatch.lock("a").asSemaphore(2);
        semaphore.acquire();
        assertTrue(semaphore.tryAcquire(1, TimeUnit.SECONDS));
        assertFalse(semaphore.tryAcquire());
        inAnotherThread(() -> {
            semaphore.release();
            return null;
        });
        assertTrue(semaphore.tryAcquire());
        semaphore.release();
        fake.lose("a");
        semaphore.acquire();
        assertThrows(LeaseLostException.class, semaphore::release);
        assertEquals(1, keylatch.show("a").get().holders().size());
        semaphore.release();
        assertThrows(IllegalMonitorStateException.class, semaphore::release);
    }
}
