package io.keylatch.client;

import java.util.Map;

/** What happened to a lock that is watched. */
public final class Event {
    private final String type;
    private final Map<String, Object> data;

    Event(String type, Map<String, Object> data) {
        this.type = type;
        this.data = data;
    }

    /** What happened.
     * @return a word such as "snapshot", "acquired", "renewed", "released", "expired", "broken" or "lagged" */
    public String type() {
        return type;
    }

    /** The members of the event, as the API has them.
     * @return strings, {@code Long}, {@code Double}, {@code Boolean}, lists and maps by name */
    public Map<String, Object> data() {
        return data;
    }
}
