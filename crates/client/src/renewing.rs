use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::acquire::Shared;
use crate::claim::{Key, Unrenewed, renew};
use crate::clock::Moment;
use keylatch_core::lock::Ttl;
use keylatch_core::watchdog::notice;

/// The longest pause between two tries of a renewal.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// How a lease stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is renewed as it should be.
    Held,
    /// It is lost, or will be before it can be renewed.
    Lost(Lost),
}

/// Why a lease is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// The service says that nobody holds the lock.
    NotHeld,
    /// The service says that somebody else holds the lock.
    TakenOver,
    /// It could not be renewed, and its validity is about to end. Says why, if there was an answer.
    Unrenewed(String),
    /// This process was paused, and its validity ended meanwhile.
    Paused,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.write_str("the lock is held"),
            Self::Lost(lost) => lost.fmt(f),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHeld => f.write_str("the lease has ended: nobody holds the lock"),
            Self::TakenOver => f.write_str("the lease has ended: somebody else holds the lock"),
            Self::Unrenewed(why) => write!(f, "the lease could not be renewed in time: {why}"),
            Self::Paused => f.write_str("the lease ended while this process was paused"),
        }
    }
}

/// The task that renews a lease at each third of its TTL.
pub(crate) struct Renewing {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: Arc<Key>,
    pub(crate) ttl: Ttl,
    /// When the validity ends.
    pub(crate) until: watch::Sender<Moment>,
    pub(crate) standing: watch::Sender<Standing>,
    pub(crate) lost: CancellationToken,
}

impl Renewing {
    /// Renews until the lease is lost, and tells.
    pub(crate) async fn run(self) {
        let lost = self.renew_until_lost().await;
        self.standing.send_replace(Standing::Lost(lost));
        self.lost.cancel();
    }

    async fn renew_until_lost(&self) -> Lost {
        let ttl = self.ttl.get();
        // A third of the TTL after the grant, if all of it was left then, and else earlier.
        let (mut next, mut failure) = (*self.until.borrow() - ttl * 2 / 3, None);
        loop {
            let until = *self.until.borrow();
            let give_up = until - notice(ttl);
            next.min(give_up).reached().await;
            let now = Moment::now();
            if now >= until {
                return failure.map_or(Lost::Paused, Lost::Unrenewed);
            }
            if now >= give_up {
                return Lost::Unrenewed(failure.unwrap_or_else(|| "there was no time".to_owned()));
            }
            let limit = (give_up - now).min(ttl / 3).min(self.shared.limit);
            match renew(&self.shared, &self.key, self.ttl, limit).await {
                Ok(lease) => {
                    let renewed = now + lease.valid_from_sending();
                    self.until.send_replace(until.max(renewed));
                    (next, failure) = (now + ttl / 3, None);
                }
                Err(Unrenewed::NotHeld) => return Lost::NotHeld,
                Err(Unrenewed::TakenOver) => return Lost::TakenOver,
                Err(Unrenewed::Failed { after, error }) => {
                    // What the service asks for must leave time for some more tries.
                    let after = after.unwrap_or_default().min(ttl / 10);
                    let pause = (ttl / 20).min(MAX_PAUSE).max(after);
                    (next, failure) = (Moment::now() + pause, Some(error.to_string()));
                }
            }
        }
    }
}
