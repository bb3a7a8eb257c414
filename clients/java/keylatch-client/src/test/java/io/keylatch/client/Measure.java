package io.keylatch.client;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/**
 * Measures a lock and its release beside the same two requests by the HTTP client of the JDK, against the service in KEYLATCH_URL, for
 * {@code clients/cost.py}. With "threads" it takes as many locks at once as it is told, each in a thread of its own: virtual where the runtime has
 * them.
 */
final class Measure {
    private static final int ROUNDS = 3000;

    private Measure() { }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 1 && arguments[0].equals("threads")) {
            threads(Integer.parseInt(arguments[1]));
            return;
        }
        String url = System.getenv().getOrDefault("KEYLATCH_URL", "http://127.0.0.1:7070");
        HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        Keylatch keylatch = Keylatch.create();
        for (int at = 0; at < ROUNDS; at++) {
            long begun = System.nanoTime();
            byHand(http, url + "/v1/locks/measured");
            long middle = System.nanoTime();
            keylatch.lock("measured").acquire().close();
            System.out.println((middle - begun) / 1e9 + " " + (System.nanoTime() - middle) / 1e9);
        }
    }

    private static void byHand(HttpClient http, String url) throws Exception {
        String token = Token.or(null).text;
        HttpRequest create = HttpRequest.newBuilder(URI.create(url)).header("Lock-Token", token).header("Content-Type", "application/json")
            .timeout(Duration.ofSeconds(5)).POST(HttpRequest.BodyPublishers.ofString("{\"ttl_ms\":30000,\"wait_ms\":0,\"owner\":\"me\"}")).build();
        HttpRequest release = HttpRequest.newBuilder(URI.create(url)).header("Lock-Token", token).timeout(Duration.ofSeconds(5)).DELETE().build();
        int created = http.send(create, HttpResponse.BodyHandlers.ofString()).statusCode();
        int released = http.send(release, HttpResponse.BodyHandlers.ofString()).statusCode();
        if (created >= 300 || released >= 300) {
            throw new IllegalStateException(created + " " + released);
        }
    }

    private static void threads(int count) throws Exception {
        Keylatch keylatch = Keylatch.create();
        CountDownLatch done = new CountDownLatch(count);
        List<Thread> threads = new ArrayList<>();
        long begun = System.nanoTime();
        for (int at = 0; at < count; at++) {
            String name = "virtual" + at % (count / 4);
            threads.add(start(() -> {
                try (Lease lease = keylatch.lock(name).acquire(Duration.ofMinutes(1))) {
                    Thread.sleep(10);
                    lease.check();
                    done.countDown();
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            }));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.printf("%d of %d in %d ms, %d platform threads%n", count - done.getCount(), count, (System.nanoTime() - begun) / 1_000_000,
            Thread.getAllStackTraces().size());
    }

    /** A virtual thread since Java 21. */
    private static Thread start(Runnable task) throws Exception {
        if (Runtime.version().feature() < 21) {
            Thread thread = new Thread(task);
            thread.start();
            return thread;
        }
        return (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, task);
    }
}
