package io.keylatch.client;

import java.net.ProxySelector;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.http.HttpClient;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.function.Supplier;

/**
 * A client of keylatch: locks with fencing tokens over HTTP, and things done once. Make one for a program; threads may share it.
 *
 * <pre>{@code
 * Keylatch keylatch = Keylatch.create();
 * try (Lease lease = keylatch.lock("deploy").acquire(Duration.ofSeconds(30))) {
 *     deploy(lease.fencingToken());
 * }
 * }</pre>
 *
 * <p>A lease counts its validity from the sending of each request, is renewed at each third of its TTL, and counts as lost a quarter
 * of the TTL (at most 10 s) before its end. Every request carries a token of the client's own, so each is retried where a response is
 * lost. All renewals share one thread.
 */
public final class Keylatch {
    /** The version of this client. */
    public static final String VERSION = "0.1.0";
    /** A wait without end. */
    public static final Duration FOREVER = Duration.ofNanos(Long.MAX_VALUE / 4);

    final Wire wire;
    final String owner;
    final Supplier<String> traceparent;
    /** What each thread holds by {@link NamedLock#asLock()}. */
    final ThreadLocal<Map<Object, KeylatchLock.Held>> heldByThread = ThreadLocal.withInitial(LinkedHashMap::new);

    Keylatch(Wire wire, String owner, Supplier<String> traceparent) {
        this.wire = wire;
        this.owner = owner;
        this.traceparent = traceparent;
    }

    /** Makes a client with the settings of the environment.
     * @return a client
     * @throws IllegalArgumentException for a bad setting, which it names */
    public static Keylatch create() {
        return builder().build();
    }

    /** Begins to make a client.
     * @return settings that read the environment where they are not set */
    public static Builder builder() {
        return new Builder();
    }

    /** A lock.
     * @param name of any characters
     * @return the lock, to be acquired */
    public NamedLock lock(String name) {
        return new NamedLock(this, List.of(name), false);
    }

    /** Several locks, to be had all at once or not at all, under one token.
     * @param names of the locks
     * @return the locks, to be acquired */
    public NamedLock locks(String... names) {
        return new NamedLock(this, Arrays.asList(names), true);
    }

    /** A thing to be done once.
     * @param key the same for each attempt of the same thing
     * @return the thing, to be done */
    public Once once(String key) {
        return new Once(this, key);
    }

    /** Reports what happens to a lock.
     * @param name of the lock
     * @param listener gets one event after another, in a thread of the client's own; it may block
     * @return the watch, to be closed */
    public Watch watch(String name, Consumer<Event> listener) {
        Watch watch = new Watch(wire, name, traceparent.get(), listener);
        watch.open();
        return watch;
    }

    /** Says who holds a lock.
     * @param name of the lock
     * @return empty where it is free
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public Optional<Holding> show(String name) {
        try {
            return Optional.of(new Holding(get("/v1/locks/" + Request.plain(name), said -> name.equals(said.text("name")))));
        } catch (ProblemException problem) {
            if (problem.code().equals("lock-not-held")) {
                return Optional.empty();
            }
            throw problem;
        }
    }

    /** Lists what is held.
     * @param prefix of the names; empty for all
     * @return the locks by name
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public List<Holding> list(String prefix) {
        List<Holding> held = new ArrayList<>();
        String cursor = "";
        do {
            Document page = get("/v1/locks?prefix=" + Request.plain(prefix) + cursor, said -> said.has("locks"));
            page.documents("locks").forEach(lock -> held.add(new Holding(lock)));
            String next = page.text("next_cursor");
            cursor = next == null ? "" : "&cursor=" + Request.plain(next);
        } while (!cursor.isEmpty());
        return held;
    }

    private Document get(String path, Predicate<Document> fits) {
        Request request = new Request("GET", path);
        request.fits = fits;
        request.trace = traceparent.get();
        return wire.ask(request, 0).finish();
    }

    /** Ends the leases of all present holders.
     * @param name of the lock
     * @param reason for the holders, who read it
     * @return whether there was any
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public boolean breakLock(String name, String reason) {
        return breakLock(name, reason, null, null);
    }

    /** Ends the leases of all present holders.
     * @param name of the lock
     * @param reason for the holders, who read it
     * @param by who breaks it, for people; null for nobody
     * @param grace how soon the leases end, be that before the validity of their holders ends; null for that validity
     * @return whether there was any
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public boolean breakLock(String name, String reason, String by, Duration grace) {
        List<Holder> holders = show(name).map(Holding::holders).orElse(List.of());
        boolean isBroken = false;
        for (Holder holder : holders) {
            Map<String, Object> body = new LinkedHashMap<>();
            body.put("reason", reason);
            body.put("fencing_token", holder.fencingToken());
            holder.slot().ifPresent(slot -> body.put("slot", slot));
            if (by != null) {
                body.put("by", by);
            }
            if (grace != null) {
                body.put("grace_ms", Wire.millis(Wire.nanos(grace)));
            }
            Request request = new Request("POST", "/v1/locks/" + Request.plain(name) + "/break");
            request.body = body;
            request.trace = traceparent.get();
            request.fits = said -> said.has("fencing_token");
            try {
                wire.ask(request, 0).finish();
                isBroken = true;
            } catch (ProblemException problem) {
                // A holder that left is none.
                if (Loss.of(List.of(name), problem) == null) {
                    throw problem;
                }
            }
        }
        return isBroken;
    }

    /** Sends any other request of the API. A GET that gets no response is sent again.
     * @param method of HTTP
     * @param path with its query, such as {@code /v1/locks/ci/history}
     * @param body strings, numbers, booleans, lists and maps by name; null for none
     * @return the members of the response
     * @throws ProblemException where the service refuses it
     * @throws UnreachableException where there is no response */
    public Map<String, Object> call(String method, String path, Map<String, ?> body) {
        if (!path.startsWith("/")) {
            throw new IllegalArgumentException("a path begins with /");
        }
        Request request = new Request(method, path);
        request.body = body;
        request.trace = traceparent.get();
        Document said = (method.equals("GET") ? wire.ask(request, 0) : wire.send(request)).finish();
        Map<String, Object> members = new LinkedHashMap<>();
        said.members.forEach((name, value) -> members.put(String.valueOf(name), value));
        return members;
    }

