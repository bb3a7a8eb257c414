package io.keylatch.client;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;

/** Sends requests, retries them, and chooses among several URLs. It blocks nowhere. */
final class Wire {
    /** For how long one request waits at the service, which may take less. A runtime before Java 16 cannot end a request. */
    private static final long REQUEST_WAIT = (Runtime.version().feature() < 16 ? 5 : 50) * Clock.SECOND;
    private static final long MILLI = 1_000_000;

    final Transport transport;
    final Clock clock;
    final BiConsumer<String, Throwable> log;
    /** For how long one request may go without a response, and for how long in all one is retried. */
    final long timeout;
    final long silence;
    private final List<String> urls;
    /** Says, modulo the number of URLs, which gets the next request. */
    private final AtomicInteger chosen = new AtomicInteger();
    /** The id of the store, by the URLs that were asked for it. */
    private final ConcurrentHashMap<String, String> stores = new ConcurrentHashMap<>();
    private final AtomicReference<String[]> store = new AtomicReference<>();

    Wire(Transport transport, Clock clock, List<String> urls, long timeout, long silence, BiConsumer<String, Throwable> log) {
        this.transport = transport;
        this.clock = clock;
        this.urls = urls;
        this.timeout = timeout;
        this.silence = silence;
        // A failure of the program's own here must not end the retries and renewals.
        this.log = (message, why) -> {
            try {
                log.accept(message, why);
            } catch (RuntimeException | Error ignored) {
                return;
            }
        };
    }

    /** A duration in nanoseconds, of which two can be added. */
    static long nanos(Duration duration) {
        boolean isLong = duration.compareTo(Keylatch.FOREVER) >= 0;
        boolean isBehind = duration.compareTo(Keylatch.FOREVER.negated()) <= 0;
        return isLong ? Keylatch.FOREVER.toNanos() : isBehind ? -Keylatch.FOREVER.toNanos() : duration.toNanos();
    }

    static long millis(long nanos) {
        return nanos / MILLI;
    }

    /** Gives what a successful response says; fails with a ProblemException or an UnreachableException. */
    Task<Document> send(Request request) {
        request.effect.begin(clock.now());
        return open(request).map(response -> {
            Document said = read(response);
            if (!request.fits.test(said)) {
                throw UnreachableException.ofAnother(null);
            }
            return said;
        }).next((task, said, failed) -> {
            request.effect.note(failed);
            task.settle(said, failed);
        });
    }

    private static Document read(Transport.Response response) {
        boolean isRefused = response.status >= 300;
        Document said = Document.EMPTY;
        try {
            said = response.status == 204 ? Document.EMPTY : Document.of(response.body);
        } catch (IllegalArgumentException bad) {
            if (!isRefused) {
                throw UnreachableException.ofAnother(bad);
            }
        }
        if (isRefused) {
            throw new ProblemException(response.status, said, response.retryAfterNanos);
        }
        return said;
    }

    /** Opens a stream; fails as {@link #send} does. */
    Task<Transport.Response> stream(Request request) {
        return open(request).next((task, response, why) -> {
            if (why == null && response.status != 200) {
                read(response);
                throw UnreachableException.ofAnother(null);
            } else if (!task.settle(response, why) && response != null) {
                response.close.run();
            }
        });
    }

    /**
     * A request that got no connection goes to the next URL at once, and one that got no response leaves that to its
     * retry. All of them share the time of the request.
     */
    private Task<Transport.Response> open(Request request) {
        Task<Transport.Response> task = new Task<>();
        open(task, request, urls.size(), clock.now() + (request.timeout == 0 ? timeout : request.timeout));
        return task;
    }

    private void open(Task<Transport.Response> task, Request request, int left, long end) {
        int choice = chosen.get();
        String url = urls.get(Math.floorMod(choice, urls.size()));
        request.timeout = Math.max(end - clock.now(), MILLI);
        agree(task, url, request).whenComplete((agreed, refused) -> {
            request.timeout = Math.max(end - clock.now(), MILLI);
            CompletableFuture<Transport.Response> sending = refused != null ? Task.failed(refused) : transport.send(url, request);
            task.step(sending);
            sending.whenComplete((response, failed) -> {
                Throwable why = failed == null ? null : Task.reason(failed);
                if (why instanceof UnreachableException && !task.isEnding()) {
                    chosen.compareAndSet(choice, choice + 1);
                    log.accept("keylatch gets no response from " + url, why);
                    if (!((UnreachableException) why).sent() && left > 1 && clock.now() < end) {
                        open(task, request, left - 1, end);
                        return;
                    }
                }
                if (!task.settle(response, why) && response != null) {
                    response.close.run();
                }
            });
        });
    }

