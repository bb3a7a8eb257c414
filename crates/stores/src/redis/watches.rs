//! Which locks are watched, here and by other processes.
//!
//! Only commands on watched locks publish their changes, so that unwatched locks cost nothing. Each
//! process announces the locks that it watches, on the channel on which changes are published, and
//! every process notes them for a while.
//!
//! Invariant: a lock that a process watches is noted by all processes within one announcement, and
//! stays so over one that is lost ([`WATCHED_FOR`] is more than two [`ANNOUNCE_PERIOD`]s). Tested by the
//! tests of watches across instances.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::locks::ScriptReply;
use super::script::{Keys, Scripts};
use super::topology::Topology;
use crate::changes::ChangeWatchers;
use keylatch_core::lock::LockName;
use keylatch_core::store::{Change, Hints};

/// How often a process announces the locks that it watches.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(2);
/// For how long a lock counts as watched after an announcement: one announcement may be lost.
const WATCHED_FOR: Duration = Duration::from_secs(5);
/// How many locks one command announces.
const ANNOUNCE_BATCH: usize = 500;

/// The locks that are watched, here and by other processes.
#[derive(Debug, Default)]
pub(super) struct Watches {
    here: ChangeWatchers,
    /// How many locks are below, read without the mutex.
    count: AtomicUsize,
    /// The locks that any process watches, and until when that counts.
    anywhere: Mutex<HashMap<LockName, Instant>>,
    /// Has the announcement made at once.
    announce_now: Notify,
}

impl Watches {
    /// The changes of `name` from now on.
    pub(super) fn subscribe(&self, name: LockName) -> Hints {
        let hints = self.here.subscribe(name.clone());
        self.note_watched(name);
        self.announce_now.notify_one();
        hints
    }

    /// Whether a command on `name` publishes its change.
    pub(super) fn is_watched(&self, name: &LockName) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.anywhere().get(name).is_some_and(|until| *until > Instant::now())
    }

    /// Notes that a process watches `name`.
    pub(super) fn note_watched(&self, name: LockName) {
        let mut anywhere = self.anywhere();
        anywhere.insert(name, Instant::now() + WATCHED_FOR);
        self.count.store(anywhere.len(), Ordering::Release);
    }

    /// Reports a change of `name` to its watchers here.
    pub(super) fn report(&self, name: &LockName, change: Change) {
        self.here.report(name, change);
    }

    /// Reports to all watchers here that messages may have been lost.
    pub(super) fn report_missed(&self) {
        self.here.report_missed();
    }

    /// Announces the locks that are watched here, for ever.
    pub(super) async fn announce(
        self: Arc<Self>,
        topology: Arc<Topology>,
        keys: Arc<Keys>,
        scripts: Arc<Scripts>,
    ) {
        loop {
            // A new watch is announced at once.
            let _ = timeout(ANNOUNCE_PERIOD, self.announce_now.notified()).await;
            self.forget_expired();
            for names in self.here.names().chunks(ANNOUNCE_BATCH) {
                let mut call = scripts.announce.prepare_invoke();
                call.arg(keys.change_channel());
                for name in names {
                    call.arg(keys.lock(name.bucket(), name));
                }
                // The script has no keys, and every server passes on its messages.
                let any_bucket = names.first().map_or(0, LockName::bucket);
                if let Err(error) = topology.run::<ScriptReply>(any_bucket, &call).await {
                    tracing::debug!(%error, "watched locks could not be announced");
                }
            }
        }
    }

    fn forget_expired(&self) {
        let now = Instant::now();
        let mut anywhere = self.anywhere();
        anywhere.retain(|_, until| *until > now);
        self.count.store(anywhere.len(), Ordering::Release);
    }

    fn anywhere(&self) -> MutexGuard<'_, HashMap<LockName, Instant>> {
        self.anywhere.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
