package io.keylatch.spring;

import io.keylatch.client.Answer;
import io.keylatch.client.Keylatch;
import io.keylatch.client.ProblemException;
import io.keylatch.client.Run;
import java.io.IOException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.core.GenericTypeResolver;

/** Carries out {@link Once}. */
final class OnceInterceptor implements MethodInterceptor {
    private static final int NO_CONTENT = 204;
    private final Supplier<Keylatch> keylatch;
    private final Supplier<Meters> meters;
    private final Supplier<OnceResults> results;
    private final Calls calls;

    OnceInterceptor(Supplier<Keylatch> keylatch, Supplier<Meters> meters, Supplier<OnceResults> results, Calls calls) {
        this.keylatch = keylatch;
        this.meters = meters;
        this.results = results;
        this.calls = calls;
    }

    @Override
    public Object invoke(MethodInvocation call) throws Throwable {
        Once once = Calls.annotation(call, Once.class, false);
        Method method = Calls.method(call);
        String outcome = "failed";
        long asked = System.nanoTime();
        try {
            if (method.getReturnType() != void.class) {
                results();
            }
            Run run = begin(once, method, call);
            if (run.answer().isPresent()) {
                Object result = result(run.answer().get(), method, AopUtils.getTargetClass(call.getThis()));
                outcome = "replayed";
                return result;
            }
            Object result = carryOut(run, once, call);
            outcome = "done";
            return result;
        } catch (ProblemException problem) {
            outcome = problem.code();
            throw problem;
        } finally {
            meters.get().took("keylatch.once", asked, "key", once.key(), "outcome", outcome);
        }
    }

    /** Sets apart methods that differ in their parameters alone, and classes that inherit a method. */
    private static String scope(MethodInvocation call, Method method) {
        return AopUtils.getTargetClass(call.getThis()).getName() + "." + method.getName()
            + Arrays.stream(method.getParameterTypes()).map(Class::getSimpleName).collect(Collectors.joining(",", "(", ")"));
    }

    private Run begin(Once once, Method method, MethodInvocation call) {
        String scope = once.scope().isEmpty() ? scope(call, method) : once.scope();
        io.keylatch.client.Once thing = keylatch.get().once(calls.text(once.key(), call)).scope("CALL", "/" + scope, "")
            .lease(calls.duration(once.lease())).retention(calls.duration(once.retention()))
            .onCrash(once.rerun() ? "rerun" : "unknown");
        if (!once.fingerprint().isEmpty()) {
            thing = thing.fingerprint(calls.text(once.fingerprint(), call));
        }
        try {
            return thing.begin(calls.duration(once.waitFor()));
        } catch (InterruptedException interrupted) {
            throw Calls.interrupted(interrupted);
        }
    }

    private Object carryOut(Run run, Once once, MethodInvocation call) throws Throwable {
        Object result;
        Answer answer;
        try {
            result = call.proceed();
            answer = result == null ? Answer.of(NO_CONTENT, new byte[0]) : Answer.of(200, results().write(result));
        } catch (Throwable failed) {
            try {
                undone(run, once.rerun() || Arrays.stream(once.nothingDoneOn()).anyMatch(type -> type.isInstance(failed)), failed.toString());
            } catch (RuntimeException unsaid) {
                failed.addSuppressed(unsaid);
            }
            throw failed;
        }
        if (Transactions.isRunning()) {
            Transactions.atEnd(Transactions.KEY, run::check, committed -> {
                if (committed) {
                    run.complete(answer);
                } else {
                    undone(run, once.rerun(), "the transaction was not committed");
                }
            });
        } else {
            run.complete(answer);
        }
        return result;
    }

    private static void undone(Run run, boolean isFree, String why) {
        if (isFree) {
            run.abandon();
        } else {
            run.fail(why);
        }
    }

    private Object result(Answer answer, Method method, Class<?> owner) throws IOException {
        if (!answer.isKept()) {
            throw new IllegalStateException("the result of " + method + " was too large to be kept; the method has run");
        }
        return answer.status() == NO_CONTENT ? null
            : results().read(answer.body(), GenericTypeResolver.resolveType(method.getGenericReturnType(), owner));
    }

    private OnceResults results() {
        OnceResults known = results.get();
        if (known == null) {
            throw new IllegalStateException("@Once of a method that returns something needs Jackson, or a bean of OnceResults");
        }
        return known;
    }
}
