package io.keylatch.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

/** The program that carries out the commands of clients/conformance with this client. */
final class Conformance {
    private static final int SHOWN = 1000;
    private static final int PERIOD = 251;
    private final Keylatch keylatch;
    private final Map<String, Lease> leases = new ConcurrentHashMap<>();
    private final Map<String, Run> runs = new ConcurrentHashMap<>();
    private final Map<String, Watch> watches = new ConcurrentHashMap<>();
    private final Map<String, Block> blocks = new ConcurrentHashMap<>();

    private Conformance(Keylatch keylatch) {
        this.keylatch = keylatch;
    }

    /** A block under way. */
    private static final class Block {
        final Thread thread = Thread.currentThread();
        final CountDownLatch finished = new CountDownLatch(1);
    }

    /** The exception of a block. */
    private static final class Own extends Exception {
        private static final long serialVersionUID = 1;
    }

    /** The error of a block. */
    private static final class Panic extends Error {
        private static final long serialVersionUID = 1;
    }

    /** An exception of the builder. */
    private static final class BadSettings extends RuntimeException {
        private static final long serialVersionUID = 1;

        BadSettings(RuntimeException why) {
            super(why.getMessage(), why);
        }
    }

    public static void main(String[] arguments) throws IOException {
        Keylatch.Builder builder = Keylatch.builder().traceparent(() -> environment("TRACEPARENT"));
        if (!environment("CONFORMANCE_CA").isEmpty()) {
            builder.ca(Path.of(environment("CONFORMANCE_CA")));
        }
        if (!environment("CONFORMANCE_CERT").isEmpty()) {
            builder.certificate(Path.of(environment("CONFORMANCE_CERT")), Path.of(environment("CONFORMANCE_KEY")));
        }
        if (!environment("CONFORMANCE_SILENCE_MS").isEmpty()) {
            builder.silence(Duration.ofMillis(Long.parseLong(environment("CONFORMANCE_SILENCE_MS"))));
        }
        Conformance program = new Conformance(builder.build());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Document command = new Document(Json.read(line));
            if (command.text("do").equals("stop")) {
                break;
            }
            new Thread(() -> program.answer(command)).start();
        }
        System.exit(0);
    }

    private static String environment(String name) {
        return System.getenv().getOrDefault(name, "");
    }

    private static void say(Map<String, ?> line) {
        synchronized (System.out) {
            byte[] text = (Json.write(line) + "\n").getBytes(StandardCharsets.UTF_8);
            System.out.write(text, 0, text.length);
            System.out.flush();
        }
    }

    private static Map<String, Object> members(Object... pairs) {
        Map<String, Object> members = new LinkedHashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            members.put((String) pairs[at], pairs[at + 1]);
        }
        return members;
    }

    private void answer(Document command) {
        long id = command.count("id");
        try {
            say(members("id", id, "ok", carryOut(command)));
        } catch (BadSettings bad) {
            say(members("id", id, "error", members("kind", "settings", "text", bad.getMessage())));
        } catch (ProblemException problem) {
            say(members("id", id, "error", members("kind", "problem", "code", problem.code(), "retry", problem.retry())));
        } catch (UnreachableException gone) {
            say(members("id", id, "error", members("kind", gone.sent() ? "unknown-effect" : "unreachable")));
        } catch (Exception | Error other) {
            say(members("id", id, "error", members("kind", other.toString())));
        }
    }

    private static Duration millis(Document command, String member) {
        return Duration.ofMillis(command.count(member));
    }

    private NamedLock settings(Document command, NamedLock of) {
        NamedLock lock = command.has("ttl_ms") ? of.ttl(millis(command, "ttl_ms")) : of;
        lock = command.has("owner") ? lock.owner(command.text("owner")) : lock;
        lock = command.has("max_ahead") ? lock.maxAhead((int) command.count("max_ahead")) : lock;
        lock = command.has("entry") ? lock.entry(command.text("entry")) : lock;
        lock = command.has("token") ? lock.token(command.text("token")) : lock;
        if (command.has("limit")) {
            lock = command.number("limit") == null ? lock.shared() : lock.limit((int) command.count("limit"));
        }
        return lock;
    }

    private Once thing(Document command) {
        Once once = keylatch.once(command.text("key"));
        once = command.has("fingerprint") ? once.fingerprint(command.text("fingerprint")) : once;
        once = command.has("lease_ms") ? once.lease(millis(command, "lease_ms")) : once;
        once = command.has("retention_ms") ? once.retention(millis(command, "retention_ms")) : once;
        once = command.has("on_crash") ? once.onCrash(command.text("on_crash")) : once;
        Document scope = command.document("scope");
        return command.has("scope") ? once.scope(scope.text("method"), scope.text("path"), scope.text("principal")) : once;
    }

    private Object carryOut(Document command) throws Exception {
        NamedLock lock = command.has("name") ? settings(command, keylatch.lock(command.text("name"))) : null;
        switch (command.text("do")) {
            case "lock":
                return keep(command, () -> acquire(command, lock));
            case "lock_set":
                String[] names = ((List<?>) command.members.get("names")).toArray(new String[0]);
                return keep(command, () -> acquire(command, settings(command, keylatch.locks(names))));
            case "hold":
                return keep(command, () -> lock.hold(millis(command, "wait_ms")));
            case "release":
                return members("released", leases.get(command.text("lease")).release());
            case "lease":
                return members("lost", leases.get(command.text("lease")).isLost());
            case "ask":
                return members("passed_when_over", ask(leases.get(command.text("lease"))));
            case "show":
                return keylatch.show(command.text("name")).map(Conformance::shown).orElse(members("held", null));
            case "break":
                keylatch.breakLock(command.text("name"), command.text("reason"), command.text("by"), null);
                return members();
            case "watch":
                String watch = command.text("watch");
                watches.put(watch, keylatch.watch(command.text("name"),
                    event -> say(members("event", "change", "watch", watch, "type", event.type()))));
                return members();
            case "unwatch":
                watches.get(command.text("watch")).close();
                return members();
            case "make_client":
                return makeClient(command);
            case "own_token_twice":
                return ownTokenTwice(lock.token(Token.or(null).text));
            case "work":
                return block(command, () -> work(command, lock));
            case "shared":
                return shared(command, lock);
            case "cancel":
                blocks.get(command.text("lease") + command.text("run")).thread.interrupt();
                return members();
            case "finish":
                blocks.get(command.text("lease") + command.text("run")).finished.countDown();
                return members();
            default:
                return carryOutRun(command);
        }
    }

    private static Lease acquire(Document command, NamedLock lock) throws InterruptedException {
        return command.count("wait_ms") > 0 ? lock.acquire(millis(command, "wait_ms")) : lock.acquire();
    }

    /** Remembers a lease and says when it is lost; or says who holds the lock. */
    private Object keep(Document command, Callable<Lease> acquiring) throws Exception {
        Lease lease;
        try {
            lease = acquiring.call();
        } catch (HeldException held) {
            String owner = held.holder().map(Holder::owner).orElse(null);
            return members("held", members("name", held.name(), "owner", owner));
        }
        leases.put(command.text("lease"), lease);
        tellLoss(command, lease);
        Map<String, Object> got = members("fencing_token", lease.fencingToken(), "token", lease.token());
        got.put("fencing_tokens", lease.fencingTokens());
        lease.slot().ifPresent(slot -> got.put("slot", slot));
        return got;
    }

    private static void tellLoss(Document command, Lease lease) {
        lease.onLost(loss -> {
            Map<String, Object> event = members("event", "lost", "lease", command.text("lease"), "reason", loss.reason());
            loss.by().ifPresent(by -> event.put("by", by));
            say(event);
        });
    }

    private static Map<String, Object> shown(Holding held) {
        Holder holder = held.holders().get(0);
        return members("owner", holder.owner(), "fencing_token", holder.fencingToken(), "waiting", held.waiting(),
            "expires_in_ms", holder.expiresIn().toMillis());
    }

    private static int ask(Lease lease) {
        int passed = 0;
        for (long end = System.nanoTime() + 10 * Clock.SECOND; System.nanoTime() < end; ) {
            boolean isOver = lease.validFor().isZero();
            try {
                lease.check();
            } catch (LeaseLostException lost) {
                break;
            }
            passed += isOver ? 1 : 0;
        }
        return passed;
    }

    private static Object makeClient(Document command) {
        try {
            Keylatch.Builder builder = Keylatch.builder();
            if (command.has("api_key")) {
                builder.apiKey(command.text("api_key"));
            }
            if (command.has("url")) {
                builder.url(command.text("url"));
            }
            if (command.has("ca")) {
                builder.ca(Path.of(command.text("ca")));
            }
            builder.build();
            return members("made", true);
        } catch (IllegalArgumentException bad) {
            throw new BadSettings(bad);
        }
    }

    private static Object ownTokenTwice(NamedLock lock) {
        boolean isRefused = false;
        try (Lease lease = lock.acquire()) {
            lease.check();
            lock.acquire().close();
        } catch (InUseException refused) {
            isRefused = true;
        }
        lock.acquire().close();
        return members("refused", isRefused);
    }

    private Object block(Document command, Callable<Map<String, Object>> body) throws Exception {
        blocks.put(command.text("lease") + command.text("run"), new Block());
        try {
            return body.call();
        } catch (Own | Panic | NothingDoneException own) {
            return members("ended", "threw");
        } catch (HeldException held) {
            return members("ended", "held");
        } catch (LeaseLostException lost) {
            return members("ended", "lost");
        } catch (InterruptedException cancelled) {
            return members("ended", "cancelled");
        }
    }

    /** Says that a block has begun, stays in it, and ends it. */
    private void stay(Document command, String kind) throws Own, InterruptedException {
        say(members("event", "working", kind, command.text(kind)));
        blocks.get(command.text("lease") + command.text("run")).finished.await();
        switch (command.text("end")) {
            case "throw":
                throw new Own();
            case "panic":
                throw new Panic();
            case "nothing-done":
                throw new NothingDoneException("nothing was done");
            default:
        }
    }

    private Map<String, Object> work(Document command, NamedLock lock) throws Own, InterruptedException {
        try (Lease lease = lock.acquire(millis(command, "wait_ms"))) {
            tellLoss(command, lease);
            stay(command, "lease");
        }
        return members("ended", "returned");
    }

    private Map<String, Object> run(Document command) throws Exception {
        Map<String, Object> ended = members("ended", "replayed");
        Answer answer = thing(command).call(millis(command, "wait_ms"), run -> {
            ended.put("ended", "returned");
            stay(command, "run");
            return Answer.text(command.text("body"));
        });
        ended.put("body", answer.text());
        return ended;
    }

    private Object carryOutRun(Document command) throws Exception {
        Run run = command.has("run") ? runs.get(command.text("run")) : null;
        switch (command.text("do")) {
            case "begin":
                Once thing = thing(command);
                run = command.count("wait_ms") > 0 ? thing.begin(millis(command, "wait_ms")) : thing.begin();
                runs.put(command.text("run"), run);
                return run.answer().isPresent() ? done(run.answer().get())
                    : members("state", "begun", "fencing_token", run.fencingToken());
            case "complete":
                run.complete(Answer.of((int) command.count("status"), body(command)));
                return members();
            case "abandon":
                run.abandon();
                return members();
            case "fail":
                run.fail(command.text("detail"));
                return members();
            case "once":
                AtomicInteger ran = new AtomicInteger();
                Answer answer = thing(command).call(Duration.ofSeconds(10), begun -> {
                    ran.incrementAndGet();
                    Thread.sleep(command.count("take_ms"));
                    return Answer.text(command.text("body"));
                });
                return members("body", answer.text(), "replayed", ran.get() == 0);
            case "run":
                return block(command, () -> run(command));
            case "shared_once":
                return sharedOnce(command);
            default:
                throw new IllegalArgumentException("there is no command " + command.text("do"));
        }
    }

    private static byte[] body(Document command) {
        byte[] body = new byte[(int) command.count("bytes")];
        for (int at = 0; at < body.length; at++) {
            body[at] = (byte) (at % PERIOD);
        }
        return command.has("body") ? command.text("body").getBytes(StandardCharsets.UTF_8) : body;
    }

    /** Shows a kept answer. */
    private static Map<String, Object> done(Answer answer) throws NoSuchAlgorithmException {
        Map<String, Object> headers = new LinkedHashMap<>();
        answer.headers().forEach((name, values) -> headers.put(name.toLowerCase(Locale.ROOT), values));
        Map<String, Object> shown = members("state", "done", "status", answer.status(), "headers", headers);
        byte[] body = answer.body();
        try {
            shown.put("body", StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(body)).toString());
        } catch (CharacterCodingException bytes) {
            if (body.length > SHOWN) {
                StringBuilder digest = new StringBuilder();
                for (byte each : MessageDigest.getInstance("SHA-256").digest(body)) {
                    digest.append(String.format("%02x", each));
                }
                shown.put("size", body.length);
                shown.put("sha256", digest);
            } else {
                shown.put("body_base64", Base64.getEncoder().encodeToString(body));
            }
        }
        return shown;
    }

    private Object shared(Document command, NamedLock lock) throws Exception {
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        List<Long> tokens = Collections.synchronizedList(new ArrayList<>());
        atOnce(command, () -> {
            try (Lease lease = lock.acquire(millis(command, "wait_ms"))) {
                int now = inside.incrementAndGet();
                most.accumulateAndGet(now, Math::max);
                tokens.add(lease.fencingToken());
                Thread.sleep(command.count("take_ms"));
                inside.decrementAndGet();
            }
            return null;
        });
        return members("at_once", most.get(), "fencing_tokens", tokens);
    }

    private Object sharedOnce(Document command) throws Exception {
        AtomicInteger ran = new AtomicInteger();
        Once thing = thing(command);
        atOnce(command, () -> thing.call(Duration.ofSeconds(20), run -> {
            ran.incrementAndGet();
            Thread.sleep(command.count("take_ms"));
            return Answer.text("");
        }));
        return members("ran", ran.get());
    }

    /** Runs as many at once as there are users, and throws an exception of one of them. */
    private static void atOnce(Document command, Callable<?> use) throws Exception {
        List<Exception> failed = Collections.synchronizedList(new ArrayList<>());
        List<Thread> users = new ArrayList<>();
        for (long user = 0; user < command.count("users"); user++) {
            Thread thread = new Thread(() -> {
                try {
                    use.call();
                } catch (Exception why) {
                    failed.add(why);
                }
            });
            users.add(thread);
            thread.start();
        }
        for (Thread user : users) {
            user.join();
        }
        if (!failed.isEmpty()) {
            throw failed.get(0);
        }
    }
}
