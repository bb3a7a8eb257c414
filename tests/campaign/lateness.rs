//! By how much the machine is late, which keylatch has no part in.
//!
//! Goal: no campaign is red because of other work. Method: a task measures how late a short pause
//! ends. A bound of a campaign is that many [`HOPS`] longer, so it is as strict as it can be on an
//! idle machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use crate::locks::pass;

/// How often a machine that is late is late in one request.
const HOPS: u32 = 16;
const PAUSE: Duration = Duration::from_millis(5);

/// Watches how late the machine is, for as long as it is there.
#[derive(Debug)]
pub(super) struct Lateness {
    micros: Arc<AtomicU64>,
    _watching: AbortOnDropHandle<()>,
}

impl Lateness {
    pub(super) fn watch() -> Self {
        let micros = Arc::<AtomicU64>::default();
        let most = Arc::clone(&micros);
        let watching = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                pass(PAUSE).await;
                let late = begun.elapsed().saturating_sub(PAUSE);
                most.fetch_max(late.as_micros() as u64, Ordering::Relaxed);
            }
        });
        Self { micros, _watching: AbortOnDropHandle::new(watching) }
    }

    /// By how much it was late at most.
    pub(super) fn most(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    /// How much longer a request may have taken.
    pub(super) fn of_request(&self) -> Duration {
        self.most() * HOPS
    }
}
