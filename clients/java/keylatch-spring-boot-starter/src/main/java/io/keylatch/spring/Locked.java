package io.keylatch.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Runs a method of a bean under a lock. The lock is taken before the method's {@code @Transactional} begins its transaction, and
 * released after the commit. Within a transaction that already runs, it is released at the end of that transaction.
 *
 * <p>A thread enters again what it holds. While it holds the lock, {@code keylatch.lock(name).asLock()} gives its lease and fencing
 * token. Where others hold the lock the call throws {@link io.keylatch.client.HeldException}; where the lease was lost before the
 * method has returned, {@link io.keylatch.client.LeaseLostException}. Of a method that returns a CompletionStage the call waits for
 * its end. Reactive types are refused.
 */
@Documented
@Target({ElementType.METHOD, ElementType.ANNOTATION_TYPE})
@Retention(RetentionPolicy.RUNTIME)
public @interface Locked {
    /** The name of the lock.
     * @return a template of SpEL, such as {@code order:#{#userId}}; where a part of it is null or empty the call is refused */
    String value();

    /** How long to wait for the lock.
     * @return such as "10s" or "500ms" */
    String waitFor() default "0s";

    /** How long the lease outlives this process. It is renewed for as long as the method runs.
     * @return such as "30s" */
    String ttl() default "30s";

    /** Lets all methods that share the lock run together.
     * @return whether this is a reader */
    boolean shared() default false;

    /** What becomes of the call where others hold the lock.
     * @return FAIL by default */
    OnHeld onHeld() default OnHeld.FAIL;

    /** What becomes of a call. */
    enum OnHeld {
        /** It throws HeldException. */
        FAIL,
        /** It returns null, for a job that another instance does. */
        SKIP
    }
}
