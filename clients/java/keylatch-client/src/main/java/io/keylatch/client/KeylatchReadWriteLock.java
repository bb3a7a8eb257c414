package io.keylatch.client;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * Readers hold a lock together, a writer alone. A writer may enter as a reader too, and stays the writer until it has left both. A
 * reader cannot become the writer: that is an IllegalMonitorStateException.
 */
public final class KeylatchReadWriteLock implements ReadWriteLock {
    private final KeylatchLock reader;
    private final KeylatchLock writer;

    KeylatchReadWriteLock(NamedLock lock) {
        reader = lock.shared().asLock();
        writer = lock.exclusive().asLock();
    }

    @Override
    public KeylatchLock readLock() {
        return reader;
    }

    @Override
    public KeylatchLock writeLock() {
        return writer;
    }
}
