package before;

import java.time.Duration;
import java.time.Instant;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.LockingTaskExecutor;

/** A job of several machines that runs on one. */
public class NightlyReport {
    private final LockingTaskExecutor executor;

    public NightlyReport(LockProvider provider) {
        executor = new DefaultLockingTaskExecutor(provider);
    }

    public void run(Runnable report) {
        Duration atMost = Duration.ofMinutes(30);
        executor.executeWithLock(report, new LockConfiguration(Instant.now(), "nightly", atMost, Duration.ZERO));
    }
}
