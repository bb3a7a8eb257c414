package io.keylatch.client;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * A keylatch in this process, for the tests of a program that uses one: without a network, with a time that the test moves and leases
 * that it can lose. The client is the real one.
 *
 * <pre>{@code
 * FakeKeylatch fake = new FakeKeylatch();
 * Lease lease = fake.client().lock("deploy").acquire();
 * fake.advance(Duration.ofHours(1)); // the lease is renewed
 * fake.lose("deploy");               // lease.check() throws
 * }</pre>
 *
 * <p>It has locks of every kind, sets of locks and things done once, but no holds, watches, lists and entries by name. Listeners are
 * called by {@link #advance} and {@link #lose}. Time stands still while the thread that moves it waits: let it wait by {@code
 * acquireAsync}.
 */
public final class FakeKeylatch {
    private final ReentrantLock guard = new ReentrantLock();
    private final List<Timer> timers = new ArrayList<>();
    private final List<Waiter> waiters = new ArrayList<>();
    private final Map<String, List<Member>> holders = new TreeMap<>();
    private final Map<String, String> broken = new TreeMap<>();
    private final Map<String, Member> records = new TreeMap<>();
    private long now;
    private long fence;

    /** Makes a keylatch in which nothing is held. */
    public FakeKeylatch() { }

    /** A client of the fake, as another process has one.
     * @return a client that goes by the time of the fake */
    public Keylatch client() {
        return client(Keylatch.builder());
    }

    /** A client of the fake.
     * @param settings of which the URL, the key and the files do not count
     * @return a client that goes by the time of the fake */
    public Keylatch client(Keylatch.Builder settings) {
        return settings.build((url, request) -> send(request), new Turned());
    }

    /** Lets time pass, in which clients renew what they hold.
     * @param by how long */
    public void advance(Duration by) {
        long end = guarded(() -> now) + by.toNanos();
        for (Timer next = next(end); next != null; next = next(end)) {
            next.task.run();
        }
        guarded(() -> now = end);
        serve();
    }

    /** Stops the process of the clients for a time, in which they renew nothing and others may get what they held.
     * @param by how long */
    public void pause(Duration by) {
        guarded(() -> now += by.toNanos());
        serve();
    }

    /** Breaks the leases of a lock, and lets their holders know.
     * @param name of the lock */
    public void lose(String name) {
        List<Timer> waking = guarded(() -> {
            breakLock(name);
            List<Timer> all = new ArrayList<>(timers);
            timers.clear();
            return all;
        });
        // A renewal tells them.
        waking.stream().filter(timer -> timer.done.complete(null)).forEach(timer -> timer.task.run());
        serve();
    }

    private Timer next(long end) {
        Timer next = guarded(() -> {
            timers.removeIf(timer -> timer.done.isDone());
            Timer first = timers.stream().min(Comparator.comparingLong(timer -> timer.then)).orElse(null);
            if (first == null || first.then > end) {
                return null;
            }
            now = Math.max(now, first.then);
            timers.remove(first);
            first.done.complete(null);
            return first;
        });
        serve();
        return next;
    }

    private <T> T guarded(Supplier<T> action) {
        guard.lock();
        try {
            return action.get();
        } finally {
            guard.unlock();
        }
    }

    private static final class Timer {
        private final long then;
        private final Runnable task;
        private final CompletableFuture<Void> done = new CompletableFuture<>();

        Timer(long then, Runnable task) {
            this.then = then;
            this.task = task;
        }
    }

    /** The time of the fake. */
    private final class Turned implements Clock {
        @Override
        public long now() {
            return guarded(() -> now);
        }

        @Override
        public CompletableFuture<?> at(long then, Runnable task) {
            Timer timer = new Timer(then, task);
            guarded(() -> timers.add(timer));
            return timer.done;
        }

        @Override
        public void run(Runnable task) {
            task.run();
        }
    }

    /** A holder of a lock, or a record. */
    private static final class Member {
        private final String token;
        private final Document said;
        private final long fence;
        private long until;
        private int entered;
        private int slot = -1;
        private Object answer;
        private boolean isUnknown;

        Member(String token, Document said, long fence, long until) {
            this.token = token;
            this.said = said;
            this.fence = fence;
            this.until = until;
        }
    }

    /** A request that waits. */
    private static final class Waiter {
        private final Task<Transport.Response> task = new Task<>();
        private final Supplier<Transport.Response> attempt;

        Waiter(Supplier<Transport.Response> attempt) {
            this.attempt = attempt;
        }
    }

