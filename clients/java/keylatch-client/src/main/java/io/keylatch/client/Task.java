package io.keylatch.client;

import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.UnaryOperator;

/** What comes of several steps, one after another. Its cancellation ends the step under way. */
final class Task<T> extends CompletableFuture<T> {
    private volatile Future<?> step;
    private volatile boolean isEnding;

    /** Says which step is under way. */
    void step(Future<?> next) {
        step = next;
        if (isEnding) {
            next.cancel(true);
        }
    }

    /** Ends the step under way first: what follows from the cancellation comes after that. */
    @Override
    public boolean cancel(boolean mayInterrupt) {
        isEnding = true;
        Future<?> last = step;
        if (last != null && !isDone()) {
            last.cancel(true);
        }
        return super.cancel(mayInterrupt) || isCancelled();
    }

    /** Whether it is being cancelled: no further step begins. */
    boolean isEnding() {
        return isEnding;
    }

    static <T> Task<T> failed(Throwable why) {
        Task<T> task = new Task<>();
        task.completeExceptionally(why);
        return task;
    }

    static <T> Task<T> done(T value) {
        Task<T> task = new Task<>();
        task.complete(value);
        return task;
    }

    /** Goes on from the end of a task. */
    interface Next<T, R> {
        /** Gets the value, or why there is none. */
        void accept(Task<R> task, T value, Throwable why);
    }

    /** The task that goes on from this one. Its cancellation ends this one too. */
    <R> Task<R> next(Next<T, R> next) {
        Task<R> task = new Task<>();
        task.step(this);
        whenComplete((value, failed) -> {
            try {
                next.accept(task, value, failed == null ? null : reason(failed));
            } catch (RuntimeException | Error bad) {
                task.completeExceptionally(bad);
            }
        });
        return task;
    }

    /** What a function makes of the value. */
    <R> Task<R> map(Function<T, R> of) {
        return flatMap(value -> done(of.apply(value)));
    }

    /** The same, with another reason where there is no value. */
    Task<T> orElse(UnaryOperator<Throwable> of) {
        return next((task, value, why) -> task.settle(value, why == null ? null : of.apply(why)));
    }

    /** What comes of the task that follows. */
    <R> Task<R> flatMap(Function<T, Task<R>> of) {
        return next((task, value, why) -> {
            if (why != null) {
                task.completeExceptionally(why);
                return;
            }
            Task<R> following = of.apply(value);
            task.step(following);
            following.whenComplete((result, failed) -> task.settle(result, failed));
        });
    }

    /** Ends with a value, or with why there is none; false where it has ended before. */
    boolean settle(T value, Throwable failed) {
        return failed == null ? complete(value) : completeExceptionally(reason(failed));
    }

    /** Waits. An interrupt cancels the task, and comes afterwards where the value is there already. */
    T await() throws InterruptedException {
        try {
            return get();
        } catch (InterruptedException interrupted) {
            cancel(true);
            if (!isCompletedExceptionally()) {
                Thread.currentThread().interrupt();
                return join();
            }
            throw interrupted;
        } catch (ExecutionException failed) {
            throw thrown(failed);
        }
    }

    /** Waits for what has a deadline of its own. An interrupt comes afterwards. */
    T finish() {
        try {
            return join();
        } catch (CompletionException failed) {
            throw thrown(failed);
        }
    }

    /** The reason, with the stack of the caller. */
    private static RuntimeException thrown(Throwable failed) {
        Throwable why = reason(failed);
        if (why instanceof Error) {
            throw (Error) why;
        }
        if (why instanceof KeylatchException) {
            why.fillInStackTrace();
        }
        return why instanceof RuntimeException ? (RuntimeException) why : new CompletionException(why);
    }

    static Throwable reason(Throwable failed) {
        Throwable why = failed;
        while ((why instanceof CompletionException || why instanceof ExecutionException) && why.getCause() != null) {
            why = why.getCause();
        }
        return why;
    }

    static boolean isCancellation(Throwable why) {
        return reason(why) instanceof CancellationException;
    }

    /**
     * A future for the program, whose actions do not run on threads of the client. When it ends early, by cancel or by
     * a timeout of its own, the task ends too; without an undo the task goes on.
     */
    CompletableFuture<T> detached(Clock clock, Consumer<T> undo) {
        Task<T> future = new Task<>();
        future.whenComplete((value, why) -> {
            if (why != null && undo != null) {
                cancel(true);
            }
        });
        whenComplete((value, why) -> clock.run(() -> {
            if (!future.settle(value, why) && why == null && undo != null) {
                undo.accept(value);
            }
        }));
        return future;
    }
}
