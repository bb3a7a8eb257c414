package io.keylatch.client;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * A lock, or several together, and how to get it. It does not change: each setting gives another. Threads may share
 * it, for each acquisition has a token of its own.
 */
public final class NamedLock implements Cloneable {
    final Keylatch keylatch;
    final List<String> names;
    final boolean isSet;
    long ttl = 30 * Clock.SECOND;
    String owner;
    boolean isShared;
    Integer limit;
    Integer maxAhead;
    String entry;
    Token token;
    boolean isRenewed = true;
    private long longest;

    NamedLock(Keylatch keylatch, List<String> names, boolean isSet) {
        this.keylatch = keylatch;
        this.names = List.copyOf(names);
        this.isSet = isSet;
        owner = keylatch.owner;
    }

    private NamedLock with(Consumer<NamedLock> setting) {
        try {
            NamedLock other = (NamedLock) clone();
            setting.accept(other);
            return other;
        } catch (CloneNotSupportedException impossible) {
            throw new AssertionError(impossible);
        }
    }

    /** How long the lease outlives this process.
     * @param ttl 30 s by default; sent in milliseconds as it is
     * @return the lock with it */
    public NamedLock ttl(Duration ttl) {
        return with(other -> other.ttl = Wire.nanos(ttl));
    }

    /** Who holds the lock, for people.
     * @param owner HOST/PID by default; the empty text for nobody
     * @return the lock with it */
    public NamedLock owner(String owner) {
        return with(other -> other.owner = owner);
    }

    /** Lets any number of readers hold the lock together.
     * @return the lock for a reader */
    public NamedLock shared() {
        return with(other -> other.isShared = true);
    }

    NamedLock exclusive() {
        return with(other -> {
            other.isShared = false;
            other.limit = null;
        });
    }

    /** Lets so many hold the lock together, each with a {@linkplain Lease#slot slot} of its own.
     * @param limit the same number for all; sent as it is
     * @return the counted lock */
    public NamedLock limit(int limit) {
        return with(other -> {
            other.isShared = true;
            other.limit = limit;
        });
    }

    /** Waits only where at most so many wait already.
     * @param most with 0 one holds the lock, and one waits
     * @return the lock with it */
    public NamedLock maxAhead(int most) {
        return with(other -> other.maxAhead = most);
    }

    /** Enters under a name. With {@link #token} it enters a lock again that the token holds.
     * @param entry a name of the caller's own
     * @return the lock with it */
    public NamedLock entry(String entry) {
        return with(other -> other.entry = entry);
    }

    /** Proves the lease by this secret in place of a new one for each acquisition.
     * @param token 20 to 128 letters, digits, "-" and "_"
     * @return the lock with it, which one lease at a time may use
     * @throws IllegalArgumentException where no header may have it */
    public NamedLock token(String token) {
        Token own = new Token(token);
        return with(other -> other.token = own);
    }

    /** Lets the lease end with its TTL: the client does not renew it.
     * @return the lock with it */
    public NamedLock unrenewed() {
        return with(other -> other.isRenewed = false);
    }

    /** For how long a {@link #hold} lasts at most.
     * @param longest a day by default
     * @return the lock with it */
    public NamedLock maxHold(Duration longest) {
        return with(other -> other.longest = Wire.nanos(longest));
    }

