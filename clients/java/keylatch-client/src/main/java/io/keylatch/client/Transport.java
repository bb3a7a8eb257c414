package io.keylatch.client;

import java.util.concurrent.CompletableFuture;

/** What carries a request to a URL and brings its response. A failure is an {@link UnreachableException}. */
interface Transport {
    /** Gives the response when it is there whole; that of a stream with status 200 when it begins. */
    CompletableFuture<Response> send(String url, Request request);

    /** A response. */
    final class Response {
        final int status;
        final byte[] body;
        final long retryAfterNanos;
        /** Ends the connection of a stream. */
        final Runnable close;

        Response(int status, byte[] body, long retryAfterNanos, Runnable close) {
            this.status = status;
            this.body = body;
            this.retryAfterNanos = retryAfterNanos;
            this.close = close;
        }
    }
}
