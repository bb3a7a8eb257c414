package io.keylatch.client;

import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Consumer;

/** What comes of several steps, one after another. Its cancellation ends the step under way. */
final class Task<T> extends CompletableFuture<T> {
    private volatile Future<?> step;

    /** Says which step is under way. */
    void step(Future<?> next) {
        step = next;
        if (isCancelled()) {
            next.cancel(true);
        }
    }

    @Override
    public boolean cancel(boolean mayInterrupt) {
        boolean isCancelled = super.cancel(mayInterrupt);
        Future<?> last = step;
        if (isCancelled && last != null) {
            last.cancel(true);
        }
        return isCancelled;
    }

    static <T> Task<T> failed(Throwable why) {
        Task<T> task = new Task<>();
        task.completeExceptionally(why);
        return task;
    }

    /** Waits. An interrupt cancels the task. */
    T await() throws InterruptedException {
        try {
            return get();
        } catch (InterruptedException interrupted) {
            cancel(true);
            throw interrupted;
        } catch (ExecutionException failed) {
            throw thrown(failed);
        }
    }

    /** Waits for what has a deadline of its own. An interrupt comes afterwards. */
    T finish() {
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    return get();
                } catch (InterruptedException interrupted) {
                    isInterrupted = true;
                } catch (ExecutionException failed) {
                    throw thrown(failed);
                }
            }
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
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
     * a timeout of its own, the task ends too.
     */
    CompletableFuture<T> detached(Clock clock, Consumer<T> undo) {
        CompletableFuture<T> future = new CompletableFuture<>();
        future.whenComplete((value, why) -> {
            if (why != null) {
                cancel(true);
            }
        });
        whenComplete((value, why) -> clock.run(() -> {
            if (why != null) {
                future.completeExceptionally(reason(why));
            } else if (!future.complete(value)) {
                undo.accept(value);
            }
        }));
        return future;
    }
}
