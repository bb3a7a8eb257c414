package io.keylatch.client;

import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/**
 * One or several locks that this program holds. A lease is renewed until it is released or lost. The holder is the token
 * and not the thread, so any thread may use it. An interrupt never ends a release.
 */
public final class Lease extends Kept implements AutoCloseable {
    private final Claim claim;
    private final Claim.Grant grant;
    private final Task<Boolean> released = new Task<>();
    /** What ends the connection of a hold. */
    private volatile Runnable close = () -> { };

    Lease(Claim claim, Claim.Grant grant) {
        super(claim.wire, claim.lock.names, claim.lock.ttl,
            claim.lock.isRenewed ? Math.min(claim.lock.ttl / 4, Claim.LEAD_MAX) : 0, grant.until);
        this.claim = claim;
        this.grant = grant;
    }

    void closeBy(Runnable closing) {
        close = closing;
    }

    @Override
    Task<Long> renewal(long timeout) {
        return claim.renew(timeout).map(renewed -> renewed.until);
    }

    @Override
    void keepRenewed() {
        if (claim.lock.isRenewed) {
            super.keepRenewed();
        } else {
            next(wire.clock.at(giveUp(), this::loss));
        }
    }

    /** Says in which order grants were made: it is larger than that of every earlier grant that this one cannot be held together with.
     * The resource remembers the largest that it has seen, and refuses a smaller one.
     * @return that of the first lock */
    public long fencingToken() {
        return grant.locks.get(0).count("fencing_token");
    }

    /** The fencing token of each lock.
     * @return by name */
    public Map<String, Long> fencingTokens() {
        Map<String, Long> tokens = new LinkedHashMap<>();
        grant.locks.forEach(lock -> tokens.put(lock.text("name"), lock.count("fencing_token")));
        return Collections.unmodifiableMap(tokens);
    }

    /** Which of the places of a counted lock this is.
     * @return from 0; empty where the lock is not counted */
    public OptionalInt slot() {
        return new Holder(grant.locks.get(0)).slot();
    }

    /** The secret that proves the lease, for a program that enters the lock again.
     * @return 20 to 128 characters */
    public String token() {
        return claim.token.text;
    }

    /** Starts the lease again with another TTL, once: it is then good for so long, or until its next renewal.
     * @param time longer or shorter than the TTL; sent in milliseconds
     * @throws LeaseLostException where it is lost, or ended
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public void extend(Duration time) {
        check();
        try {
            renewed(claim.extend(Wire.nanos(time)).finish().until);
        } catch (ProblemException problem) {
            Loss loss = Loss.of(names, problem);
            if (loss == null) {
                throw problem;
            }
            lose(loss);
            throw new LeaseLostException(loss);
        }
        if (!claim.lock.isRenewed) {
            keepRenewed();
        }
    }

    /** Releases, and retries for 5 s until there is a response.
     * @return whether the lease was still held
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response; the lease then ends by itself */
    public boolean release() {
        return ending(claim::release).finish();
    }

    /** The same without waiting. It goes on where the future is cancelled.
     * @return whether the lease was still held, or why it could not be released */
    public CompletableFuture<Boolean> releaseAsync() {
        return ending(claim::release).detached(wire.clock, null);
    }

    /** Ends what nobody has taken. */
    void undo() {
        ending(claim::undo);
    }

    private Task<Boolean> ending(Supplier<Task<Boolean>> release) {
        if (end()) {
            release.get().whenComplete((held, why) -> {
                // Not before: without its stream the service would release a hold by itself.
                close.run();
                claim.token.free(claim);
                released.settle(held, why);
            });
        }
        return released;
    }

    /** Releases, unless that was done. A release that fails is logged: the lease ends by itself.
     * @throws LeaseLostException where the lease was lost before; it never replaces an exception of the block */
    @Override
    public void close() {
        if (hasEnded()) {
            return;
        }
        Loss loss = loss();
        boolean wasHeld = true;
        try {
            wasHeld = release();
        } catch (KeylatchException failed) {
            wire.log.accept("keylatch could not release " + names, failed);
        }
        if (loss == null && !wasHeld) {
            loss = new Loss(names, "expired", "it was not held when it was released", null);
        }
        if (loss != null) {
            throw new LeaseLostException(loss);
        }
    }
}
