//! The watchdog of a lease, be it that of a guard or that of a run.
//!
//! It renews at each third of the TTL by the schedule of the core. It counts the validity from the
//! sending of each request, on [`BootInstant`](crate::clock::BootInstant), and gives the lease up a
//! quarter of the TTL (at most 10 s) before the validity ends, so that the program stops before
//! another client can have what it holds. Tested in `tests/api/rust_client.rs` and by
//! `clients/conformance`.

use std::time::Duration;

use keylatch_core::watchdog::LeaseSchedule;
use keylatch_wire::ProblemDocument;

use crate::LossReason;
use crate::clock::BootInstant;
use crate::connection::Failure;
use crate::lease::Lease;

/// How long a renewal may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Renews a lease until it is lost, or until it is being closed. `renew` tries once, within a time,
/// and gives until when the lease is valid; `loss` says which problems are its loss.
pub(crate) async fn keep<F: Future<Output = Result<BootInstant, Failure>>>(
    lease: Lease,
    renew: impl Fn(Duration) -> F,
    loss: impl Fn(&ProblemDocument) -> Option<LossReason>,
) {
    let lost = lease.closing().run_until_cancelled(renew_until_lost(&lease, renew, loss)).await;
    if let Some(reason) = lost {
        lease.lose(reason);
    }
}

async fn renew_until_lost<F: Future<Output = Result<BootInstant, Failure>>>(
    lease: &Lease,
    renew: impl Fn(Duration) -> F,
    loss: impl Fn(&ProblemDocument) -> Option<LossReason>,
) -> LossReason {
    let mut schedule = LeaseSchedule::new(lease.ttl(), lease.until().since_boot());
    loop {
        lease.until().at(schedule.next_try()).reached().await;
        let sent = lease.until().now();
        let limit = match (lease.loss(), schedule.try_limit(sent.since_boot())) {
            (None, Some(limit)) => limit,
            (loss, _) => return loss.unwrap_or(LossReason::Paused),
        };
        match renew(limit.min(LIMIT)).await {
            Ok(until) => {
                schedule.renewed(sent.since_boot(), until.since_boot());
                lease.renewed(sent.at(schedule.valid_until()));
            }
            Err(Failure { error, retry_after }) => {
                if let Some(reason) = error.problem().and_then(&loss) {
                    return reason;
                }
                schedule.failed(sent.now().since_boot(), retry_after.unwrap_or_default());
                lease.failed(error.unavailable().to_string());
            }
        }
    }
}