    static void requireVisible(String what, String text) {
        if (text.chars().anyMatch(letter -> letter <= ' ' || letter > '~')) {
            throw new IllegalArgumentException("the " + what + " has a character that no header may have");
        }
    }

    /** How a client reaches the service, and as whom. */
    public static final class Builder {
        private List<String> urls;
        private String apiKey = environment("KEYLATCH_API_KEY");
        private String owner = Settings.owner();
        private Path authorities = Settings.path(environment("KEYLATCH_CA"));
        private Path certificate = Settings.path(environment("KEYLATCH_CLIENT_CERT"));
        private Path key = Settings.path(environment("KEYLATCH_CLIENT_KEY"));
        private ProxySelector proxy;
        private HttpClient http;
        private Duration timeout = Duration.ofSeconds(5);
        private Duration silence = Duration.ofSeconds(90);
        private BiConsumer<String, Throwable> log = Settings::log;
        private Supplier<String> traceparent = () -> "";

        private Builder() {
            String text = environment("KEYLATCH_URL");
            urls = text.isEmpty() ? List.of("http://127.0.0.1:7070") : Arrays.asList(text.split(","));
        }

        private static String environment(String name) {
            String value = System.getenv(name);
            return value == null ? "" : value;
        }

        /** Where the service is. Several are instances that share a store: a request that gets no connection goes to the next.
         * @param urls http: or https:; by default those of KEYLATCH_URL, or http://127.0.0.1:7070
         * @return this */
        public Builder url(String... urls) {
            this.urls = Arrays.asList(urls);
            return this;
        }

        /** Who asks.
         * @param apiKey sent as a bearer; KEYLATCH_API_KEY by default
         * @return this */
        public Builder apiKey(String apiKey) {
            this.apiKey = apiKey;
            return this;
        }

        /** Who asks, by a file that is read now.
         * @param file has the API key, with blanks around it
         * @return this
         * @throws IllegalArgumentException where it cannot be read */
        public Builder apiKeyFile(Path file) {
            apiKey = Settings.read(file).trim();
            return this;
        }

        /** Which authorities the certificate of the service is good by, in place of those of the JVM.
         * @param file with certificates in PEM; KEYLATCH_CA by default
         * @return this */
        public Builder ca(Path file) {
            authorities = file;
            return this;
        }

        /** What this client shows to the service.
         * @param certificate a file with the certificate in PEM, and those between it and its authority; KEYLATCH_CLIENT_CERT by default
         * @param key a file with its private key in PEM (PKCS#8); KEYLATCH_CLIENT_KEY by default
         * @return this */
        public Builder certificate(Path certificate, Path key) {
            this.certificate = certificate;
            this.key = key;
            return this;
        }

