package io.keylatch.client;

import java.util.concurrent.Future;

/** A stream that holds a lock: the service renews the lease, and frees the lock with the connection. */
final class Hold extends Events {
    private final Claim claim;
    private final Wire wire;
    private final Request request;
    private final long sent;
    private final Task<Lease> task = new Task<>();
    private volatile Lease lease;

    Hold(Claim claim, Request request) {
        this.claim = claim;
        this.wire = claim.wire;
        this.request = request;
        this.sent = wire.clock.now();
        request.lines = this;
    }

    /** Gives the lease when the stream says that the lock is held. */
    Task<Lease> open() {
        long end = sent + request.timeout;
        Task<Transport.Response> opening = wire.stream(request);
        Future<?> late = wire.clock.at(end, () -> fail(new UnreachableException(true, "no response in time", null)));
        opening.whenComplete((response, failed) -> {
            if (failed != null) {
                fail(Task.reason(failed));
            }
        });
        task.whenComplete((held, failed) -> {
            late.cancel(true);
            if (failed != null) {
                close(opening);
            } else {
                held.closeBy(() -> close(opening));
                outlast(held, () -> close(opening));
            }
        });
        return task;
    }

    private void fail(Throwable why) {
        task.completeExceptionally(why);
    }

    private static void close(Task<Transport.Response> opening) {
        opening.cancel(true);
        opening.thenAccept(response -> response.close.run());
    }

    @Override
    void event(String kind, Document said) {
        Lease held = lease;
        if (kind.equals("refused")) {
            fail(new ProblemException(0, said, 0));
        } else if (kind.equals("acquired") && held == null) {
            try {
                lease = new Lease(claim, claim.granted(said, sent));
                task.complete(lease);
            } catch (UnreachableException another) {
                fail(another);
            }
        } else if (kind.equals("lost") && held != null) {
            Loss loss = Loss.of(held.names, said.text("reason"), said);
            held.lose(loss != null ? loss : new Loss(held.names, String.valueOf(said.text("reason")), said.text("detail"), null));
        } else if (kind.equals("renewed") && held != null && said.has("waited_ms") && said.has("valid_for_ms")) {
            held.renewed(sent + (said.count("waited_ms") + said.count("valid_for_ms")) * 1_000_000);
        }
    }

    @Override
    public void ended(Throwable why) {
        String what = "the stream has ended" + (why == null ? "" : ": " + why);
        fail(new UnreachableException(true, what, why));
        Lease held = lease;
        if (held != null) {
            held.lose(new Loss(held.names, "unreachable", what, null));
        }
    }

    /**
     * Sees that events renew a hold in time. Where none does it is lost, but exclusive until its validity ends: its stream
     * stays open until then, because the service frees the lock with the stream.
     */
    private void outlast(Lease held, Runnable close) {
        held.next(wire.clock.at(held.giveUp(), () -> {
            if (held.loss() == null) {
                outlast(held, close);
            } else {
                held.next(wire.clock.at(held.until(), close));
            }
        }));
    }
}
