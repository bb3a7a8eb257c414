package io.keylatch.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** What a client sends, and what it makes of the responses. */
class WireTest {
    static {
        // Else the server waits 40 ms with the body of each response.
        System.setProperty("sun.net.httpserver.nodelay", "true");
    }

    private final List<String> requests = new CopyOnWriteArrayList<>();
    private final List<HttpServer> servers = new ArrayList<>();
    private final List<String> logged = new CopyOnWriteArrayList<>();

    /** Says in place of a grant what becomes of a request; null grants it. */
    private interface Answers {
        String to(HttpExchange exchange, String body) throws IOException;
    }

    @AfterEach
    void stop() {
        servers.forEach(server -> server.stop(0));
    }

    /** A service that grants whatever it is asked for. Answers begin with a status. */
    private String serve(Answers answers) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 1000);
        server.setExecutor(Executors.newCachedThreadPool(task -> Clock.Machine.daemon(task, "server")));
        server.createContext("/", exchange -> {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            requests.add(exchange.getRequestMethod() + " " + exchange.getRequestURI() + " " + body);
            String said = answers.to(exchange, body);
            if (said == null) {
                String path = exchange.getRequestURI().getPath();
                String token = exchange.getRequestHeaders().getFirst("Lock-Token");
                said = "200 " + Json.write(Map.of("name", path.substring(path.lastIndexOf('/') + 1), "token", String.valueOf(token),
                    "fencing_token", 1, "waited_ms", 0, "valid_for_ms", 30000, "state", "in-flight"));
                String method = exchange.getRequestMethod();
                said = method.equals("DELETE") || path.endsWith("/renew") ? "204 " : path.endsWith("/fail") ? "200 {\"state\":\"unknown\"}"
                    : method.equals("PUT") && path.startsWith("/v1/idem") ? "200 {\"state\":\"done\"}" : said;
            }
            byte[] text = said.substring(4).getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(Integer.parseInt(said.substring(0, 3)), text.length == 0 ? -1 : text.length);
            exchange.getResponseBody().write(text);
            exchange.close();
        });
        server.start();
        servers.add(server);
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    private Keylatch client(String... urls) {
        return Keylatch.builder().url(urls).apiKey("").log((what, why) -> logged.add(what)).build();
    }

    private static String dead() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return "http://127.0.0.1:" + socket.getLocalPort();
        }
    }

    @Test
    void grantOfAnotherLockIsNone() throws IOException {
        AtomicInteger count = new AtomicInteger();
        Keylatch keylatch = Keylatch.builder().timeout(Duration.ofMillis(300)).url(serve((exchange, body) ->
            exchange.getRequestMethod().equals("POST") && count.incrementAndGet() > 0
                ? "200 {\"name\":\"b\",\"token\":\"" + exchange.getRequestHeaders().getFirst("Lock-Token")
                    + "\",\"fencing_token\":1,\"waited_ms\":0,\"valid_for_ms\":30000}" : null)).build();
        UnreachableException another = assertThrows(UnreachableException.class, () -> keylatch.lock("a").acquire());
        assertTrue(another.sent());
        assertEquals("no response: the response is not one of keylatch for this request", another.getMessage());
        assertTrue(count.get() > 1);
    }

    @Test
    void whatNeverLeftIsNotSent() throws IOException {
        Keylatch away = Keylatch.builder().timeout(Duration.ofSeconds(1)).url(dead()).build();
        assertFalse(assertThrows(UnreachableException.class, () -> away.show("a")).sent());
        Keylatch nowhere = Keylatch.builder().timeout(Duration.ofSeconds(1)).url("http://no-host.invalid").build();
        assertFalse(assertThrows(UnreachableException.class, () -> nowhere.show("a")).sent());
        Keylatch bad = Keylatch.builder().timeout(Duration.ofSeconds(15)).url(serve((exchange, body) -> null)).traceparent(() -> "a\nb").build();
        long begun = System.nanoTime();
        assertFalse(assertThrows(UnreachableException.class, () -> bad.show("a")).sent());
        assertTrue(System.nanoTime() - begun < 10 * Clock.SECOND);
        assertEquals(List.of(), requests);
    }

    @Test
    void whatAnEarlierTryMayHaveDoneIsSent() throws IOException {
        Keylatch keylatch = Keylatch.builder().timeout(Duration.ofSeconds(1)).url(serve((exchange, body) -> {
            servers.get(0).stop(0);
            return "200 ";
        })).build();
        assertTrue(assertThrows(UnreachableException.class, () -> keylatch.lock("a").acquire()).sent());
    }

    @Test
    void holdIsRetriedButNotUnderATokenWhoseResponseWasLost() throws Exception {
        Set<String> tokens = new TreeSet<>();
        Keylatch keylatch = client(serve((exchange, body) -> {
            tokens.add(exchange.getRequestHeaders().getFirst("Lock-Token"));
            if (requests.size() == 2) {
                exchange.close();
            }
            return requests.size() == 1 ? "503 {\"outcome\":\"not-executed\"}" : requests.size() > 3 ? "204 "
                : "200 event: acquired\ndata: {\"name\":\"a\",\"waited_ms\":0,\"valid_for_ms\":30000,\"token\":\""
                    + exchange.getRequestHeaders().getFirst("Lock-Token") + "\"}\n\n";
        }));
        keylatch.lock("a").hold(Duration.ZERO).release();
        assertEquals(List.of(3L, 2), List.of(count("POST /v1/locks/a/hold"), tokens.size()));
        requests.clear();
        requests.add("a try of before");
        NamedLock own = keylatch.lock("a").token("t".repeat(20));
        assertTrue(assertThrows(UnreachableException.class, () -> own.hold(Duration.ZERO)).sent());
        assertEquals(1, count("POST"));
    }

    @Test
    void responseThatIsLostIsSentAndAFailingLogEndsNothing() throws IOException {
        Keylatch keylatch = Keylatch.builder().timeout(Duration.ofMillis(300)).url(serve((exchange, body) -> {
            exchange.close();
            return "200 ";
        })).log((message, why) -> {
            throw new IllegalStateException("a log of one's own");
        }).build();
        assertTrue(assertThrows(UnreachableException.class, () -> keylatch.breakLock("a", "x")).sent());
    }

    @Test
    void requestGoesToTheUrlThatLivesAndNotToAnotherStore() throws IOException {
        String one = serve((exchange, body) -> exchange.getRequestURI().getPath().equals("/v1/info") ? "200 {\"store\":{\"id\":\"one\"}}" : null);
        String two = serve((exchange, body) -> exchange.getRequestURI().getPath().equals("/v1/info") ? "200 {\"store\":{\"id\":\"two\"}}" : null);
        Keylatch keylatch = client(dead(), one + "/");
        keylatch.lock("a").acquire().close();
        assertEquals(1, requests.stream().filter(request -> request.startsWith("GET /v1/info")).count());
        Keylatch mixed = Keylatch.builder().timeout(Duration.ofSeconds(1)).url(one, two).log((what, why) -> logged.add(what + why)).build();
        mixed.lock("a").acquire().close();
        servers.get(0).stop(0);
        assertFalse(assertThrows(UnreachableException.class, () -> mixed.lock("b").acquire()).sent());
        assertTrue(logged.toString().contains(two + " has another store than " + one), logged.toString());
    }

    @Test
    void settingsAreSentAsTheyAre() throws IOException {
        Keylatch keylatch = Keylatch.builder().url(serve((exchange, body) -> null)).owner("ann").build();
        keylatch.lock("a b+ü..").limit(-1).ttl(Duration.ZERO).entry("e").acquire().close();
        assertTrue(requests.get(0).contains("\"ttl_ms\":0,\"wait_ms\":0,\"owner\":\"ann\",\"mode\":\"shared\",\"limit\":-1,\"entry\":\"e\""),
            requests.get(0));
    }

    @Test
    void ownerIsHostAndProcess() throws IOException {
        client(serve((exchange, body) -> null)).lock("a").acquire().close();
        assertTrue(requests.get(0).contains("/" + ProcessHandle.current().pid() + "\""), requests.get(0));
    }

    @Test
    void badSettingsAreRefusedAtOnceByName() throws IOException {
        Path empty = Files.createTempFile("empty", ".pem");
        Path absent = Path.of(empty + ".absent");
        Map<String, Runnable> settings = new LinkedHashMap<>();
        settings.put("API key", () -> Keylatch.builder().apiKey("kl_secret\n").build());
        settings.put("localhost:7070", () -> Keylatch.builder().url("localhost:7070").build());
        settings.put("unix:/run/s", () -> Keylatch.builder().url("http://a", "unix:/run/s").build());
        settings.put("http://[::1", () -> Keylatch.builder().url("http://[::1").build());
        settings.put("http://***@a", () -> Keylatch.builder().url("http://ann:secret@a").build());
        settings.put("http://***@a b", () -> Keylatch.builder().url("http://ann:secret@a b").build());
        settings.put("https://a", () -> Keylatch.builder().url("https://a?key=secret").build());
        settings.put("http://b", () -> Keylatch.builder().url("http://b#secret").build());
        settings.put("redirects", () -> Keylatch.builder()
            .httpClient(HttpClient.newBuilder().followRedirects(HttpClient.Redirect.NORMAL).build()).build());
        settings.put(empty.toString(), () -> Keylatch.builder().ca(empty).build());
        settings.put(absent.toString(), () -> Keylatch.builder().ca(absent).build());
        settings.put(absent + " ", () -> Keylatch.builder().apiKeyFile(absent));
        settings.put(empty + "", () -> Keylatch.builder().certificate(empty, empty).build());
        settings.forEach((named, setting) -> {
            String said = assertThrows(IllegalArgumentException.class, setting::run).getMessage();
            assertTrue(said.contains(named.trim()) && !said.contains("secret"), said);
        });
        Files.writeString(empty, "kl_key\n");
        Keylatch.builder().apiKeyFile(empty).build();
        assertThrows(IllegalArgumentException.class, () -> Keylatch.builder().build().lock("a").token("a b"));
    }

    @Test
    void interruptLeavesTheQueueAndReleases() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        Keylatch keylatch = client(serve((exchange, body) -> {
            if (exchange.getRequestMethod().equals("POST")) {
                asked.countDown();
                sleep();
            }
            return null;
        }));
        Thread waiter = Thread.currentThread();
        CompletableFuture.runAsync(() -> {
            await(asked);
            waiter.interrupt();
        });
        assertThrows(InterruptedException.class, () -> keylatch.lock("a").acquire(Duration.ofMinutes(1)));
        for (long end = System.nanoTime() + 10 * Clock.SECOND; requests.stream().noneMatch(request -> request.startsWith("DELETE")); ) {
            assertTrue(System.nanoTime() < end, requests.toString());
            Thread.onSpinWait();
        }
    }

    @Test
    void cancelledWaitClosesItsConnection() throws Exception {
        try (ServerSocket service = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Keylatch keylatch = Keylatch.builder().timeout(Duration.ofMillis(500)).url("http://127.0.0.1:" + service.getLocalPort()).build();
            CompletableFuture<Lease> waiting = keylatch.lock("a").acquireAsync(Duration.ofMinutes(1));
            try (Socket connection = service.accept()) {
                connection.setSoTimeout(10_000);
                assertTrue(connection.getInputStream().read() > 0);
                waiting.cancel(true);
                // The service takes the end of the connection for the end of the wait.
                while (connection.getInputStream().read() >= 0) {
                    assertTrue(waiting.isCancelled());
                }
            }
        }
    }

    @Test
    void waitThatIsCancelledInAPauseLeavesTheQueue() throws IOException {
        CompletableFuture<CompletableFuture<Lease>> waiting = new CompletableFuture<>();
        Keylatch keylatch = Keylatch.builder().url(serve((exchange, body) -> {
            exchange.getResponseHeaders().add("Retry-After", "60");
            return exchange.getRequestMethod().equals("POST") ? "503 {\"outcome\":\"not-executed\"}" : null;
        })).log((what, why) -> waiting.thenAccept(wait -> wait.cancel(true))).build();
        waiting.complete(keylatch.lock("a").acquireAsync(Duration.ofHours(1)));
        for (long end = System.nanoTime() + 10 * Clock.SECOND; count("DELETE") == 0; Thread.onSpinWait()) {
            assertTrue(System.nanoTime() < end, requests.toString());
        }
        assertTrue(waiting.join().isCancelled());
    }

    @Test
    void grantThatIsHalfOverIsRenewedAtOnceAndItsLossIsToldBesideTheCommonPool() throws Exception {
        AtomicInteger renewals = new AtomicInteger();
        CountDownLatch told = new CountDownLatch(1);
        CountDownLatch filled = new CountDownLatch(1);
        Keylatch keylatch = Keylatch.builder().log((what, why) -> {
            throw new AssertionError("a log of one's own");
        }).url(serve((exchange, body) -> {
            String method = exchange.getRequestMethod();
            if (!method.equals("PUT")) {
                return method.equals("DELETE") ? "204 " : "200 " + Json.write(Map.of("name", "a", "fencing_token", 1, "waited_ms", 0,
                    "valid_for_ms", 30_000, "token", exchange.getRequestHeaders().getFirst("Lock-Token")));
            }
            return renewals.incrementAndGet() == 1 ? "503 " : "409 {\"code\":\"lock-broken\"}";
        })).build();
        // A third of the TTL is over when it comes, and less than half.
        Lease lease = keylatch.lock("a").ttl(Duration.ofSeconds(50)).acquire();
        for (int at = 0; at < 2 * ForkJoinPool.getCommonPoolParallelism(); at++) {
            CompletableFuture.runAsync(() -> await(filled));
        }
        lease.onLost(loss -> told.countDown());
        assertTrue(told.await(10, TimeUnit.SECONDS), renewals.toString());
        filled.countDown();
    }

    @Test
    void interruptThatComesWithTheGrantComesAfterIt() throws InterruptedException {
        Task<String> task = new Task<>();
        task.step(new CompletableFuture<Void>() {
            @Override
            public boolean cancel(boolean mayInterrupt) {
                return task.complete("granted");
            }
        });
        Thread.currentThread().interrupt();
        assertEquals("granted", task.await());
        assertTrue(Thread.interrupted());
    }

    @Test
    void failureUndoesNothingThatAnOwnTokenHadBefore() throws IOException {
        Keylatch keylatch = Keylatch.builder().timeout(Duration.ofMillis(300)).url(serve((exchange, body) ->
            exchange.getRequestMethod().equals("POST") ? "200 {}" : null)).build();
        NamedLock own = keylatch.lock("a").token("t".repeat(20));
        for (NamedLock lock : List.of(own, own, own.entry("e"), keylatch.lock("a"))) {
            assertThrows(UnreachableException.class, lock::acquire);
        }
        for (long end = System.nanoTime() + 10 * Clock.SECOND; count("DELETE") < 2; Thread.onSpinWait()) {
            assertTrue(System.nanoTime() < end, requests.toString());
        }
        assertEquals(2, count("DELETE"));
        assertEquals(1, count("DELETE /v1/locks/a?entry=e"));
    }

    private long count(String start) {
        return requests.stream().filter(request -> request.startsWith(start)).count();
    }

    @Test
    void leaseIsReleasedOnceAndARunCountsFromItsFirstBegin() throws IOException {
        Keylatch keylatch = client(serve((exchange, body) -> {
            if (exchange.getRequestMethod().equals("POST") && requests.size() == 1) {
                sleep();
            }
            return null;
        }));
        Run run = keylatch.once("k").lease(Duration.ofSeconds(4)).begin();
        assertEquals(1, count("POST /v1/idempotency/k/renew"));
        run.complete(Answer.text("done"));
        Lease lease = keylatch.lock("a").acquire();
        assertTrue(lease.release() && lease.release());
        assertEquals(1, count("DELETE"));
    }

    @Test
    void runWhoseFirstBeginWasLostCountsFromThat() throws IOException {
        Keylatch keylatch = client(serve((exchange, body) -> {
            if (requests.size() == 1) {
                sleep();
                exchange.close();
            }
            return null;
        }));
        keylatch.once("k").lease(Duration.ofSeconds(4)).begin().check();
        assertEquals(1, count("POST /v1/idempotency/k/renew"));
    }

    @Test
    void onlyWhatKeylatchSaysIsASuccess() throws IOException {
        String[] says = {"200 "};
        Keylatch keylatch = Keylatch.builder().timeout(Duration.ofMillis(100)).url(serve((exchange, body) ->
            exchange.getRequestURI().getPath().startsWith("/v1/locks/a") || requests.size() % 2 == 1 && body.contains("lease_ms") ? null : says[0]))
            .build();
        for (String foreign : List.of("200 ", "200 []", "200 <p>", "200 {\"state\":\"in-flight\"}")) {
            says[0] = foreign;
            for (Consumer<Run> end : List.<Consumer<Run>>of(run -> run.complete(Answer.text("")), run -> run.fail("x"), Run::abandon)) {
                requests.clear();
                Run run = keylatch.once("k").begin();
                assertThrows(UnreachableException.class, () -> end.accept(run), foreign);
            }
            assertThrows(UnreachableException.class, () -> keylatch.list(""));
        }
        says[0] = "200 <p>";
        assertThrows(UnreachableException.class, () -> keylatch.call("GET", "/v1/info", null));
        assertThrows(IllegalArgumentException.class, () -> keylatch.call("GET", "@other.example/v1/info", null));
    }

    @Test
    void urlThatDoesNotSayItsStoreIsAskedAgain() throws IOException {
        for (String none : List.of("503 ", "401 {}", "429 {}", "200 <p>")) {
            AtomicInteger asked = new AtomicInteger();
            String url = serve((exchange, body) -> exchange.getRequestURI().getPath().equals("/v1/info")
                ? asked.incrementAndGet() > 1 ? "404 " : none : null);
            Keylatch.builder().url(url, dead()).build().lock("a").acquire();
            assertEquals(2, asked.get(), none);
        }
        assertEquals(4, count("POST"));
    }

    @Test
    void oneDeadlineIsThatOfAllUrls() throws IOException {
        String one = serve((exchange, body) -> {
            sleep();
            return null;
        });
        long begun = System.nanoTime();
        Keylatch keylatch = Keylatch.builder().timeout(Duration.ofMillis(1000)).url(one, one + "/b", one + "/c").build();
        assertThrows(UnreachableException.class, () -> keylatch.call("POST", "/x", null));
        assertTrue(System.nanoTime() - begun < 2 * Clock.SECOND, requests.toString());
    }

    @Test
    void bodyThatHangsClosesItsConnection() throws Exception {
        try (ServerSocket service = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Keylatch keylatch = Keylatch.builder().timeout(Duration.ofMillis(200)).url("http://127.0.0.1:" + service.getLocalPort()).build();
            CompletableFuture<?> asking = CompletableFuture.runAsync(() -> keylatch.call("POST", "/x", null));
            try (Socket connection = service.accept()) {
                connection.setSoTimeout(10_000);
                assertTrue(connection.getInputStream().read() > 0);
                connection.getOutputStream().write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".getBytes(StandardCharsets.UTF_8));
                while (connection.getInputStream().read() >= 0) {
                    assertTrue(connection.isConnected());
                }
            }
            assertEquals(UnreachableException.class, assertThrows(CompletionException.class, asking::join).getCause().getClass());
        }
    }

    @Test
    void holderThatLeftStopsNoBreak() throws IOException {
        Keylatch keylatch = client(serve((exchange, body) -> exchange.getRequestMethod().equals("GET")
            ? "200 {\"name\":\"a\",\"holders\":[{\"fencing_token\":1},{\"fencing_token\":2}]}"
            : body.contains(":1") ? "412 {\"code\":\"token-mismatch\"}" : null));
        assertTrue(keylatch.breakLock("a", "it hangs"));
        assertEquals(2, count("POST"));
    }

    @Test
    void lossBeforeTheUseLetsTheWaitGoOn() throws IOException {
        Keylatch keylatch = client(serve((exchange, body) -> exchange.getRequestMethod().equals("PUT") ? "404 {\"code\":\"lock-not-held\"}"
            : count("POST") > 1 ? null : "200 " + Json.write(Map.of("name", "a", "fencing_token", 1, "waited_ms", 0, "valid_for_ms", 1,
                "token", exchange.getRequestHeaders().getFirst("Lock-Token")))));
        keylatch.lock("a").acquire().check();
        assertEquals(List.of(2L, 1L, 0L), List.of(count("POST"), count("PUT"), count("DELETE")));
    }

    @Test
    void retryAfterDoesNotLoseALease() throws Exception {
        CountDownLatch renewals = new CountDownLatch(2);
        Keylatch keylatch = client(serve((exchange, body) -> {
            if (!exchange.getRequestMethod().equals("PUT")) {
                return "200 " + Json.write(Map.of("name", "a", "fencing_token", 1, "waited_ms", 0, "valid_for_ms", 6000,
                    "token", exchange.getRequestHeaders().getFirst("Lock-Token")));
            }
            exchange.getResponseHeaders().add("Retry-After", "600");
            renewals.countDown();
            return "503 ";
        }));
        keylatch.lock("a").ttl(Duration.ofSeconds(6)).acquire();
        assertTrue(renewals.await(15, TimeUnit.SECONDS), renewals.toString());
    }

    @Test
    void waitThatTheServiceEndsGivesNoLock() throws IOException {
        KeylatchLock lock = client(serve((exchange, body) -> "409 {\"code\":\"lock-held\"}")).lock("a").asLock();
        assertThrows(HeldException.class, lock::lockInterruptibly);
        assertFalse(lock.isHeldByCurrentThread());
    }

    private static void sleep() {
        try {
            TimeUnit.SECONDS.sleep(2);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    @Test
    void thousandLeasesAreRenewedByFourThreads() throws Exception {
        Set<String> before = threads();
        CountDownLatch renewed = new CountDownLatch(1000);
        Keylatch keylatch = client(serve((exchange, body) -> {
            if (exchange.getRequestMethod().equals("PUT")) {
                renewed.countDown();
            }
            return null;
        }));
        List<Lease> leases = new ArrayList<>();
        for (int at = 0; at < 1000; at++) {
            leases.add(keylatch.lock("lock" + at).ttl(Duration.ofSeconds(9)).acquire());
        }
        assertTrue(renewed.await(15, TimeUnit.SECONDS), renewed.toString());
        Set<String> threads = threads();
        threads.removeAll(before);
        assertTrue(threads.size() <= 4, threads.toString());
        assertEquals(1, threads().stream().filter(name -> name.startsWith("keylatch-timers")).count());
        leases.forEach(Lease::check);
        CompletableFuture.allOf(leases.stream().map(Lease::releaseAsync).toArray(CompletableFuture[]::new)).get(30, TimeUnit.SECONDS);
    }

    /** The threads of clients; other tests of this process may have left some. */
    private static Set<String> threads() {
        Set<String> threads = new TreeSet<>();
        Thread.getAllStackTraces().keySet().forEach(thread -> threads.add(thread.getName() + "#" + thread.getId()));
        threads.removeIf(name -> !name.startsWith("keylatch") && !name.startsWith("HttpClient"));
        return threads;
    }

    @Test
    void everyMemberOfTheApiCanBeSent() throws IOException {
        Path document = Path.of("../../../openapi/openapi.json");
        org.junit.jupiter.api.Assumptions.assumeTrue(Files.exists(document));
        Document schemas = new Document(Json.read(Files.readString(document))).document("components").document("schemas");
        Map<String, Set<String>> sent = sent();
        sent.get("DescribedRequest").add("body");
        sent.get("CompleteRecord").add("json");
        sent.forEach((schema, members) -> schemas.document(schema).document("properties").members.keySet().forEach(property ->
            assertTrue(members.contains(String.valueOf(property)), "nothing sends " + schema + "." + property)));
        assertEquals(10, sent.size());
    }

    /** The members that the client has sent with all its settings, by schema. */
    private Map<String, Set<String>> sent() throws IOException {
        Map<String, Set<String>> sent = new LinkedHashMap<>();
        Map<String, String> schemas = Map.of("POST /v1/locks/a", "CreateLock", "PUT /v1/locks/a", "RenewLock", "POST /v1/locks/a/hold",
            "HoldLock", "POST /v1/locks", "CreateLocks", "PUT /v1/locks", "RenewLocks", "POST /v1/locks/a/break", "BreakLock",
            "POST /v1/idempotency/k", "BeginRecord", "PUT /v1/idempotency/k", "CompleteRecord", "POST /v1/idempotency/k/fail", "FailRecord");
        Keylatch keylatch = client(serve((exchange, body) -> {
            String path = exchange.getRequestURI().getPath();
            String schema = schemas.get(exchange.getRequestMethod() + " " + path);
            String token = exchange.getRequestHeaders().getFirst("Lock-Token");
            if (schema != null) {
                Document said = new Document(Json.read(body));
                said.members.keySet().forEach(member -> sent.computeIfAbsent(schema, none -> new TreeSet<>()).add(String.valueOf(member)));
                said.document("request").members.keySet().forEach(member ->
                    sent.computeIfAbsent("DescribedRequest", none -> new TreeSet<>()).add(String.valueOf(member)));
            }
            String granted = "\"token\":\"" + token + "\",\"waited_ms\":0,\"valid_for_ms\":";
            boolean isCreate = exchange.getRequestMethod().equals("POST");
            if (path.equals("/v1/locks")) {
                return "200 {\"locks\":[{\"name\":\"a\"},{\"name\":\"b\"}]," + granted + (isCreate ? "1}" : "30000}");
            } else if (path.equals("/v1/locks/a") && !exchange.getRequestMethod().equals("GET")) {
                return "200 {\"name\":\"a\"," + granted + (isCreate ? "1}" : "30000}");
            }
            return path.equals("/v1/locks/a") ? "200 {\"name\":\"a\",\"holders\":[{\"slot\":1}]}" : path.endsWith("/hold") ? "400 " : null;
        }));
        NamedLock all = keylatch.lock("a").maxAhead(0).limit(2).entry("e").owner("ann").maxHold(Duration.ofSeconds(1));
        all.acquire().close();
        keylatch.locks("a", "b").maxAhead(0).limit(2).acquire().close();
        assertThrows(ProblemException.class, () -> all.hold(Duration.ZERO));
        keylatch.breakLock("a", "it hangs", "ann", Duration.ofSeconds(1));
        Once once = keylatch.once("k").fingerprint("f").request("a=1", "text/plain", Map.of("A", List.of("b")), new byte[1])
            .retention(Duration.ofHours(1)).onCrash("rerun").scope("POST", "/v1/orders", "ann").source("json:/no").token("t".repeat(20));
        once.begin().complete(Answer.text("text").header("A", "b"));
        once.begin().complete(Answer.of(201, new byte[] {-1}));
        once.begin().fail("half way");
        assertTrue(requests.stream().anyMatch(request -> request.startsWith(
            "POST /v1/idempotency/k?method=POST&path=%2Fv1%2Forders&principal=ann&source=json%3A%2Fno ")), requests.toString());
        return sent;
    }
}
