package io.keylatch.client;

/** The service gave no response. */
public final class UnreachableException extends KeylatchException {
    private static final long serialVersionUID = 1;
    /** What is said of a response that does not fit its request. */
    static final String OF_ANOTHER = "the response is not one of keylatch for this request";
    /** Whether the request left this process. */
    private final boolean sent;
    /** Whether the request may be sent again. */
    final boolean isPassing;

    UnreachableException(boolean sent, String why, Throwable cause) {
        super("no response: " + why, cause);
        this.sent = sent;
        // What has a bad header can never be sent.
        isPassing = sent || !(cause instanceof IllegalArgumentException);
    }

    /** That of a hold with a token of the caller's own, which is not sent again. */
    UnreachableException(Throwable cause) {
        super("no response to a hold with a token of one's own", cause);
        sent = true;
        isPassing = false;
    }

    static UnreachableException ofAnother(Throwable cause) {
        return new UnreachableException(true, OF_ANOTHER, cause);
    }

    /** Whether the request left this process.
     * @return whether the service may have carried it out */
    public boolean sent() {
        return sent;
    }
}
