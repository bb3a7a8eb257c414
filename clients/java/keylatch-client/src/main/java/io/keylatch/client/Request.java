package io.keylatch.client;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.function.Predicate;

/** A request, and what is to become of its response. */
final class Request {
    final String method;
    /** The path with its query. */
    final String path;
    Map<String, ?> body;
    String token;
    String trace;
    /** For how long the service may wait with its response, in nanoseconds. */
    long prefers;
    /** For how long it may go without a response, in nanoseconds; 0 is that of the client. */
    long timeout;
    Effect effect = new Effect();
    /** Whether a success is one of keylatch for this request. */
    Predicate<Document> fits = said -> true;
    /** Gets the lines of a response that is a stream. */
    Lines lines;
    /** What is done where a response comes after the request was cancelled, which a runtime before Java 16 cannot end. */
    Runnable late = () -> { };

    Request(String method, String path) {
        this.method = method;
        this.path = path;
    }

    /** Writes a name as a step of a path. A dot may not stand as it is, because ".." would be one too. */
    static String plain(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20").replace(".", "%2E");
    }

    /** Gets what comes of a stream, one call after another. */
    interface Lines {
        void line(String line);

        void ended(Throwable why);
    }

    /** Whether the service may have done what a request and its retries ask for. */
    static final class Effect {
        volatile boolean mayBeDone;
        private boolean mayBeDoneBefore;
        /** When the first request was sent that may have been done. */
        volatile long since;

        /** A request begins: until its response is known it may be done. */
        void begin(long now) {
            since = mayBeDone ? since : now;
            mayBeDoneBefore = mayBeDone;
            mayBeDone = true;
        }

        void note(Throwable failed) {
            if (failed == null || Task.isCancellation(failed)) {
                return;
            }
            Throwable why = Task.reason(failed);
            mayBeDoneBefore &= !(why instanceof ProblemException && ((ProblemException) why).isOthers());
            mayBeDone = mayBeDoneBefore || mayBeDone(why);
        }

        /** Whether the service may have done what one request asks for. */
        static boolean mayBeDone(Throwable why) {
            if (why instanceof ProblemException) {
                ProblemException problem = (ProblemException) why;
                return problem.isPassing() && !problem.outcome().equals("not-executed") && !problem.isOthers();
            }
            return !(why instanceof UnreachableException) || ((UnreachableException) why).sent();
        }
    }
}
