package io.keylatch.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Runs a method of a bean once for a key. Each other call returns what that one returned, which is kept as JSON. The method may be
 * one that a listener of messages calls, or the listener itself. It runs outside of its {@code @Transactional}, so its key is done
 * after the commit. Within a transaction that already runs, the key is done when that commits.
 *
 * <p>Where the method throws, or the transaction around it rolls back, the outcome is unknown and a person settles it, unless
 * {@link #nothingDoneOn} or {@link #rerun} say otherwise. Until then a call throws {@link io.keylatch.client.ProblemException}
 * with the code "outcome-unknown"; while the method runs elsewhere, with "request-in-progress".
 */
@Documented
@Target({ElementType.METHOD, ElementType.ANNOTATION_TYPE})
@Retention(RetentionPolicy.RUNTIME)
public @interface Once {
    /** What is done once.
     * @return a template of SpEL, such as {@code #{#event.id}}, of 1 to 255 visible ASCII characters; where a part of it is null or
     *     empty the call is refused */
    String key();

    /** In which space the key is one.
     * @return by default the class of the bean, and the method with the types of its parameters */
    String scope() default "";

    /** Tells two things apart that have the same key by mistake ("idempotency-key-reused").
     * @return a template of SpEL, or empty */
    String fingerprint() default "";

    /** How long to wait while the method runs elsewhere.
     * @return such as "10s"; sent in whole seconds */
    String waitFor() default "0s";

    /** How long a run may go unrenewed before its outcome is unknown.
     * @return such as "30s" */
    String lease() default "30s";

    /** For how long the result is kept, and the method not run again.
     * @return such as "24h" or "365d" */
    String retention() default "24h";

    /** Frees the key where the method fails, the transaction rolls back or the process dies: the method may run twice.
     * @return whether it may */
    boolean rerun() default false;

    /** Which exceptions say that nothing was done: they free the key.
     * @return classes, with those that extend them */
    Class<? extends Throwable>[] nothingDoneOn() default {};
}
