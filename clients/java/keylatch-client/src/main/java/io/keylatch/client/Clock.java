package io.keylatch.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** The time that a client goes by, in nanoseconds, and what it does later or beside its callers. */
interface Clock {
    long SECOND = 1_000_000_000L;

    /** The time since some moment, also that in which the machine slept. */
    long now();

    /** Runs a task then, which does not block. It may run early. */
    CompletableFuture<?> at(long then, Runnable task);

    /** Runs what belongs to the program, and may block. It does not wait for what the program runs elsewhere. */
    void run(Runnable task);

    /** The clock of this machine, with one thread for the timers of all clients. */
    final class Machine implements Clock {
        static final Machine CLOCK = new Machine();
        private final ScheduledThreadPoolExecutor timers;
        private final ExecutorService listeners = Executors.newCachedThreadPool(task -> daemon(task, "keylatch-listener"));
        private final long started = System.nanoTime();
        private final long startedAt = System.currentTimeMillis();
        private volatile long slept;

        private Machine() {
            timers = new ScheduledThreadPoolExecutor(1, task -> daemon(task, "keylatch-timers"));
            timers.setRemoveOnCancelPolicy(true);
            // Timers that end after this one need not wake the thread when they are set, and most are cancelled before.
            timers.scheduleAtFixedRate(() -> { }, 1, 1, TimeUnit.SECONDS);
        }

        static Thread daemon(Runnable task, String name) {
            Thread thread = new Thread(task, name);
            thread.setDaemon(true);
            return thread;
        }

        /**
         * The clock of the JVM stands still while the machine sleeps. What the wall clock is ahead of it by more than a second is
         * added, which makes a lease shorter and never longer.
         */
        @Override
        public long now() {
            long monotonic = System.nanoTime() - started;
            long ahead = (System.currentTimeMillis() - startedAt) * 1_000_000 - monotonic;
            if (ahead > slept + SECOND) {
                slept = ahead;
            }
            return monotonic + slept;
        }

        @Override
        public CompletableFuture<?> at(long then, Runnable task) {
            Task<Void> timer = new Task<>();
            step(timer, then, task);
            return timer;
        }

        /** Looks at the clock each second: a timer stands still too while the machine sleeps. */
        private void step(Task<Void> timer, long then, Runnable task) {
            long left = Math.min(then - now(), SECOND);
            timer.step(timers.schedule(() -> {
                if (timer.isDone()) {
                    return;
                }
                if (then - now() > 0) {
                    step(timer, then, task);
                } else if (timer.complete(null)) {
                    task.run();
                }
            }, Math.max(left, 0), TimeUnit.NANOSECONDS));
        }

        @Override
        public void run(Runnable task) {
            listeners.execute(task);
        }
    }
}
