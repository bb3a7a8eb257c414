//! The ends of grants that no client sent a release for: what the store says of them is counted and
//! remembered, expiries are in the audit log, and a broken lease counts in no quota any more.
//!
//! An expiry is the store's own affair, and no request is answered when it comes. An instance sees
//! it when a step of its own, or its sweep, is the first to write down that the lease is over; so
//! each expiry is counted by one instance at most. Redlock says nothing of them. Tested in
//! `tests/api/metrics_page.rs` and `audit.rs`.

use std::sync::Arc;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use keylatch_core::lock::{EndCause, GrantEnd, LockName, Owner};
use keylatch_core::store::{Hint, Hints, Store, Topic};
use keylatch_wire::millis;
use serde::Serialize;
use tokio_util::task::AbortOnDropHandle;

use crate::access::Authenticator;
use crate::audit::AuditLog;
use crate::metrics::Metrics;
use crate::past_grants::PastGrants;

/// Reports how grants end, for as long as it is followed.
pub(crate) struct EndReporter {
    hints: Hints,
    metrics: Arc<Metrics>,
    past_grants: Arc<PastGrants>,
    audit: Option<Arc<AuditLog>>,
    authenticator: Option<Arc<Authenticator>>,
}

/// The line of an expiry, which is the act of no client.
#[derive(Serialize)]
struct ExpiryLine<'a> {
    act: &'static str,
    lock: &'a str,
    fencing_token: u64,
    owner: Option<&'a str>,
    /// By the store's wall clock, as the time held is.
    ended_at: Option<Timestamp>,
    held_ms: u64,
}

impl EndReporter {
    /// Reports the ends in `store` from now on, until the store or the handle is dropped.
    pub(crate) fn start(
        store: &dyn Store,
        metrics: &Arc<Metrics>,
        past_grants: Arc<PastGrants>,
        audit: Option<Arc<AuditLog>>,
        authenticator: &Option<Arc<Authenticator>>,
    ) -> AbortOnDropHandle<()> {
        let hints = store.subscribe(Topic::Ends);
        let (metrics, authenticator) = (Arc::clone(metrics), authenticator.clone());
        let reporter = Self { hints, metrics, past_grants, audit, authenticator };
        AbortOnDropHandle::new(tokio::spawn(reporter.follow()))
    }

    async fn follow(mut self) {
        while let Some(hint) = self.hints.next().await {
            match hint {
                Hint::Ended(name, _) if name.is_reserved() => {}
                Hint::Ended(name, end) => self.report(&name, end),
                Hint::Missed => tracing::warn!("more leases ended at once than could be counted"),
                Hint::Wakeup | Hint::Changed(_) => {}
            }
        }
    }

    fn report(&self, name: &LockName, end: GrantEnd) {
        self.metrics.held(end.held_for());
        if end.cause == EndCause::Expiry {
            self.metrics.expiries.inc();
            if let Some(audit) = &self.audit {
                audit.write(&expiry_line(name, &end), false);
            }
        } else if let Some(authenticator) = &self.authenticator {
            // An expiry is in each quota as the end of its lease.
            for meter in authenticator.identities().iter().flat_map(|identity| identity.meters()) {
                meter.end_lock(name.clone(), end.token);
            }
        }
        self.past_grants.add(name, end);
    }
}

fn expiry_line<'a>(name: &'a LockName, end: &'a GrantEnd) -> ExpiryLine<'a> {
    let ended_at = i64::try_from(end.ended_at_millis).ok();
    ExpiryLine {
        act: "expiry",
        lock: name.as_str(),
        fencing_token: end.fencing_token.get(),
        owner: end.owner.as_ref().map(Owner::as_str),
        ended_at: ended_at.and_then(|millis| Timestamp::from_millisecond(millis).ok()),
        held_ms: millis(end.held_for()),
    }
}
