package io.keylatch.client;

import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.channels.UnresolvedAddressException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;
import javax.net.ssl.SSLHandshakeException;
import javax.net.ssl.SSLPeerUnverifiedException;

/** Sends requests by the HTTP client of the JDK. No thread waits. */
final class HttpTransport implements Transport {
    static final String AGENT = "keylatch-java/" + Keylatch.VERSION;
    /** Before Java 16 a request that is under way cannot be ended. */
    private static final boolean CANCELS = Runtime.version().feature() >= 16;
    private final HttpClient http;
    private final String apiKey;

    HttpTransport(HttpClient http, String apiKey) {
        this.http = http;
        this.apiKey = apiKey;
    }

    @Override
    public CompletableFuture<Response> send(String url, Request request) {
        Task<Response> task = new Task<>();
        Stream stream = new Stream(request, task);
        CompletableFuture<HttpResponse<byte[]>> exchange;
        try {
            exchange = http.sendAsync(outgoing(url, request), stream::handler);
        } catch (RuntimeException bad) {
            // A bad header or path, or a client of the program's own that does not send.
            return Task.failed(new UnreachableException(false, "the request cannot be sent: " + bad.getMessage(), bad));
        }
        if (CANCELS) {
            task.step(exchange);
        }
        if (request.lines == null) {
            // The timeout of the JDK ends with the head of a response.
            Clock clock = Clock.Machine.CLOCK;
            CompletableFuture<?> late = clock.at(clock.now() + request.timeout + Clock.SECOND,
                () -> {
                    task.completeExceptionally(unreachable(new HttpTimeoutException("no response in time")));
                    exchange.cancel(true);
                });
            exchange.whenComplete((response, failed) -> late.cancel(true));
        }
        exchange.whenComplete((response, failed) -> {
            if (failed != null) {
                task.completeExceptionally(Task.isCancellation(failed) ? Task.reason(failed) : unreachable(Task.reason(failed)));
            }
        });
        return task;
    }

    private HttpRequest outgoing(String url, Request request) {
        HttpRequest.Builder outgoing = HttpRequest.newBuilder(URI.create(url + request.path));
        outgoing.header("User-Agent", AGENT);
        if (request.token != null) {
            outgoing.header("Lock-Token", request.token);
        }
        if (request.trace != null && !request.trace.isEmpty()) {
            outgoing.header("Traceparent", request.trace);
        }
        if (!apiKey.isEmpty()) {
            outgoing.header("Authorization", "Bearer " + apiKey);
        }
        if (request.prefers > 0) {
            outgoing.header("Prefer", "wait=" + (request.prefers + Clock.SECOND - 1) / Clock.SECOND);
        }
        HttpRequest.BodyPublisher body = HttpRequest.BodyPublishers.noBody();
        if (request.body != null) {
            outgoing.header("Content-Type", "application/json");
            body = HttpRequest.BodyPublishers.ofByteArray(Json.write(request.body).getBytes(StandardCharsets.UTF_8));
        }
        if (request.lines == null) {
            outgoing.timeout(Duration.ofNanos(request.timeout));
        }
        return outgoing.method(request.method, body).build();
    }

    private static long retryAfter(HttpHeaders headers) {
        String said = headers.firstValue("Retry-After").orElse("");
        return !said.isEmpty() && said.matches("[0-9]{1,5}") ? Long.parseLong(said) * Clock.SECOND : 0;
    }

    private static UnreachableException unreachable(Throwable why) {
        if (why instanceof UnreachableException) {
            return (UnreachableException) why;
        }
        boolean isUnsent = why instanceof ConnectException || why instanceof HttpConnectTimeoutException
            || why instanceof UnresolvedAddressException || why instanceof SSLHandshakeException
            || why instanceof SSLPeerUnverifiedException || why instanceof IllegalArgumentException;
        return new UnreachableException(!isUnsent, why.toString(), why);
    }

    /** Reads the body: as lines where that was asked for and the status is 200, and else whole. */
    private static final class Stream implements Flow.Subscriber<String> {
        private final Request request;
        private final Task<Response> task;
        private volatile Flow.Subscription subscription;
        private volatile boolean isClosed;

        Stream(Request request, Task<Response> task) {
            this.request = request;
            this.task = task;
        }

        HttpResponse.BodySubscriber<byte[]> handler(HttpResponse.ResponseInfo head) {
            if (request.lines == null || head.statusCode() != 200) {
                // Sooner than the future of the exchange, which takes the way over the common pool.
                return HttpResponse.BodySubscribers.mapping(HttpResponse.BodySubscribers.ofByteArray(), body -> read(head, body));
            }
            task.complete(new Response(200, new byte[0], 0, this::close));
            return HttpResponse.BodySubscribers.fromLineSubscriber(this, done -> new byte[0], StandardCharsets.UTF_8, null);
        }

        private byte[] read(HttpResponse.ResponseInfo head, byte[] body) {
            boolean isLate = task.isCancelled();
            task.complete(new Response(head.statusCode(), body, retryAfter(head.headers()), this::close));
            if (isLate) {
                request.late.run();
            }
            return body;
        }

        void close() {
            isClosed = true;
            Flow.Subscription open = subscription;
            if (open != null) {
                open.cancel();
            }
        }

        @Override
        public void onSubscribe(Flow.Subscription opened) {
            subscription = opened;
            opened.request(Long.MAX_VALUE);
            if (isClosed || task.isCancelled()) {
                opened.cancel();
            }
        }

        @Override
        public void onNext(String line) {
            request.lines.line(line);
        }

        @Override
        public void onError(Throwable why) {
            request.lines.ended(why);
        }

        @Override
        public void onComplete() {
            request.lines.ended(null);
        }
    }
}