    private static Map<String, Object> members(Object... pairs) {
        Map<String, Object> members = new LinkedHashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            members.put((String) pairs[at], pairs[at + 1]);
        }
        return members;
    }

    private static Transport.Response says(int status, Map<String, Object> said) {
        return new Transport.Response(status, Json.write(said).getBytes(StandardCharsets.UTF_8), 0, () -> { });
    }

    private static Transport.Response problem(int status, String code, String retry, Object... more) {
        Map<String, Object> said = members(more);
        said.putAll(members("code", code, "detail", "the fake says " + code, "retry", retry));
        return says(status, said);
    }

    /** Carries a request out. One that has to wait is tried again with each change. */
    private CompletableFuture<Transport.Response> send(Request request) {
        Document said = new Document(request.body == null ? null : Json.read(Json.write(request.body)));
        String[] path = request.path.split("\\?", 2);
        String[] steps = path[0].split("/", -1);
        String named = steps.length > 3 ? URLDecoder.decode(steps[3], StandardCharsets.UTF_8) : null;
        String step = request.method + (steps.length > 4 ? " " + steps[4] : "");
        long begun = guarded(() -> now);
        Waiter waiter;
        if (path[0].startsWith("/v1/idempotency/")) {
            String key = named + "?" + (path.length > 1 ? path[1] : "");
            waiter = new Waiter(() -> record(step, key, request, said, begun + request.prefers));
        } else if (path[0].startsWith("/v1/locks") && request.lines == null) {
            waiter = new Waiter(() -> lock(step, named, request, said, begun));
        } else {
            waiter = new Waiter(() -> problem(501, "not-in-the-fake", "never"));
        }
        guarded(() -> waiters.add(waiter));
        serve();
        return waiter.task;
    }

    /** Responds to whoever need not wait any more, until that changes nothing for the others. */
    private void serve() {
        Map<Waiter, Transport.Response> responses;
        do {
            responses = guarded(() -> {
                expire();
                waiters.removeIf(waiter -> waiter.task.isDone());
                Map<Waiter, Transport.Response> next = new LinkedHashMap<>();
                waiters.forEach(waiter -> next.put(waiter, waiter.attempt.get()));
                next.values().removeIf(Objects::isNull);
                waiters.removeAll(next.keySet());
                return next;
            });
            responses.forEach((waiter, response) -> waiter.task.complete(response));
        } while (!responses.isEmpty());
    }

    private Transport.Response lock(String step, String named, Request request, Document said, long begun) {
        boolean isSet = named == null;
        List<String> names = new ArrayList<>();
        if (!isSet) {
            names.add(named);
        } else if (said.members.get("names") instanceof List) {
            ((List<?>) said.members.get("names")).forEach(name -> names.add(String.valueOf(name)));
        } else {
            for (String pair : request.path.substring(request.path.indexOf('?') + 1).split("&", -1)) {
                names.add(URLDecoder.decode(pair.substring(pair.indexOf('=') + 1), StandardCharsets.UTF_8));
            }
        }
        switch (step) {
            case "POST break":
                breakLock(named);
                return says(200, members("fencing_token", said.count("fencing_token")));
            case "GET":
                return holders.containsKey(named) ? says(200, members("name", named, "holders", shown(named)))
                    : problem(404, "lock-not-held", "never");
            case "POST":
                return create(names, isSet, request.token, said, begun);
            default:
                return keep(step, names, isSet, request.token, said);
        }
    }

    private Transport.Response create(List<String> names, boolean isSet, String token, Document said, long begun) {
        if (said.count("ttl_ms") <= 0 || (said.has("limit") && said.count("limit") <= 0)) {
            return problem(400, "invalid-body", "never");
        }
        for (String name : names) {
            List<Member> held = holders.getOrDefault(name, List.of());
            boolean isShared = said.has("mode") && !held.isEmpty() && held.get(0).said.has("mode");
            boolean hasRoom = held.isEmpty() || (isShared && (!said.has("limit") || held.size() < said.count("limit")));
            if (!hasRoom && holder(name, token) == null) {
                return now < begun + said.count("wait_ms") * 1_000_000 ? null : problem(409, "lock-held", "same-key",
                    "name", name, "holders", shown(name), "waited_ms", Wire.millis(now - begun));
            }
        }
        fence++;
        for (String name : names) {
            Member mine = holder(name, token);
            if (mine == null) {
                mine = new Member(token, said, fence, 0);
                List<Member> held = holders.computeIfAbsent(name, none -> new ArrayList<>());
                mine.slot = said.has("limit") ? free(held) : -1;
                held.add(mine);
            }
            mine.entered++;
            mine.until = now + said.count("ttl_ms") * 1_000_000;
        }
        return granted(names, isSet, token, said, begun);
    }

    private static int free(List<Member> held) {
        return IntStream.rangeClosed(0, held.size()).filter(slot -> held.stream().noneMatch(member -> member.slot == slot)).min().getAsInt();
    }

    /** Renews or releases. */
    private Transport.Response keep(String step, List<String> names, boolean isSet, String token, Document said) {
        for (String name : names) {
            if (holder(name, token) == null) {
                return !broken.containsKey(token) ? problem(404, "lock-not-held", "never") : problem(409, "lock-broken", "never",
                    "broken", members("reason", "the test has lost it", "by", "FakeKeylatch"));
            }
        }
        for (String name : names) {
            Member mine = holder(name, token);
            if (step.equals("PUT")) {
                mine.until = now + said.count("ttl_ms") * 1_000_000;
            } else if (--mine.entered == 0) {
                mine.until = 0;
            }
        }
        if (step.equals("PUT")) {
            return granted(names, isSet, token, said, now);
        }
        expire();
        return says(204, members());
    }

    private Transport.Response granted(List<String> names, boolean isSet, String token, Document said, long begun) {
        List<Map<String, Object>> locks = new ArrayList<>();
        for (String name : names) {
            Member mine = holder(name, token);
            Map<String, Object> lock = members("name", name, "fencing_token", mine.fence);
            if (mine.slot >= 0) {
                lock.put("slot", mine.slot);
            }
            locks.add(lock);
        }
        Map<String, Object> granted = isSet ? members("locks", locks) : locks.get(0);
        granted.putAll(members("token", token, "waited_ms", Wire.millis(now - begun), "valid_for_ms", said.count("ttl_ms")));
        return says(201, granted);
    }

    private Member holder(String name, String token) {
        return holders.getOrDefault(name, List.of()).stream().filter(member -> member.token.equals(token)).findFirst().orElse(null);
    }

    private List<Object> shown(String name) {
        List<Object> shown = new ArrayList<>();
        for (Member holder : holders.getOrDefault(name, List.of())) {
            long left = Wire.millis(holder.until - now);
            shown.add(members("owner", holder.said.text("owner"), "fencing_token", holder.fence, "expires_in_ms", left));
        }
        return shown;
    }

    private void breakLock(String name) {
        List<Member> held = holders.remove(name);
        if (held != null) {
            held.forEach(member -> broken.put(member.token, name));
        }
    }

    /** Ends what is over by now. */
    private void expire() {
        holders.values().forEach(held -> held.removeIf(member -> member.until <= now));
        holders.values().removeIf(List::isEmpty);
        for (Member record : records.values()) {
            record.isUnknown |= record.until <= now && record.answer == null;
        }
        records.values().removeIf(record -> record.isUnknown && "rerun".equals(record.said.text("on_crash")));
    }

    private Transport.Response record(String step, String key, Request request, Document said, long end) {
        Member known = records.get(key);
        if (step.equals("POST")) {
            return begin(key, known, request, said, end);
        } else if (known == null) {
            return problem(404, "no-record", "never");
        } else if (!known.token.equals(request.token) || known.isUnknown || known.answer != null) {
            return problem(412, "token-mismatch", "never");
        }
        switch (step) {
            case "DELETE":
                records.remove(key);
                break;
            case "PUT":
                known.answer = said.members;
                return says(200, members("state", "done"));
            case "POST fail":
                known.isUnknown = true;
                return says(200, members("state", "unknown"));
            default:
                known.until = now + known.said.count("lease_ms") * 1_000_000;
        }
        return says(204, members());
    }

    private Transport.Response begin(String key, Member known, Request request, Document said, long end) {
        Member mine = known;
        if (known == null) {
            mine = new Member(request.token, said, ++fence, now + said.count("lease_ms") * 1_000_000);
            records.put(key, mine);
        } else if (!Objects.equals(known.said.text("fingerprint"), said.text("fingerprint"))) {
            return problem(422, "idempotency-key-reused", "new-key");
        } else if (known.isUnknown) {
            return problem(409, "outcome-unknown", "never");
        } else if (known.answer != null) {
            return says(200, members("state", "done", "fencing_token", known.fence, "answer", known.answer));
        } else if (!known.token.equals(request.token)) {
            return now < end ? null : problem(409, "request-in-progress", "same-key");
        }
        return says(201, members("state", "in-flight", "fencing_token", mine.fence, "token", request.token));
    }
}
