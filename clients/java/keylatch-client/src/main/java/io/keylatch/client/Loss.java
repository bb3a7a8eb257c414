package io.keylatch.client;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Why a lease is over. */
final class Loss {
    private static final Map<String, String> REASONS =
        Map.of("lock-not-held", "expired", "token-mismatch", "taken", "lock-broken", "broken");
    final List<String> names;
    final String reason;
    final String detail;
    final String by;

    Loss(List<String> names, String reason, String detail, String by) {
        this.names = names;
        this.reason = reason;
        this.detail = detail;
        this.by = by;
    }

    /** The loss that a problem tells, or null where it tells of none. */
    static Loss of(List<String> names, ProblemException problem) {
        return of(names, problem.code(), problem.said());
    }

    /** The loss that a code of the service tells, or null where it tells of none. */
    static Loss of(List<String> names, String code, Document said) {
        String reason = code == null ? null : REASONS.get(code);
        if (reason == null) {
            return null;
        }
        List<String> lost = new ArrayList<>();
        said.documents("locks").forEach(lock -> lost.add(lock.text("name")));
        Document broken = said.document("broken");
        String detail = broken.has("reason") ? broken.text("reason") : said.text("detail");
        return new Loss(lost.isEmpty() ? names : List.copyOf(lost), reason, detail, broken.text("by"));
    }

    /** Why there is no grant where it was lost before anybody used it: what is asked for may be had anew. */
    static Throwable beforeUse(Throwable why) {
        boolean isLost = why instanceof ProblemException && of(List.of(), (ProblemException) why) != null;
        return isLost ? new UnreachableException(true, "it came too late: " + why.getMessage(), why) : why;
    }

    @Override
    public String toString() {
        String lease = "the lease of " + String.join(", ", names);
        if (!reason.equals("broken")) {
            return lease + " is lost (" + reason + "): " + detail;
        }
        return lease + " was broken" + (by == null ? "" : " by " + by) + ": " + detail;
    }
}