        /** Which proxy a request takes.
         * @param proxy in place of that of the JVM, which reads {@code https.proxyHost} and the like
         * @return this */
        public Builder proxy(ProxySelector proxy) {
            this.proxy = proxy;
            return this;
        }

        /** Sends by an HTTP client of your own. Its TLS and its proxy count, in place of those that are set here.
         * @param http built with {@code Redirect.NEVER}, which is its default: a token must not go to another host
         * @return this */
        public Builder httpClient(HttpClient http) {
            this.http = http;
            return this;
        }

        /** For how long a request may go without a response, beyond its wait, and for how long in all one is retried.
         * @param timeout 5 s by default
         * @return this */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /** For how long nothing may come of a watch, not even a comment, until the client opens it again.
         * @param silence 90 s by default; the service sends a comment every 15 s
         * @return this */
        public Builder silence(Duration silence) {
            this.silence = silence;
            return this;
        }

        /** Gets told of each retry, of lost leases and of another URL.
         * @param log gets a message and its reason or null, and does not block; by default the System.Logger of this package, at DEBUG
         * @return this */
        public Builder log(BiConsumer<String, Throwable> log) {
            this.log = log;
            return this;
        }

        /** Gives the trace of each request.
         * @param traceparent is called in the thread of the caller, whose lease and run keep what it gives (W3C Trace Context)
         * @return this */
        public Builder traceparent(Supplier<String> traceparent) {
            this.traceparent = traceparent;
            return this;
        }

        /** Who people see as holder, where a lock says nothing else.
         * @param owner HOST/PID by default
         * @return this */
        public Builder owner(String owner) {
            this.owner = owner;
            return this;
        }

        /** Makes the client. Nothing is sent.
         * @return a client
         * @throws IllegalArgumentException for a URL that is none, an API key that no header may have, or a file that cannot be read,
         *     which it names, and for an HTTP client that follows redirects */
        public Keylatch build() {
            requireVisible("API key", apiKey);
            List<String> bases = new ArrayList<>();
            for (String url : urls) {
                bases.add(base(url.trim()));
            }
            if (bases.isEmpty()) {
                throw new IllegalArgumentException("there is no URL");
            }
            if (http != null && http.followRedirects() != HttpClient.Redirect.NEVER) {
                throw new IllegalArgumentException("the HTTP client follows redirects");
            }
            HttpClient sending = http == null ? http(bases.size()) : http;
            return new Keylatch(wire(new HttpTransport(sending, apiKey), Clock.Machine.CLOCK, bases), owner, traceparent);
        }

        Keylatch build(Transport transport, Clock clock) {
            return new Keylatch(wire(transport, clock, List.of("http://keylatch.test")), owner, traceparent);
        }

        private Wire wire(Transport transport, Clock clock, List<String> bases) {
            return new Wire(transport, clock, bases, Wire.nanos(timeout), Wire.nanos(silence), log);
        }

        private static String base(String url) {
            try {
                URI uri = new URI(url);
                boolean isHttp = "http".equalsIgnoreCase(uri.getScheme()) || "https".equalsIgnoreCase(uri.getScheme());
                boolean isMore = uri.getRawUserInfo() != null || uri.getRawQuery() != null || uri.getRawFragment() != null;
                if (isHttp && uri.getHost() != null && !isMore) {
                    return url.replaceAll("/+$", "");
                }
            } catch (URISyntaxException bad) {
                // Its text has the URL, and so its password.
            }
            String shown = url.replaceAll("[?#].*", "").replaceAll("//.*@", "//***@");
            throw new IllegalArgumentException(shown + " is not an http: or https: URL without user, query and fragment");
        }

        private HttpClient http(int urlCount) {
            // Two threads for all responses; none of them runs what belongs to the program.
            ThreadPoolExecutor threads = new ThreadPoolExecutor(2, 2, 30, TimeUnit.SECONDS, new LinkedBlockingQueue<>(),
                task -> Clock.Machine.daemon(task, "keylatch-http"));
            threads.allowCoreThreadTimeOut(true);
            // A URL that does not respond leaves time for the others. A token must not follow to another host.
            HttpClient.Builder builder = HttpClient.newBuilder().executor(threads).version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(timeout.dividedBy(urlCount)).followRedirects(HttpClient.Redirect.NEVER);
            if (proxy != null) {
                builder.proxy(proxy);
            }
            if (authorities != null || certificate != null) {
                builder.sslContext(Settings.tls(authorities, certificate, key));
            }
            return builder.build();
        }
    }
}
