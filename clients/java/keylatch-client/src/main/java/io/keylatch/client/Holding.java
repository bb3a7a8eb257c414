package io.keylatch.client;

import java.util.List;
import java.util.stream.Collectors;

/** Who holds a lock, and how many wait for it. */
public final class Holding {
    private final Document said;

    Holding(Document said) {
        this.said = said;
    }

    /** The lock.
     * @return its name */
    public String name() {
        return said.text("name");
    }

    /** Who holds it.
     * @return one holder, or several of a shared or a counted lock */
    public List<Holder> holders() {
        List<Document> holders = said.documents("holders");
        return (holders.isEmpty() ? List.of(said) : holders).stream().map(Holder::new).collect(Collectors.toUnmodifiableList());
    }

    /** How many wait in the queue.
     * @return 0 or more */
    public int waiting() {
        return (int) said.count("waiting");
    }
}
