package io.keylatch.client;

import java.util.List;
import java.util.Optional;

/** A lease is over, or will be before it can be renewed. */
public final class LeaseLostException extends KeylatchException {
    private static final long serialVersionUID = 1;
    /** What is lost. */
    private final String[] names;
    /** What happened, as a word. */
    private final String reason;
    /** What happened, for people. */
    private final String detail;
    /** Who broke the lock, or null. */
    private final String by;

    LeaseLostException(Loss loss) {
        super(loss.toString(), null);
        names = loss.names.toArray(new String[0]);
        reason = loss.reason;
        detail = loss.detail;
        by = loss.by;
    }

    /** What is lost.
     * @return the names of the locks, or the key of the run */
    public List<String> names() {
        return List.of(names);
    }

    /** What happened, as a word.
     * @return "expired", "taken", "broken", "unrenewed", "paused", "unreachable", "released", or a word of the service for a hold */
    public String reason() {
        return reason;
    }

    /** What happened, for people.
     * @return a sentence, or the reason that was given for a break */
    public String detail() {
        return detail;
    }

    /** Who broke the lock.
     * @return empty where nobody broke it, or did not say so */
    public Optional<String> by() {
        return Optional.ofNullable(by);
    }
}
