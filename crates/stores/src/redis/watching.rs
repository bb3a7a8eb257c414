use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::reply::Reply;
use super::script::{Keys, Scripts};
use super::topology::Topology;
use crate::changes::Changes;
use keylatch_core::lock::LockName;
use keylatch_core::store::{Change, Hints};

/// How often it is said which locks are watched.
const SAY: Duration = Duration::from_secs(2);
/// For how long a lock counts as watched after that was said: one time may fail.
const HEARD: Duration = Duration::from_secs(5);
/// How many locks are announced by one command.
const BATCH: usize = 500;

/// Which locks are watched, here and by other processes.
///
/// Only the steps on those say what they change, so that where nobody watches nothing is published.
/// Every process says which ones it watches, on the channel on which it hears of them.
#[derive(Debug, Default)]
pub(super) struct Watching {
    here: Changes,
    /// How many there are below, to find without the lock that there are none.
    count: AtomicUsize,
    /// By whomever, and until when that counts.
    anywhere: Mutex<HashMap<LockName, Instant>>,
    more: Notify,
}

impl Watching {
    /// What is said of `name` from now on.
    pub(super) fn subscribe(&self, name: LockName) -> Hints {
        let hints = self.here.subscribe(name.clone());
        self.heard(name);
        self.more.notify_one();
        hints
    }

    /// Whether a step on `name` is to say what it changes.
    pub(super) fn is_watched(&self, name: &LockName) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.anywhere().get(name).is_some_and(|until| *until > Instant::now())
    }

    /// It was said that `name` is watched.
    pub(super) fn heard(&self, name: LockName) {
        let mut anywhere = self.anywhere();
        anywhere.insert(name, Instant::now() + HEARD);
        self.count.store(anywhere.len(), Ordering::Release);
    }

    /// It was said how `name` changed.
    pub(super) fn tell(&self, name: &LockName, change: Change) {
        self.here.report(name, change);
    }

    /// What was said for a while was not heard.
    pub(super) fn missed(&self) {
        self.here.report_missed();
    }

    /// Says for ever which locks are watched here.
    pub(super) async fn announce(
        self: Arc<Self>,
        topology: Arc<Topology>,
        keys: Arc<Keys>,
        scripts: Arc<Scripts>,
    ) {
        loop {
            // One that is watched from now on is said at once.
            let _ = timeout(SAY, self.more.notified()).await;
            self.forget();
            for names in self.here.names().chunks(BATCH) {
                let mut call = scripts.announce.prepare_invoke();
                call.arg(keys.changes());
                for name in names {
                    call.arg(keys.lock(name.bucket(), name));
                }
                // It has no keys, and every server passes on what is said.
                let anywhere = names.first().map_or(0, LockName::bucket);
                if let Err(error) = topology.run::<Reply>(anywhere, &call).await {
                    tracing::debug!(%error, "nobody is told which locks are watched");
                }
            }
        }
    }

    fn forget(&self) {
        let now = Instant::now();
        let mut anywhere = self.anywhere();
        anywhere.retain(|_, until| *until > now);
        self.count.store(anywhere.len(), Ordering::Release);
    }

    fn anywhere(&self) -> MutexGuard<'_, HashMap<LockName, Instant>> {
        self.anywhere.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
