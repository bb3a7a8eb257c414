package io.keylatch.client;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.function.Consumer;

/** Reports what happens to a lock until it is closed. After a lost connection it begins again with a "snapshot". */
public final class Watch implements AutoCloseable {
    private final Wire wire;
    private final String name;
    private final String trace;
    private final Consumer<Event> listener;
    private final Task<Void> ended = new Task<>();
    private volatile CompletableFuture<Void> told = CompletableFuture.completedFuture(null);

    Watch(Wire wire, String name, String trace, Consumer<Event> listener) {
        this.wire = wire;
        this.name = name;
        this.trace = trace;
        this.listener = listener;
    }

    /** Ends the watch. */
    @Override
    public void close() {
        ended.cancel(true);
    }

    /** Says when the watch has ended.
     * @return fails with a {@link ProblemException} where the service refuses the watch; is cancelled by {@link #close()} */
    public CompletableFuture<Void> ended() {
        return ended.detached(wire.clock, null);
    }

    void open() {
        if (ended.isDone()) {
            return;
        }
        Connection connection = new Connection();
        Request request = new Request("GET", "/v1/locks/" + Request.plain(name) + "/events");
        request.trace = trace;
        request.timeout = wire.timeout;
        request.lines = connection;
        connection.opening = wire.stream(request);
        ended.step(connection.over);
        connection.listen();
        connection.opening.whenComplete((response, failed) -> {
            if (failed != null) {
                connection.ended(Task.reason(failed));
            }
        });
        connection.over.whenComplete((none, why) -> {
            connection.silence.cancel(true);
            connection.opening.cancel(true);
            connection.opening.thenAccept(response -> response.close.run());
            Throwable reason = why == null ? null : Task.reason(why);
            if (reason instanceof ProblemException && !((ProblemException) reason).isPassing()) {
                ended.completeExceptionally(reason);
            } else if (!ended.isDone()) {
                wire.log.accept("keylatch opens a watch of " + name + " again", reason);
                ended.step(wire.clock.at(wire.clock.now() + Wire.pauseAfter(reason), this::open));
            }
        });
    }

    /** Calls the listener for one event after another, beside the thread that reads. */
    private void tell(Event event) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        told.thenRun(() -> wire.clock.run(() -> {
            try {
                if (!ended.isDone()) {
                    listener.accept(event);
                }
            } catch (RuntimeException bug) {
                wire.log.accept("keylatch: a listener of a watch has failed", bug);
            } finally {
                done.complete(null);
            }
        }));
        told = done;
    }

    private final class Connection extends Events {
        final Task<Void> over = new Task<>();
        private final int choice = wire.choice();
        private volatile long heardAt = wire.clock.now();
        volatile Future<?> silence;
        Task<Transport.Response> opening;

        /** Ends where nothing has come for so long. */
        void listen() {
            silence = wire.clock.at(heardAt + wire.silence, () -> {
                if (!over.isDone() && wire.clock.now() >= heardAt + wire.silence) {
                    wire.leave(choice);
                    over.complete(null);
                } else if (!over.isDone()) {
                    listen();
                }
            });
        }

        @Override
        void heard() {
            heardAt = wire.clock.now();
        }

        @Override
        void event(String kind, Document said) {
            Map<String, Object> data = new LinkedHashMap<>();
            said.members.forEach((member, value) -> data.put(String.valueOf(member), value));
            tell(new Event(kind, data));
        }

        @Override
        public void ended(Throwable why) {
            over.settle(null, why);
        }
    }
}
