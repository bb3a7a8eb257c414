//! The watchdog of a lease, be it that of a guard or that of a run.
//!
//! It renews at each third of the TTL by the schedule of the core. It counts the validity from the
//! sending of each request, on [`BootInstant`](crate::clock::BootInstant), and gives the lease up a
//! quarter of the TTL (at most 10 s) before the validity ends, so that the program stops before
//! another client can have what it holds. Tested in `tests/api/rust_client.rs` and by
//! `clients/conformance`.

use std::time::Duration;

use keylatch_core::watchdog::LeaseSchedule;

use crate::builder::RESPONSE_TIMEOUT;
use crate::lease::Lease;
use crate::{Error, LossReason};

/// Why a lease was not renewed.
#[derive(Debug)]
pub(crate) enum RenewalError {
    /// The service says that it is over.
    Lost(LossReason),
    /// It may be tried again, after some time if the service says so.
    Failed { after: Option<Duration>, error: Error },
}

/// Renews a lease until it is lost, or until it is being closed. `renew` tries once, within a time,
/// and gives how long after its sending the lease is valid.
pub(crate) async fn keep<F>(lease: Lease, renew: impl Fn(Duration) -> F)
where
    F: Future<Output = Result<Duration, RenewalError>>,
{
    let lost = lease.closing().run_until_cancelled(renew_until_lost(&lease, renew)).await;
    if let Some(reason) = lost {
        lease.lose(reason);
    }
}

async fn renew_until_lost<F>(lease: &Lease, renew: impl Fn(Duration) -> F) -> LossReason
where
    F: Future<Output = Result<Duration, RenewalError>>,
{
    let mut schedule = LeaseSchedule::new(lease.ttl(), lease.until().since_boot());
    loop {
        lease.until().at(schedule.next_try()).reached().await;
        let sent = lease.until().now();
        let limit = match (lease.loss(), schedule.try_limit(sent.since_boot())) {
            (None, Some(limit)) => limit,
            (loss, _) => return loss.unwrap_or(LossReason::Paused),
        };
        match renew(limit.min(RESPONSE_TIMEOUT)).await {
            Ok(valid) => {
                schedule.renewed(sent.since_boot(), (sent + valid).since_boot());
                lease.renewed(sent.at(schedule.valid_until()));
            }
            Err(RenewalError::Lost(reason)) => return reason,
            Err(RenewalError::Failed { after, error }) => {
                schedule.failed(sent.now().since_boot(), after.unwrap_or_default());
                lease.failed(error.to_string());
            }
        }
    }
}