    /** Gets the lock if it is free. An interrupt comes afterwards. What fails on the way is retried for 5 s.
     * @return the lease, to be closed
     * @throws HeldException where others hold it
     * @throws InUseException where a lease with this {@link #token} is in use
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public Lease acquire() {
        return acquiring(0).finish();
    }

    /** Gets the lock, and waits in the queue. What fails on the way is retried for the time of the wait, and for 5 s at least.
     * @param wait how long, or {@link Keylatch#FOREVER}
     * @return the lease, to be closed
     * @throws InterruptedException where this thread is interrupted: it has left the queue then
     * @throws HeldException where others hold it until the wait is over
     * @throws InUseException where a lease with this {@link #token} is in use
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public Lease acquire(Duration wait) throws InterruptedException {
        return acquiring(Wire.nanos(wait)).await();
    }

    Lease acquireUninterruptibly() {
        return acquiring(Wire.nanos(Keylatch.FOREVER)).finish();
    }

    /** As {@link #acquire()}, with nothing where others hold the lock.
     * @return the lease, if the lock was free
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public Optional<Lease> tryAcquire() {
        try {
            return Optional.of(acquire());
        } catch (HeldException held) {
            return Optional.empty();
        }
    }

    /** As {@link #acquire(Duration)} without a thread that waits. Where the future is cancelled, or ends otherwise, the wait leaves
     * the queue and a grant is released; one by a {@link #token} of the caller's own ends by itself.
     * @param wait how long, or {@link Keylatch#FOREVER}
     * @return the lease, or one of the exceptions of {@link #acquire(Duration)} */
    public CompletableFuture<Lease> acquireAsync(Duration wait) {
        return acquiring(Wire.nanos(wait)).detached(keylatch.wire.clock, Lease::undo);
    }

    /** As {@link #acquire(Duration)}, by a connection: the service renews the lease, and frees the lock as soon as this process is gone.
     * It is retried with a new token after a lost response, and not with a {@link #token}.
     * @param wait how long to wait in the queue
     * @return the lease, to be closed
     * @throws InterruptedException where this thread is interrupted: it has left the queue then
     * @throws HeldException where others hold it until the wait is over
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public Lease hold(Duration wait) throws InterruptedException {
        return holding(Wire.nanos(wait)).await();
    }

    /** As {@link #hold} without a thread that waits, and cancelled as {@link #acquireAsync}.
     * @param wait how long to wait in the queue
     * @return the lease, or one of the exceptions of {@link #hold} */
    public CompletableFuture<Lease> holdAsync(Duration wait) {
        return holding(Wire.nanos(wait)).detached(keylatch.wire.clock, Lease::undo);
    }

    private Task<Lease> acquiring(long wait) {
        return using(claim -> claim.acquire(wait));
    }

    private Task<Lease> holding(long wait) {
        return using(claim -> {
            AtomicReference<Claim> asked = new AtomicReference<>(claim);
            return keylatch.wire.retry(claim.path(), wait, (atService, forResponse) ->
                asked.get().hold(atService, forResponse, longest).orElse(why -> {
                    // When the service ends a stream that is lost it releases what the token holds, also by another stream.
                    boolean isLost = Request.Effect.mayBeDone(why);
                    asked.set(isLost && token == null ? new Claim(this) : claim);
                    return isLost && token != null ? new UnreachableException(why) : why;
                })).orElse(claim::orHeld);
        });
    }

    /** Refuses a token of the caller's own that is in use. A lease gives it back with its release. */
    private Task<Lease> using(Function<Claim, Task<Lease>> acquiring) {
        Claim claim = new Claim(this);
        if (entry == null) {
            claim.token.take(claim, names.get(0));
        }
        return acquiring.apply(claim).next((task, lease, why) -> {
            if (why != null) {
                claim.token.free(claim);
            }
            if (!task.settle(lease, why) && lease != null) {
                lease.undo();
            }
        });
    }

    /** The same with the names of {@code java.util.concurrent}, held by a thread.
     * @return a lock; those of one client, name and mode count together */
    public KeylatchLock asLock() {
        return new KeylatchLock(this);
    }

    /** Two locks with the names of {@code java.util.concurrent}: one of readers and one of a writer.
     * @return both */
    public KeylatchReadWriteLock asReadWriteLock() {
        return new KeylatchReadWriteLock(this);
    }

    /** A counted lock with the names of {@code java.util.concurrent.Semaphore}.
     * @param permits the same number for all
     * @return a semaphore */
    public KeylatchSemaphore asSemaphore(int permits) {
        return new KeylatchSemaphore(limit(permits));
    }

    /** Leads while this process holds the lock, and leads again when it has lost it and holds it anew.
     * @param leader is called in a thread of the election, which is interrupted when the lock is lost. Where it returns or throws
     *     while it leads, the election ends
     * @return the election, to be closed */
    public Election elect(Election.Leader leader) {
        return new Election(this, leader).start();
    }
}
