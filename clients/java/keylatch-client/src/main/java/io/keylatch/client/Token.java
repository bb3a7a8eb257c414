package io.keylatch.client;

import java.security.SecureRandom;
import java.util.Base64;
import java.util.concurrent.atomic.AtomicReference;

/** The secret that proves a lease or a run. One at a time may use it. */
final class Token {
    private static final SecureRandom RANDOM = new SecureRandom();
    final String text;
    private final AtomicReference<Object> user = new AtomicReference<>();

    Token(String text) {
        Keylatch.requireVisible("token", text);
        this.text = text;
    }

    /** That of the caller's own, or else a new one. */
    static Token or(Token own) {
        byte[] random = new byte[24];
        RANDOM.nextBytes(random);
        return own != null ? own : new Token(Base64.getUrlEncoder().withoutPadding().encodeToString(random));
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
