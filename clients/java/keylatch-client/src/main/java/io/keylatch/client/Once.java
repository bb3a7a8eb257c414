package io.keylatch.client;

import java.time.Duration;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.function.Function;

/**
 * A thing that is to be done once, by its key. It does not change: each setting gives another. Threads may share it.
 *
 * <p>Where the action returns, its answer is kept for every repeat. Where it throws, the outcome is unknown and a person settles it,
 * by the text of the exception; after {@link NothingDoneException}, or with {@code onCrash("rerun")}, the key is free.
 */
public final class Once {
    final Keylatch keylatch;
    final String key;
    final long lease;
    final String scope;
    final Token token;
    final Map<String, Object> members;

    Once(Keylatch keylatch, String key) {
        this(keylatch, key, 30 * Clock.SECOND, "", null, Map.of());
    }

    private Once(Keylatch keylatch, String key, long lease, String scope, Token token, Map<String, Object> members) {
        this.keylatch = keylatch;
        this.key = key;
        this.lease = lease;
        this.scope = scope;
        this.token = token;
        this.members = members;
    }

    private Once with(String member, Object value) {
        Map<String, Object> more = new LinkedHashMap<>(members);
        more.put(member, value);
        return new Once(keylatch, key, lease, scope, token, more);
    }

    private Once withQuery(String name, String value) {
        String query = scope + (scope.isEmpty() ? "?" : "&") + name + "=" + Request.plain(value);
        return new Once(keylatch, key, lease, query, token, members);
    }

    /** Tells two things apart that have the same key by mistake ("idempotency-key-reused").
     * @param fingerprint any text
     * @return the thing with it */
    public Once fingerprint(String fingerprint) {
        return with("fingerprint", fingerprint);
    }

    /** Describes the HTTP request that is to be done, in place of a fingerprint: a guard of the {@link #scope} agrees with it.
     * @param query of the request, or null
     * @param contentType of its body, or null
     * @param headers values by name
     * @param body of the request
     * @return the thing with it */
    public Once request(String query, String contentType, Map<String, List<String>> headers, byte[] body) {
        Map<String, Object> request = new LinkedHashMap<>();
        if (query != null) {
            request.put("query", query);
        }
        if (contentType != null) {
            request.put("content_type", contentType);
        }
        request.put("headers", headers);
        request.put("body_base64", Base64.getEncoder().encodeToString(body));
        return with("request", request);
    }

    /** In which route the key is one: that of a guard.
     * @param method of the route
     * @param path of the route
     * @param principal who asks; empty for nobody
     * @return the thing with it */
    public Once scope(String method, String path, String principal) {
        Once once = withQuery("method", method).withQuery("path", path);
        return principal.isEmpty() ? once : once.withQuery("principal", principal);
    }

    /** Where a guard has the key from.
     * @param source such as "json:/order_no"; the Idempotency-Key by default
     * @return the thing with it */
    public Once source(String source) {
        return withQuery("source", source);
    }

    /** How long a run may go unrenewed before its outcome is unknown.
     * @param lease 30 s by default
     * @return the thing with it */
    public Once lease(Duration lease) {
        return new Once(keylatch, key, Wire.nanos(lease), scope, token, members);
    }

    /** How long the answer is kept.
     * @param retention a day by default
     * @return the thing with it */
    public Once retention(Duration retention) {
        return with("retention_ms", Wire.millis(Wire.nanos(retention)));
    }

    /** What a run leaves that is gone in the middle.
     * @param word "unknown", for a person to settle, or "rerun", which frees the key, also where the action throws
     * @return the thing with it */
    public Once onCrash(String word) {
        return with("on_crash", word);
    }

    /** Proves a run by this secret in place of a new one for each.
     * @param token 20 to 128 letters, digits, "-" and "_"
     * @return the thing with it, which one run at a time may use
     * @throws IllegalArgumentException where no header may have it */
    public Once token(String token) {
        return new Once(keylatch, key, lease, scope, new Token(token), members);
    }

    /** What is to be done.
     * @param <E> what it throws */
    public interface Action<E extends Exception> {
        /** Does it. It may end its run itself.
         * @param run with its fencing token
         * @return the answer for each repeat
         * @throws E where it is not known what was done
         * @throws NothingDoneException where nothing was done */
        Answer apply(Run run) throws E;
    }

    /** Does it, unless it was done. What is under way elsewhere is a ProblemException "request-in-progress".
     * @param <E> what the action throws
     * @param action does it
     * @return what it came to, now or before
     * @throws E what the action throws
     * @throws ProblemException where the service refuses it, such as "outcome-unknown"
     * @throws UnreachableException where there is no response */
    public <E extends Exception> Answer call(Action<E> action) throws E {
        return carryOut(begin(), action);
    }

