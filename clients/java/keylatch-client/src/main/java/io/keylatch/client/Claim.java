package io.keylatch.client;

import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** What is asked for, and the token that proves it. Each acquisition has a claim of its own. */
final class Claim {
    static final long LEAD_MAX = 10 * Clock.SECOND;
    final Wire wire;
    final NamedLock lock;
    final Token token;
    private final String trace;
    private final Request.Effect created = new Request.Effect();

    Claim(NamedLock lock) {
        this.lock = lock;
        wire = lock.keylatch.wire;
        token = Token.or(lock.token);
        trace = lock.keylatch.traceparent.get();
    }

    /** What the service granted, exclusive until then on the client's clock. */
    static final class Grant {
        final List<Document> locks;
        final long until;

        Grant(List<Document> locks, long until) {
            this.locks = locks;
            this.until = until;
        }
    }

    String path() {
        return lock.isSet ? "/v1/locks" : "/v1/locks/" + Request.plain(lock.names.get(0));
    }

    private Request request(String method, String path, Map<String, ?> body, long timeout) {
        Request request = new Request(method, path);
        request.body = body;
        request.token = token.text;
        request.trace = trace;
        request.timeout = timeout;
        return request;
    }

    private Map<String, Object> renewal(long ttl) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("ttl_ms", Wire.millis(ttl));
        if (lock.isSet) {
            body.put("names", lock.names);
        }
        return body;
    }

    private Map<String, Object> creation(long wait) {
        Map<String, Object> body = renewal(lock.ttl);
        body.put("wait_ms", Wire.millis(wait));
        if (lock.maxAhead != null) {
            body.put("max_ahead", lock.maxAhead);
        }
        if (!lock.owner.isEmpty()) {
            body.put("owner", lock.owner);
        }
        if (lock.isShared) {
            body.put("mode", "shared");
        }
        if (lock.limit != null) {
            body.put("limit", lock.limit);
        }
        if (lock.entry != null) {
            body.put("entry", lock.entry);
        }
        return body;
    }

    /** Asks with the same token until the wait is over. Releases what it may have got without a response. */
    Task<Lease> acquire(long wait) {
        return wire.retry(path(), wait, this::create).next((task, grant, why) -> {
            if (why != null) {
                // Who is cancelled between two tries may stand in a queue.
                if (created.mayBeDone || Task.isCancellation(why)) {
                    undo();
                }
                task.completeExceptionally(orHeld(why));
                return;
            }
            Lease lease = new Lease(this, grant);
            lease.keepRenewed();
            if (!task.complete(lease)) {
                lease.undo();
            }
        });
    }

    /** Sends one request. A grant whose response was so late that little of it is left is renewed before it is used. */
    private Task<Grant> create(long wait, long timeout) {
        long sent = wire.clock.now();
        Request create = request("POST", path(), creation(wait), timeout);
        create.effect = created;
        create.late = this::undo;
        return wire.send(create).map(said -> granted(said, sent)).flatMap(grant ->
            grant.until - wire.clock.now() >= lock.ttl / 2 ? Task.done(grant)
                : renew(wire.timeout).orElse(Loss::beforeUse).map(renewed -> new Grant(grant.locks, renewed.until)));
    }

    /** Starts the TTL again, and counts from the sending of the request. */
    Task<Grant> renew(long timeout) {
        return renew(lock.ttl, timeout);
    }

    /** The same for another time than the TTL, and retried for 5 s until there is a response. */
    Task<Grant> extend(long ttl) {
        return wire.retry(path(), 0, (atService, forResponse) -> renew(ttl, forResponse));
    }

    private Task<Grant> renew(long ttl, long timeout) {
        long sent = wire.clock.now();
        return wire.send(request("PUT", path(), renewal(ttl), timeout)).map(said -> granted(said, sent));
    }

    /** Releases what nobody takes, but not what the caller's own token may have held before. */
    Task<Boolean> undo() {
        return lock.token == null || (lock.entry != null && !lock.isSet) ? release() : Task.done(false);
    }

    /** Says whether the token still held the locks. It retries for 5 s until there is a response. */
    Task<Boolean> release() {
        String query = "";
        if (lock.isSet) {
            query = lock.names.stream().map(name -> "name=" + Request.plain(name)).collect(Collectors.joining("&", "?", ""));
        } else if (lock.entry != null) {
            query = "?entry=" + Request.plain(lock.entry);
        }
        Request release = request("DELETE", path() + query, null, 0);
        release.fits = said -> said.members.isEmpty() || said.has("entries");
        return wire.ask(release, 0).next((task, said, why) -> {
            if (why instanceof ProblemException && Loss.of(lock.names, (ProblemException) why) != null) {
                // The try whose response was lost has released what is gone now.
                task.complete(release.effect.mayBeDone);
                return;
            }
            if (why != null) {
                wire.log.accept("keylatch could not release " + lock.names, why);
            }
            task.settle(true, why);
        });
    }

    /** Opens a stream that holds the lock. */
    Task<Lease> hold(long wait, long timeout, long longest) {
        Map<String, Object> body = creation(wait);
        if (longest > 0) {
            body.put("max_hold_ms", Wire.millis(longest));
        }
        return new Hold(this, request("POST", path() + "/hold", body, timeout)).open();
    }

    /** What a response or an event grants to a request that was sent then. */
    Grant granted(Document said, long sent) {
        List<Document> locks = lock.isSet ? said.documents("locks") : List.of(said);
        List<String> names = locks.stream().map(each -> each.text("name")).collect(Collectors.toList());
        Long waited = said.number("waited_ms");
        Long valid = said.number("valid_for_ms");
        if (waited == null || valid == null || !token.text.equals(said.text("token")) || !names.equals(lock.names)) {
            throw UnreachableException.ofAnother(null);
        }
        return new Grant(locks, sent + (waited + valid) * 1_000_000);
    }

    /** A HeldException where the problem is that others hold the lock. */
    Throwable orHeld(Throwable why) {
        if (!(why instanceof ProblemException) || !((ProblemException) why).code().equals("lock-held")) {
            return why;
        }
        Document said = ((ProblemException) why).said();
        List<Document> holders = said.has("holder") ? List.of(said.document("holder")) : said.documents("holders");
        Document holder = holders.stream().min(Comparator.comparingLong(other -> other.count("expires_in_ms"))).orElse(null);
        String name = said.text("name") == null ? lock.names.get(0) : said.text("name");
        return new HeldException(name, holder == null ? null : new Holder(holder));
    }
}
