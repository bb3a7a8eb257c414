package io.keylatch.client;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * What came of beginning a thing. Without an {@link #answer()} it is to be done now, and then completed, failed or abandoned. It is
 * renewed until then. An interrupt never keeps a run from its end, for which there are 5 s.
 */
public final class Run extends Kept {
    private static final int LONGEST_REASON = 256;
    private final String path;
    private final String scope;
    final Token token;
    private final boolean isOwn;
    private final String trace;
    private final boolean reruns;
    private volatile Answer answer;
    private volatile long fencingToken;

    Run(Once once, String trace) {
        super(once.keylatch.wire, List.of(once.key), once.lease, 0, once.keylatch.wire.clock.now() + once.lease);
        path = "/v1/idempotency/" + Request.plain(once.key);
        scope = once.scope;
        token = Token.or(once.token);
        isOwn = once.token != null;
        this.trace = trace;
        reruns = "rerun".equals(once.members.get("on_crash"));
    }

    Request request(String method, String step, Map<String, ?> body) {
        Request request = new Request(method, path + step + scope);
        request.body = body;
        request.token = token.text;
        request.trace = trace;
        return request;
    }

    /** Takes up what the service said to a begin that was first sent then. A run of which little is left is renewed before its use. */
    Task<Run> begun(Document said, long sent) {
        boolean isDone = "done".equals(said.text("state"));
        if (!isDone && !token.text.equals(said.text("token"))) {
            throw UnreachableException.ofAnother(null);
        }
        fencingToken = said.count("fencing_token");
        if (isDone) {
            answer = Answer.of(said);
            leave();
            return Task.done(this);
        }
        // The caller's own token may have begun it before.
        boolean isLate = isOwn || wire.clock.now() - sent >= ttl / 2;
        Task<Long> renewing = isLate ? renewal(wire.timeout).orElse(Loss::beforeUse) : Task.done(sent + ttl);
        return renewing.map(until -> {
            renewed(until);
            keepRenewed();
            return this;
        });
    }

    /** Ends a run that nobody takes, but abandons none that the caller's own token may have begun before. */
    void undo() {
        if (!isOwn && answer == null) {
            abandoning();
        } else {
            leave();
        }
    }

    /** Keeps the run from being over while the program carries it out. */
    @Override
    Task<Long> renewal(long timeout) {
        long until = wire.clock.now() + ttl;
        Request renew = request("POST", "/renew", null);
        renew.timeout = timeout;
        renew.fits = said -> said.members.isEmpty();
        return wire.send(renew).map(said -> until);
    }

    /** What the thing came to when it was done before.
     * @return empty where it is to be done now */
    public Optional<Answer> answer() {
        return Optional.ofNullable(answer);
    }

    /** Larger than that of every earlier run of the key.
     * @return a positive number */
    public long fencingToken() {
        return fencingToken;
    }

    /** Keeps an answer for every repeat.
     * @param what the answer
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public void complete(Answer what) {
        completing(what).finish();
    }

    /** Says that nothing was done, so that a repeat runs.
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public void abandon() {
        try {
            abandoning().finish();
        } catch (ProblemException problem) {
            if (!problem.code().equals("no-record")) {
                throw problem;
            }
        }
    }

    /** Says that it is not known what was done: a person settles it.
     * @param reason for that person
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public void fail(String reason) {
        failing(reason).finish();
    }

    /** Stops renewing without an outcome: it is unknown when the lease of the run is over, and a person settles it. */
    public void leave() {
        end();
        token.free(this);
    }

    Task<Document> completing(Answer what) {
        return ending("PUT", "", what.members(), "done");
    }

    Task<Document> abandoning() {
        return ending("DELETE", "", null, null);
    }

    private Task<Document> failing(String reason) {
        String said = reason.replaceAll("[\\p{Cntrl}\\s]+", " ").trim();
        while (said.getBytes(StandardCharsets.UTF_8).length > LONGEST_REASON) {
            said = said.substring(0, said.offsetByCodePoints(said.length(), -1));
        }
        return ending("POST", "/fail", Map.of("reason", said.isEmpty() ? "no reason was given" : said), "unknown");
    }

    private Task<Document> ending(String method, String step, Map<String, ?> body, String state) {
        end();
        Request ending = request(method, step, body);
        ending.fits = said -> state == null ? said.members.isEmpty() : state.equals(said.text("state"));
        return wire.ask(ending, 0).next((task, said, why) -> {
            leave();
            task.settle(said, why);
        });
    }

    /** Ends a run whose action has failed, unless that has ended it by hand. */
    Task<Document> undone(Throwable why) {
        if (hasEnded()) {
            return Task.done(Document.EMPTY);
        }
        boolean isFree = reruns || why instanceof NothingDoneException;
        return (isFree ? abandoning() : failing(why.toString())).next((task, said, failed) -> {
            if (failed != null) {
                wire.log.accept("keylatch could not end the run of " + names, failed);
            }
            task.complete(Document.EMPTY);
        });
    }
}
