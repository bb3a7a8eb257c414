package io.keylatch.client;

/** A lock or thing with a token of the caller's own was asked for again while its lease or run is in use; a lock takes an entry. */
public final class InUseException extends KeylatchException {
    private static final long serialVersionUID = 1;

    InUseException(String name) {
        super(name + " is in use under its own token", null);
    }
}
