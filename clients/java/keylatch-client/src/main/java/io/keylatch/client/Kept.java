package io.keylatch.client;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/** What the service granted for a time. It is renewed by the timers of the client until it is lost or ended. */
abstract class Kept {
    private static final long SHORTEST = 50_000_000;
    final Wire wire;
    final List<String> names;
    final long ttl;
    /** How long before its end what is not renewed counts as lost. */
    private final long lead;
    private volatile long until;
    /** The program ends it: it is not lost from then on. */
    private final AtomicBoolean ended = new AtomicBoolean();
    private volatile String why = "there was no time";
    private final CompletableFuture<Loss> lost = new CompletableFuture<>();
    private volatile Future<?> timer;
    private volatile long due;

    Kept(Wire wire, List<String> names, long ttl, long lead, long until) {
        this.wire = wire;
        this.names = names;
        this.ttl = ttl;
        this.lead = lead;
        this.until = until;
    }

    /** Sends one renewal. Gives until when it is good then. */
    abstract Task<Long> renewal(long timeout);

    /** For how long this is exclusive from now on unless it is renewed.
     * @return zero once it is over, lost or ended */
    public Duration validFor() {
        return hasEnded() || loss() != null ? Duration.ZERO : Duration.ofNanos(Math.max(until - wire.clock.now(), 0));
    }

    /** Whether this is lost. It looks at the clock, so it is right also after a pause of the process.
     * @return false also for what the program has ended */
    public boolean isLost() {
        return loss() != null;
    }

    /** Returns only while this is held. It looks at the clock and sends nothing: ask it before each step of the work.
     * @throws LeaseLostException where it is lost, or ended */
    public void check() {
        Loss loss = loss();
        if (loss == null && hasEnded()) {
            loss = new Loss(names, "released", "this program has ended it", null);
        }
        if (loss != null) {
            throw new LeaseLostException(loss);
        }
    }

    /** Calls a listener when this is lost: a lock is then still exclusive for a quarter of its TTL, at most 10 s. If it is lost
     * already the listener is called now. It may block.
     * @param listener gets the reason */
    public void onLost(Consumer<LeaseLostException> listener) {
        lost.thenAccept(loss -> wire.clock.run(() -> {
            try {
                listener.accept(new LeaseLostException(loss));
            } catch (RuntimeException bug) {
                wire.log.accept("keylatch: a listener of a loss has failed", bug);
            }
        }));
    }

    /** Why it is lost, or null. */
    Loss loss() {
        long now = wire.clock.now();
        if (now >= until && lead > 0) {
            lose(new Loss(names, "paused", "it ended while this process was paused", null));
        } else if (now >= until - lead) {
            lose(new Loss(names, "unrenewed", "it could not be renewed in time: " + why, null));
        }
        return lost.getNow(null);
    }

    void lose(Loss loss) {
        if (!hasEnded() && lost.complete(loss)) {
            wire.log.accept("keylatch has lost a lease: " + loss, null);
        }
    }

    boolean hasEnded() {
        return ended.get();
    }

    long until() {
        return until;
    }

    /** When this counts as lost unless it is renewed. */
    long giveUp() {
        return until - lead;
    }

    void renewed(long newUntil) {
        until = newUntil;
    }

    /** No renewal comes from now on, and no loss. False where it has ended before. */
    boolean end() {
        boolean isFirst = !ended.getAndSet(true);
        Future<?> last = timer;
        if (last != null) {
            last.cancel(true);
        }
        return isFirst;
    }

    /** Renews at each third of the TTL, and at once where that is over. */
    void keepRenewed() {
        due = Math.min(until - ttl, wire.clock.now()) + ttl / 3;
        next(wire.clock.at(Math.min(due, giveUp()), this::renew));
    }

    /** What goes on until the end. */
    void next(Future<?> future) {
        timer = future;
        if (hasEnded()) {
            future.cancel(true);
        }
    }

    /** Half of the time that is left for a renewal. */
    private long half() {
        return Math.max((giveUp() - wire.clock.now()) / 2, SHORTEST);
    }

    private void renew() {
        if (hasEnded() || loss() != null) {
            return;
        }
        long sent = wire.clock.now();
        // Whatever fails must not end the renewals.
        Task<Long> renewing = Task.done(Math.min(wire.timeout, half())).flatMap(this::renewal);
        next(renewing);
        renewing.whenComplete((newUntil, failed) -> {
            if (hasEnded()) {
                return;
            }
            if (failed == null) {
                renewed(newUntil);
                due = sent + ttl / 3;
            } else {
                Throwable reason = Task.reason(failed);
                Loss loss = reason instanceof ProblemException ? Loss.of(names, (ProblemException) reason) : null;
                if (loss != null) {
                    lose(loss);
                    return;
                }
                wire.log.accept("keylatch could not renew " + names, reason);
                why = reason.getMessage();
                due = wire.clock.now() + Math.min(Wire.pauseAfter(reason), half());
            }
            next(wire.clock.at(Math.min(due, giveUp()), this::renew));
        });
    }
}
