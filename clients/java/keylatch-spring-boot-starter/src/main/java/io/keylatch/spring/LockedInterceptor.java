package io.keylatch.spring;

import io.keylatch.client.HeldException;
import io.keylatch.client.Keylatch;
import io.keylatch.client.KeylatchLock;
import io.keylatch.client.LeaseLostException;
import io.keylatch.client.NamedLock;
import java.util.concurrent.CompletionStage;
import java.util.function.Supplier;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;

/** Carries out {@link Locked}. */
final class LockedInterceptor implements MethodInterceptor {
    private final Supplier<Keylatch> keylatch;
    private final Supplier<Meters> meters;
    private final Calls calls;

    LockedInterceptor(Supplier<Keylatch> keylatch, Supplier<Meters> meters, Calls calls) {
        this.keylatch = keylatch;
        this.meters = meters;
        this.calls = calls;
    }

    @Override
    public Object invoke(MethodInvocation call) throws Throwable {
        Locked locked = Calls.annotation(call, Locked.class, true);
        NamedLock named = keylatch.get().lock(calls.text(locked.value(), call)).ttl(calls.duration(locked.ttl()));
        KeylatchLock lock = (locked.shared() ? named.shared() : named).asLock();
        String outcome = "failed";
        long asked = System.nanoTime();
        try {
            lock.enter(calls.duration(locked.waitFor()));
            outcome = "acquired";
        } catch (HeldException held) {
            outcome = "held";
            if (locked.onHeld() == Locked.OnHeld.SKIP) {
                return null;
            }
            throw held;
        } catch (InterruptedException interrupted) {
            throw Calls.interrupted(interrupted);
        } finally {
            meters.get().took("keylatch.lock.wait", asked, "lock", locked.value(), "outcome", outcome);
        }
        long acquired = System.nanoTime();
        Runnable unlock = () -> {
            String end = lock.lease().isLost() ? "lost" : "released";
            try {
                lock.unlock();
            } finally {
                meters.get().took("keylatch.lock.held", acquired, "lock", locked.value(), "outcome", end);
            }
        };
        if (Transactions.isRunning()) {
            Transactions.atEnd(Transactions.LOCK, () -> lock.lease().check(), committed -> {
                try {
                    unlock.run();
                } catch (LeaseLostException lost) {
                    // The rollback has told of it.
                    if (committed) {
                        throw lost;
                    }
                }
            });
            return done(call.proceed());
        }
        return proceed(call, unlock);
    }

    /** The result, after the end of its stage. */
    private static Object done(Object result) {
        if (result instanceof CompletionStage) {
            ((CompletionStage<?>) result).toCompletableFuture().handle((value, failed) -> value).join();
        }
        return result;
    }

    private static Object proceed(MethodInvocation call, Runnable unlock) throws Throwable {
        Object result;
        try {
            result = done(call.proceed());
        } catch (Throwable failed) {
            try {
                unlock.run();
            } catch (RuntimeException lost) {
                failed.addSuppressed(lost);
            }
            throw failed;
        }
        unlock.run();
        return result;
    }
}
