package io.keylatch.client;

/** What a lock, a lease or a run can come to beside success. Each kind has a class of its own. */
public class KeylatchException extends RuntimeException {
    private static final long serialVersionUID = 1;

    KeylatchException(String message, Throwable cause) {
        super(message, cause);
    }
}
