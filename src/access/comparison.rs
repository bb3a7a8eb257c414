//! Sets right what quotas count: what the store has no longer counts no longer.
//!
//! A meter hears of what this instance grants and ends, and no instance hears of what ends
//! elsewhere. So each meter that refused something is compared with the store soon after; one that
//! refuses nothing may be wrong and harms nobody. A holder is known by its label, which begins with
//! its identity. Tested in `tests/api/quotas.rs`.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::idempotency::IdempotencyService;
use keylatch_core::lock::{Holding, LockService, Owner};
use tokio::time::sleep;

use super::{Authenticator, Identity, Meter};

/// How long a meter that refused something may be wrong, beside the time of the looks.
const PERIOD: Duration = Duration::from_secs(5);

/// Compares meters with the store until it is dropped.
pub async fn compare_quotas(
    authenticator: Arc<Authenticator>,
    locks: Arc<LockService>,
    records: Option<Arc<IdempotencyService>>,
) {
    loop {
        sleep(PERIOD).await;
        let identities: Vec<_> = authenticator.identities().iter().cloned().collect();
        for identity in &identities {
            for meter in identity.meters().filter(|meter| meter.has_refused()) {
                compare(identity, meter, &locks, records.as_deref()).await;
            }
        }
    }
}

async fn compare(
    identity: &Identity,
    meter: &Meter,
    locks: &LockService,
    records: Option<&IdempotencyService>,
) {
    let (held, used) = meter.counted();
    for (name, token) in held {
        let holding = locks.look(&name).await;
        if holding.is_ok_and(|holding| !holding.is_some_and(|it| may_be_of(&it, identity))) {
            meter.end_lock(name, token);
        }
    }
    let Some(records) = records else { return };
    for key in used {
        if let Ok(view) = records.find(&key).await {
            meter.see_record(&key, view.as_ref());
        }
    }
}

/// Whether one of the holders is this identity, as far as they are told.
fn may_be_of(holding: &Holding, identity: &Identity) -> bool {
    let name = identity.name.as_str();
    let is_own = |owner: &Owner| owner.as_str().split(": ").next() == Some(name);
    let mut told = std::iter::once(&*holding.first).chain(&holding.others);
    holding.count > 1 + holding.others.len()
        || told.any(|holder| holder.owner.as_ref().is_some_and(is_own))
}
