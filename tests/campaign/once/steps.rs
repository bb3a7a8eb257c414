//! The steps of all parties in a campaign of keys, and the choice of the step for a kill.
//!
//! Goal: a kill comes between any two steps, on a fast machine as on a slow one.
//!
//! Method: every party passes each of its steps here. The party at the chosen step waits until the
//! kill is done, so its next step comes after the kill. A step wakes only those who wait for it.
//! `reach_every_step` in `mod.rs` runs campaigns until kills have met each kind of step.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keylatch_testkit::soon;
use tokio::sync::{Notify, oneshot, watch};

/// Counts the steps of all parties, and picks the step at which an instance is killed.
#[derive(Debug, Default)]
pub(super) struct Steps {
    count: Mutex<Count>,
    is_due: Notify,
    kills: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Count {
    passed: u64,
    /// The step at which the next kill comes.
    due: Option<u64>,
    /// Those who wait for a step, by its number.
    waiting: BTreeMap<u64, Vec<oneshot::Sender<()>>>,
}

impl Steps {
    /// One more step. If a kill is due at it, the step is over when the kill is.
    pub(super) async fn pass(&self) {
        let mut kills = self.kills.subscribe();
        if self.count().pass() {
            self.is_due.notify_one();
            soon("the kill", kills.changed()).await.expect("the campaign continues");
        }
    }

    /// The number of the last step; sequence numbers of what clients send and read.
    pub(super) fn now(&self) -> u64 {
        self.count().passed
    }

    /// Waits for so many more steps.
    pub(super) async fn after(&self, steps: u64) {
        let (sender, passed) = oneshot::channel();
        {
            let mut count = self.count();
            let until = count.passed + steps.max(1);
            count.waiting.entry(until).or_default().push(sender);
        }
        passed.await.expect("the campaign continues");
    }

    /// Waits for the step at which a kill is due, so many steps from now.
    pub(super) async fn kill_after(&self, steps: u64) {
        {
            let mut count = self.count();
            count.due = Some(count.passed + steps);
        }
        self.is_due.notified().await;
    }

    /// Lets the step continue at which an instance was to be killed.
    pub(super) fn killed(&self) {
        self.kills.send_modify(|kills| *kills += 1);
    }

    /// Kills no more.
    pub(super) fn spare(&self) {
        self.count().due = None;
        self.killed();
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Count {
    /// Whether a kill is due at the step.
    fn pass(&mut self) -> bool {
        self.passed += 1;
        while let Some(first) = self.waiting.first_entry().filter(|one| *one.key() <= self.passed) {
            for one in first.remove() {
                // One that has left does not wait any more.
                let _ = one.send(());
            }
        }
        self.due.take_if(|due| *due <= self.passed).is_some()
    }
}
