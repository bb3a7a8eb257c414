//! The watchdog of a lease, be it that of a guard or that of a run.
//!
//! It renews at each third of the TTL by the schedule of the core. It counts the validity from the sending of each
//! request, on [`BootInstant`], and gives the lease up a quarter of the TTL (at most 10 s) before the validity ends, so
//! that the program stops before another client can have what it holds. Tested in `tests/api/rust_client.rs` and by
//! `clients/conformance`.

use std::time::Duration;

use keylatch_core::watchdog::LeaseSchedule;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::BootInstant;
use crate::connection::ANSWER_TIMEOUT;
use crate::{Error, LeaseStatus, LossReason};

/// Why a lease was not renewed.
#[derive(Debug)]
pub(crate) enum RenewalError {
    /// The service says that it is over.
    Lost(LossReason),
    /// It may be tried again, after some time if the service says so.
    Failed { after: Option<Duration>, error: Error },
}

/// What a program reads of its lease.
#[derive(Debug)]
pub(crate) struct LeaseView {
    pub(crate) until: watch::Receiver<BootInstant>,
    pub(crate) status: watch::Receiver<LeaseStatus>,
    pub(crate) lost: CancellationToken,
    /// What ends now is not lost.
    pub(crate) closing: CancellationToken,
}

/// What a watchdog reports of its lease.
pub(crate) struct LeaseReport {
    /// When the validity ends.
    until: watch::Sender<BootInstant>,
    status: watch::Sender<LeaseStatus>,
    lost: CancellationToken,
    /// The guard is being closed: what ends now is not lost.
    closing: CancellationToken,
}

impl LeaseReport {
    /// The report of a lease that is valid until then, and what the program reads of it.
    pub(crate) fn new(until: BootInstant) -> (Self, LeaseView) {
        let (sender, until) = watch::channel(until);
        let (status_sender, status) = watch::channel(LeaseStatus::Held);
        let (lost, closing) = (CancellationToken::new(), CancellationToken::new());
        let view = LeaseView { until, status, lost: lost.clone(), closing: closing.clone() };
        (Self { until: sender, status: status_sender, lost, closing }, view)
    }

    pub(crate) fn until(&self) -> BootInstant {
        *self.until.borrow()
    }

    pub(crate) fn renewed(&self, until: BootInstant) {
        self.until.send_replace(until);
    }

    pub(crate) fn lose(&self, reason: LossReason) {
        if self.closing.is_cancelled() {
            return;
        }
        self.status.send_replace(LeaseStatus::Lost(reason));
        self.lost.cancel();
    }
}

/// Renews a lease until it is lost, and reports that, or until it is being closed. `renew` tries once, within a time,
/// and gives how long after its sending the lease is valid.
pub(crate) async fn keep<F>(report: LeaseReport, ttl: Duration, renew: impl Fn(Duration) -> F)
where
    F: Future<Output = Result<Duration, RenewalError>>,
{
    let lost = report.closing.run_until_cancelled(renew_until_lost(&report, ttl, renew)).await;
    if let Some(reason) = lost {
        report.lose(reason);
    }
}

async fn renew_until_lost<F>(
    report: &LeaseReport,
    ttl: Duration,
    renew: impl Fn(Duration) -> F,
) -> LossReason
where
    F: Future<Output = Result<Duration, RenewalError>>,
{
    let (mut schedule, mut failure) = (LeaseSchedule::new(ttl, report.until().since_boot()), None);
    loop {
        BootInstant::at(schedule.next_try()).reached().await;
        let sent = BootInstant::now().since_boot();
        if sent >= schedule.valid_until() {
            return failure.map_or(LossReason::Paused, LossReason::Unrenewed);
        }
        let Some(limit) = schedule.try_limit(sent) else {
            let why = failure.unwrap_or_else(|| "there was no time".to_owned());
            return LossReason::Unrenewed(why);
        };
        match renew(limit.min(ANSWER_TIMEOUT)).await {
            Ok(valid) => {
                schedule.renewed(sent, sent.saturating_add(valid));
                report.renewed(BootInstant::at(schedule.valid_until()));
                failure = None;
            }
            Err(RenewalError::Lost(reason)) => return reason,
            Err(RenewalError::Failed { after, error }) => {
                let now = BootInstant::now().since_boot();
                schedule.failed(now, after.unwrap_or_default());
                failure = Some(error.to_string());
            }
        }
    }
}
