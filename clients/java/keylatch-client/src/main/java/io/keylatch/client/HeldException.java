package io.keylatch.client;

import java.util.Optional;

/** Others held the lock until the wait was over. */
public final class HeldException extends KeylatchException {
    private static final long serialVersionUID = 1;
    /** The lock. */
    private final String name;
    private final transient Holder holder;

    HeldException(String name, Holder holder) {
        super(name + " is held" + (holder == null || holder.owner().isEmpty() ? "" : " by " + holder.owner()), null);
        this.name = name;
        this.holder = holder;
    }

    /** The lock; of several the first that was not to be had.
     * @return its name */
    public String name() {
        return name;
    }

    /** The holder whose lease ends first.
     * @return empty where the lock was free for a waiter that was before */
    public Optional<Holder> holder() {
        return Optional.ofNullable(holder);
    }
}