    /** Does it, unless it was done, and waits while it is under way elsewhere.
     * @param <E> what the action throws
     * @param wait how long; sent in whole seconds
     * @param action does it
     * @return what it came to, now or before
     * @throws E what the action throws
     * @throws InterruptedException where this thread is interrupted while it waits
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public <E extends Exception> Answer call(Duration wait, Action<E> action) throws E, InterruptedException {
        return carryOut(begin(wait), action);
    }

    private static <E extends Exception> Answer carryOut(Run run, Action<E> action) throws E {
        if (run.answer().isPresent()) {
            return run.answer().get();
        }
        Answer answer;
        try {
            answer = action.apply(run);
        } catch (Throwable failed) {
            run.undone(failed).finish();
            throw failed;
        }
        Answer kept = answer == null ? Answer.text("") : answer;
        if (!run.hasEnded()) {
            run.complete(kept);
        }
        return kept;
    }

    /** As {@link #call(Duration, Action)} without a thread that waits. Where the future is cancelled while it waits, it leaves.
     * @param wait how long; sent in whole seconds
     * @param action does it
     * @return what it came to, or what the action has failed by */
    public CompletableFuture<Answer> callAsync(Duration wait, Function<Run, ? extends CompletionStage<Answer>> action) {
        Task<Answer> answer = new Task<>();
        CompletableFuture<Run> beginning = beginAsync(wait);
        beginning.whenComplete((run, failed) -> {
            if (failed != null || run.answer().isPresent()) {
                answer.settle(failed == null ? run.answer().get() : null, failed);
            } else if (answer.isDone()) {
                run.undo();
            } else {
                carryOut(run, action, answer);
            }
        });
        answer.whenComplete((done, why) -> {
            if (why != null) {
                beginning.cancel(true);
            }
        });
        return answer;
    }

    private void carryOut(Run run, Function<Run, ? extends CompletionStage<Answer>> action, Task<Answer> answer) {
        CompletionStage<Answer> doing;
        try {
            doing = Objects.requireNonNull(action.apply(run), "the action gives no stage");
        } catch (RuntimeException | Error failed) {
            doing = Task.failed(failed);
        }
        doing.whenComplete((done, failed) -> {
            Answer kept = done == null ? Answer.text("") : done;
            Task<Document> ending = failed != null ? run.undone(Task.reason(failed))
                : run.hasEnded() ? Task.done(Document.EMPTY) : run.completing(kept);
            ending.detached(keylatch.wire.clock, null).whenComplete((said, why) -> answer.settle(kept, failed != null ? failed : why));
        });
    }

    /** Asks whether to do it now.
     * @return a run, to be done and ended by hand, or with the answer of before
     * @throws InUseException where a run with this {@link #token} is in use
     * @throws ProblemException where the service refuses it, such as "request-in-progress"
     * @throws UnreachableException where there is no response */
    public Run begin() {
        return beginning(0).finish();
    }

    /** Asks whether to do it now, and waits while it is under way elsewhere.
     * @param wait how long; sent in whole seconds
     * @return a run, to be done and ended by hand, or with the answer of before
     * @throws InterruptedException where this thread is interrupted
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public Run begin(Duration wait) throws InterruptedException {
        return beginning(Wire.nanos(wait)).await();
    }

    /** As {@link #begin(Duration)} without a thread that waits. A cancelled one abandons the run, or leaves that of a {@link #token}.
     * @param wait how long; sent in whole seconds
     * @return the run, or one of the exceptions of {@link #begin(Duration)} */
    public CompletableFuture<Run> beginAsync(Duration wait) {
        return beginning(Wire.nanos(wait)).detached(keylatch.wire.clock, Run::undo);
    }

    private Task<Run> beginning(long wait) {
        String trace = keylatch.traceparent.get();
        Run run = new Run(this, trace);
        run.token.take(run, key);
        Map<String, Object> body = new LinkedHashMap<>(members);
        body.put("lease_ms", Wire.millis(lease));
        Request begin = run.request("POST", "", body);
        Request.Effect begun = begin.effect;
        begin.late = run::undo;
        return keylatch.wire.retry(begin.path, wait, (atService, forResponse) -> {
            begin.prefers = atService;
            begin.timeout = forResponse;
            return keylatch.wire.send(begin).flatMap(said -> run.begun(said, begun.since));
        }).next((task, same, why) -> {
            boolean isTaken = task.settle(run, why) && why == null;
            if (!isTaken && begun.mayBeDone) {
                run.undo();
            } else if (!isTaken) {
                run.leave();
            }
        });
    }
}
