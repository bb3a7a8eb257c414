package io.keylatch.client;

/** The service gave no response. */
public final class UnreachableException extends KeylatchException {
    private static final long serialVersionUID = 1;
    /** What is said of a response that does not fit its request. */
    static final String OF_ANOTHER = "the response is not one of keylatch for this request";
    /** Whether the request left this process. */
    private final boolean sent;

    UnreachableException(boolean sent, String why, Throwable cause) {
        super("no response: " + why, cause);
        this.sent = sent;
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
