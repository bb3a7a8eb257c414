package io.keylatch.client;

import java.time.Duration;

/** The service refused a request (RFC 9457). */
public final class ProblemException extends KeylatchException {
    private static final long serialVersionUID = 1;
    /** The status of the response. */
    private final int status;
    /** What happened, for programs. */
    private final String code;
    /** What to do next, or null. */
    private final String retry;
    /** Whether a 5xx was carried out. */
    private final String outcome;
    /** How long to wait before a retry. */
    private final long retryAfterNanos;
    private final transient Document said;

    ProblemException(int status, Document said, long retryAfterNanos) {
        super(said.text("detail") == null ? "status " + status : said.text("detail"), null);
        this.status = status;
        this.said = said;
        code = said.text("code") == null ? "" : said.text("code");
        retry = said.text("retry");
        outcome = said.text("outcome") == null ? "" : said.text("outcome");
        this.retryAfterNanos = retryAfterNanos;
    }

    /** The status of the response.
     * @return a status of HTTP; 0 for what a stream says */
    public int status() {
        return status;
    }

    /** What happened, for programs.
     * @return a stable word such as "outcome-unknown"; empty where something else than keylatch responded */
    public String code() {
        return code;
    }

    /** What to do next.
     * @return "same-key" to retry the same request, "new-key" to correct it, "never" where somebody has to find out what happened */
    public String retry() {
        return retry != null ? retry : isPassing() ? "same-key" : "never";
    }

    /** How long to wait before a retry.
     * @return zero where the service does not say so */
    public Duration retryAfter() {
        return Duration.ofNanos(retryAfterNanos);
    }

    /** Whether a 5xx was carried out.
     * @return "not-executed", "unknown" where it may have been, or empty */
    public String outcome() {
        return outcome;
    }

    Document said() {
        return said;
    }

    /** Whether the same request may get another response after a while. */
    boolean isPassing() {
        return retry != null ? retry.equals("same-key") : status >= 500 || status == 408 || status == 429;
    }

    /** Whether others have what is asked for, and so not the token of the request. */
    boolean isOthers() {
        return code().equals("lock-held") || code().equals("request-in-progress");
    }
}
