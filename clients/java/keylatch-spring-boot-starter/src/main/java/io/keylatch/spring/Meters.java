package io.keylatch.spring;

/** Where times go; nowhere without Micrometer. Tags are the text of an annotation, and never a name or a key. */
interface Meters {
    /** Notes how long something took, with tags by name and value. */
    void took(String name, long sinceNanos, String... tags);
}
