package after;

import io.keylatch.client.Keylatch;

/** A job of several machines that runs on one. */
public class NightlyReport {
    private final Keylatch keylatch;

    public NightlyReport(Keylatch keylatch) {
        this.keylatch = keylatch;
    }

    public void run(Runnable report) {
        keylatch.lock("nightly").tryAcquire().ifPresent(lease -> {
            try (lease) {
                report.run();
            }
        });
    }
}
