//! The steps of all parties in a campaign of keys, and the choice of the step for a kill.
//!
//! Goal: a kill comes between any two steps, on a fast machine as on a slow one.
//!
//! Method: every party passes each of its steps here. The party at the chosen step waits until the
//! kill is done, so its next step comes after the kill. `reach_every_step` in `mod.rs` runs
//! campaigns until kills have met each kind of step.

use std::sync::atomic::{AtomicU64, Ordering};

use keylatch_testkit::soon;
use tokio::sync::{Notify, watch};

/// No kill is due.
const NEVER: u64 = u64::MAX;

/// Counts the steps of all parties, and picks the step at which an instance is killed.
#[derive(Debug)]
pub(super) struct Steps {
    passed: watch::Sender<u64>,
    /// The step at which the next kill comes.
    due: AtomicU64,
    is_due: Notify,
    kills: watch::Sender<u64>,
}

impl Steps {
    pub(super) fn new() -> Self {
        let (passed, kills) = Default::default();
        Self { passed, due: AtomicU64::new(NEVER), is_due: Notify::new(), kills }
    }

    /// One more step. If a kill is due at it, the step is over when the kill is.
    pub(super) async fn pass(&self) {
        let mut kills = self.kills.subscribe();
        let mut passed = 0;
        self.passed.send_modify(|steps| {
            *steps += 1;
            passed = *steps;
        });
        let due = self.due.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |due| {
            (due <= passed).then_some(NEVER)
        });
        if due.is_ok() {
            self.is_due.notify_one();
            soon("the kill", kills.changed()).await.expect("the campaign continues");
        }
    }

    /// The number of the last step; sequence numbers of what clients send and read.
    pub(super) fn now(&self) -> u64 {
        *self.passed.borrow()
    }

    /// Waits for so many more steps.
    pub(super) async fn after(&self, steps: u64) {
        let until = self.now() + steps;
        let passed = self.passed.subscribe().wait_for(|passed| *passed >= until).await.map(drop);
        passed.expect("the campaign continues");
    }

    /// Waits for the step at which a kill is due, so many steps from now.
    pub(super) async fn kill_after(&self, steps: u64) {
        self.due.store(self.now() + steps, Ordering::SeqCst);
        self.is_due.notified().await;
    }

    /// Lets the step continue at which an instance was to be killed.
    pub(super) fn killed(&self) {
        self.kills.send_modify(|kills| *kills += 1);
    }

    /// Kills no more.
    pub(super) fn spare(&self) {
        self.due.store(NEVER, Ordering::SeqCst);
        self.killed();
    }
}
