package io.keylatch.client;

/** Thrown by an action of {@link Once} that has done nothing: its key is free again. */
public class NothingDoneException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** Says why nothing was done.
     * @param message for people */
    public NothingDoneException(String message) {
        super(message);
    }

    /** Says why nothing was done.
     * @param message for people
     * @param cause what stood in the way */
    public NothingDoneException(String message, Throwable cause) {
        super(message, cause);
    }
}
