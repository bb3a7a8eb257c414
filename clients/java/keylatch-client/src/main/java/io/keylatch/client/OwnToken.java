package io.keylatch.client;

import java.util.concurrent.atomic.AtomicReference;

/** A secret of the caller's own, which one lease or run at a time may use. */
final class OwnToken {
    final String text;
    private final AtomicReference<Object> user = new AtomicReference<>();

    OwnToken(String text) {
        Keylatch.requireVisible("token", text);
        this.text = text;
    }

    void take(Object by, String name) {
        if (!user.compareAndSet(null, by)) {
            throw new InUseException(name);
        }
    }

    /** Lets others use it; does nothing where it was not taken by this user. */
    void free(Object by) {
        user.compareAndSet(by, null);
    }
}