    /** Asks each of several URLs once which store it has: in two stores a lock would have two holders. */
    private CompletableFuture<?> agree(Task<?> task, String url, Request of) {
        if (urls.size() == 1 || stores.containsKey(url)) {
            return CompletableFuture.completedFuture(null);
        }
        Request info = new Request("GET", "/v1/info");
        info.timeout = Math.min(timeout, of.timeout);
        info.trace = of.trace;
        CompletableFuture<Transport.Response> asking = transport.send(url, info);
        task.step(asking);
        return asking.handle((response, failed) -> {
            if (failed != null && Task.isCancellation(failed)) {
                throw new CompletionException(failed);
            } else if (failed != null) {
                // The request itself is not sent.
                throw new UnreachableException(false, url + " does not respond", Task.reason(failed).getCause());
            }
            String id;
            try {
                id = response.status == 404 ? null : read(response).document("store").text("id");
            } catch (KeylatchException none) {
                throw new UnreachableException(false, url + " does not say which store it has", none);
            }
            if (id != null && !id.isEmpty()) {
                store.compareAndSet(null, new String[] {id, url});
                if (!store.get()[0].equals(id)) {
                    throw new UnreachableException(false, url + " has another store than " + store.get()[1], null);
                }
            }
            stores.put(url, String.valueOf(id));
            return null;
        });
    }

    /** Leaves the URL that a silent stream came from. */
    void leave(int choice) {
        chosen.compareAndSet(choice, choice + 1);
    }

    int choice() {
        return chosen.get();
    }

    /**
     * Retries until there is a response, for the time of the wait, but for 5 s at least. What others have is retried until
     * the wait is over. An attempt gets how long to wait at the service, and how long for its response, in nanoseconds.
     */
    <T> Task<T> retry(String what, long wait, BiFunction<Long, Long, Task<T>> attempt) {
        Retries<T> retries = new Retries<>(what, wait, attempt);
        retries.next();
        return retries.task;
    }

    /** The same for a request that is safe to retry as it is. */
    Task<Document> ask(Request request, long wait) {
        return retry(request.path, wait, (atService, forResponse) -> {
            request.prefers = atService;
            request.timeout = forResponse;
            return send(request);
        });
    }

    /** A pause before a retry: 100 to 400 ms, so that not all clients come at once, after what the service asks for. */
    static long pauseAfter(Throwable why) {
        long asked = why instanceof ProblemException ? ((ProblemException) why).retryAfter().toNanos() : 0;
        return asked + ThreadLocalRandom.current().nextLong(100 * MILLI, 400 * MILLI);
    }

    private final class Retries<T> {
        final Task<T> task = new Task<>();
        private final String what;
        private final BiFunction<Long, Long, Task<T>> attempt;
        private final long waits;
        private final long end;
        private long longest = REQUEST_WAIT;
        private final Request.Effect effect = new Request.Effect();

        Retries(String what, long wait, BiFunction<Long, Long, Task<T>> attempt) {
            this.what = what;
            this.attempt = attempt;
            long begun = clock.now();
            waits = begun + wait;
            end = begun + Math.max(wait, timeout);
        }

        void next() {
            if (task.isDone()) {
                return;
            }
            long sent = clock.now();
            long wait = Math.max(Math.min(waits - sent, longest), 0);
            long forResponse = wait > 0 ? wait + timeout : Math.max(Math.min(timeout, end - sent), Clock.SECOND);
            effect.begin(sent);
            Task<T> trying = attempt.apply(wait, forResponse);
            task.step(trying);
            trying.whenComplete((value, failed) -> {
                if (failed == null) {
                    task.complete(value);
                } else {
                    decide(Task.reason(failed), sent, wait);
                }
            });
        }

        private void decide(Throwable why, long sent, long wait) {
            effect.note(why);
            long now = clock.now();
            long pause = pauseAfter(why);
            long until = end;
            boolean isFinal = !(why instanceof UnreachableException) || !((UnreachableException) why).isPassing;
            if (why instanceof ProblemException) {
                ProblemException problem = (ProblemException) why;
                if (wait > 0 && "wait_ms".equals(problem.said().text("field"))) {
                    longest = longest / 4 < Clock.SECOND ? 0 : longest / 4;
                    next();
                    return;
                }
                isFinal = !problem.isPassing() || now + problem.retryAfter().toNanos() > end;
                if (problem.isOthers()) {
                    // Without a time that it waited, a wait for a lock was ended.
                    isFinal = problem.code().equals("lock-held") && wait > 0 && !problem.said().has("waited_ms");
                    pause = wait > 0 && sent + wait <= now ? 0 : pause;
                    until = waits;
                }
            }
            if (isFinal || now >= until) {
                boolean isOfEarlier = why instanceof UnreachableException && effect.mayBeDone && !((UnreachableException) why).sent();
                task.completeExceptionally(isOfEarlier ? new UnreachableException(true, "an earlier try has got none", why) : why);
                return;
            }
            log.accept("keylatch retries " + what, why);
            task.step(clock.at(Math.min(until, now + pause), this::next));
        }
    }
}
