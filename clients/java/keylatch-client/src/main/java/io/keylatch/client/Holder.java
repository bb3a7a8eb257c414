package io.keylatch.client;

import java.time.Duration;
import java.util.OptionalInt;

/** A holder of a lock, as others see it. */
public final class Holder {
    private final Document said;

    Holder(Document said) {
        this.said = said;
    }

    /** Its label for people.
     * @return empty where it has none, or where the service does not tell it */
    public String owner() {
        return said.text("owner") == null ? "" : said.text("owner");
    }

    /** Its fencing token.
     * @return a positive number */
    public long fencingToken() {
        return said.count("fencing_token");
    }

    /** How long its lease lasts unless it is renewed.
     * @return in milliseconds of the service */
    public Duration expiresIn() {
        return Duration.ofMillis(said.count("expires_in_ms"));
    }

    /** Its place in a counted lock.
     * @return from 0; empty where the lock is not counted */
    public OptionalInt slot() {
        return said.has("slot") ? OptionalInt.of((int) said.count("slot")) : OptionalInt.empty();
    }
}
