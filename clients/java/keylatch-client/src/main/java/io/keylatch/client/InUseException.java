package io.keylatch.client;

/** A lock with a token of the caller's own was asked for again while its lease is in use, without an entry. */
public final class InUseException extends KeylatchException {
    private static final long serialVersionUID = 1;

    InUseException(String name) {
        super(name + " is in use under its own token; enter it again with an entry", null);
    }
}
