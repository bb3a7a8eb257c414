//! Notices that another instance on the same store has a guard with other settings than this one.
//!
//! Settings such as `principal_header` tell keys apart. Where instances differ in them, one key
//! runs once at each, and nothing else shows it. So each instance holds a lock of keylatch's own
//! for each guard, shared with the others, whose label has a digest of each of these settings.
//!
//! Invariant: an instance that has ended counts for the TTL of its lock at most. A store within the
//! process has one instance, and no such locks. Tested in `tests/api/guard_settings.rs`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_axum::Guard;
use keylatch_core::lock::{AcquireRequest, Holding, Limit, LockError, LockService, Owner, Ttl};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::kept_lock::{KeptLock, digest};
use crate::metrics::Metrics;

/// How often the own locks are renewed, well within their TTL, and the labels of the others read.
const PERIOD: Duration = Duration::from_secs(5);
/// How long the release of the own locks may take at the end.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// The guards of this instance beside those of the others.
#[derive(Debug)]
pub(crate) struct GuardComparison {
    guards: Vec<ComparedGuard>,
    differing: Mutex<DifferingGuards>,
}

/// The settings that differ, by the path of the guard.
type DifferingGuards = BTreeMap<String, Vec<&'static str>>;

#[derive(Debug)]
struct ComparedGuard {
    path: String,
    /// Shared by all instances with a guard of this path.
    lock: KeptLock,
    digests: [(&'static str, String); 12],
}

impl GuardComparison {
    /// None of them differs until it is [followed](Self::follow).
    pub(crate) fn new(guards: &[Guard]) -> Result<Self, Error> {
        let guards = guards.iter().map(ComparedGuard::new).collect::<Result<_, _>>()?;
        Ok(Self { guards, differing: Mutex::default() })
    }

    /// The guards that another instance has otherwise.
    pub(crate) fn differing(&self) -> MutexGuard<'_, DifferingGuards> {
        self.differing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares them until the service closes, where the store may have other instances.
    pub(crate) async fn follow(
        &self,
        locks: &LockService,
        metrics: &Metrics,
        closing: &CancellationToken,
    ) {
        if locks.counts().held.is_some() {
            return;
        }
        let comparing = async {
            loop {
                for guard in &self.guards {
                    // What could not be found out stays as it was.
                    if let Ok(differing) = guard.compare(locks).await {
                        self.note(&guard.path, differing);
                    }
                }
                let differing = i64::try_from(self.differing().len()).unwrap_or(i64::MAX);
                metrics.differing_guards.set(differing);
                sleep(PERIOD).await;
            }
        };
        closing.run_until_cancelled(comparing).await;
        let kept = self.guards.iter().map(|guard| &guard.lock);
        let releases = kept.map(|lock| locks.leave(&lock.name, &lock.token, None));
        let _ = timeout(RELEASE_LIMIT, join_all(releases)).await;
    }

    fn note(&self, guard: &str, differing: Vec<&'static str>) {
        let (is_alike, settings) = (differing.is_empty(), differing.join(", "));
        let mut known = self.differing();
        if known.get(guard).map_or(is_alike, |known| *known == differing) {
            return;
        }
        if is_alike {
            known.remove(guard);
            tracing::info!(guard, "all instances on the store have this guard alike again");
        } else {
            known.insert(guard.to_owned(), differing);
            let message = "another instance on the store has this guard with other settings: a key may run once at each";
            tracing::error!(guard, settings, "{message}");
        }
    }
}

impl ComparedGuard {
    fn new(guard: &Guard) -> Result<Self, Error> {
        let lock = KeptLock::of_guard("guard", &guard.path)?;
        let digests = guard.shared_settings().map(|(name, value)| (name, digest(&value)));
        Ok(Self { path: guard.path.clone(), lock, digests })
    }

    /// The settings that another instance has otherwise, as the labels of the lock say, which it
    /// renews.
    async fn compare(&self, locks: &LockService) -> Result<Vec<&'static str>, LockError> {
        let label = self.digests.each_ref().map(|(_, digest)| &**digest).join(" ");
        let shared = |new| AcquireRequest {
            owner: Owner::parse(&label).ok().flatten(),
            limit: Limit::Shared,
            ..new
        };
        self.lock.keep(locks, Ttl::DEFAULT, shared).await?;
        let holding = locks.look(&self.lock.name).await?;
        let holders = holding.iter().flat_map(Holding::holders);
        let labels: Vec<&Owner> = holders.filter_map(|holder| holder.owner.as_ref()).collect();
        let differs = |place: usize, own: &str| {
            labels.iter().any(|label| label.as_str().split(' ').nth(place) != Some(own))
        };
        let digests = self.digests.iter().enumerate();
        let differing = digests.filter(|(place, (_, own))| differs(*place, own));
        Ok(differing.map(|(_, (name, _))| *name).collect())
    }
}
