use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::seen::{Look, Seen};
use super::{Change, Changes, Holder, LockName, LockService, StoreError};

/// How many events may wait for whoever reads them.
const EVENTS: usize = 16;
/// How often to look when nothing is said, since what a store says may get lost.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two looks.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// What happens to a lock, as everybody may know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// How it stands, as the first event and after [`WatchEvent::Lagged`].
    Snapshot(Option<Holder>),
    /// It is held by another grant.
    Acquired(Holder),
    /// Its lease goes on.
    Renewed(Holder),
    /// It was given back.
    Released(Holder),
    /// Its lease is over.
    Expired(Holder),
    /// Events may be missing. How the lock stands follows.
    Lagged,
    /// The service shuts down. Nothing follows.
    Closing,
}

impl LockService {
    /// Tells what happens to a lock until the receiver is dropped or `leaving` is cancelled.
    ///
    /// Whoever is slow to read costs a few events, and is told that it missed the others.
    ///
    /// # Errors
    ///
    /// The store could not find out how the lock stands.
    pub async fn watch(
        self: &Arc<Self>,
        name: LockName,
        leaving: CancellationToken,
    ) -> Result<mpsc::Receiver<WatchEvent>, StoreError> {
        // Taken before looking, or a change in between would go unheard.
        let changes = self.store.changes(&name);
        let (seen, snapshot) = Seen::new(self.look(&name).await?);
        let (events, receiver) = mpsc::channel(EVENTS);
        let service = Arc::clone(self);
        let watching = Watching { service, name, changes, seen, events };
        self.streams.spawn(watching.run(snapshot, leaving));
        Ok(receiver)
    }

    async fn look(&self, name: &LockName) -> Result<Look, StoreError> {
        let asked = Instant::now();
        Ok(Look { holder: self.get(name).await?, asked, answered: Instant::now() })
    }
}

/// The task behind one who watches.
struct Watching {
    service: Arc<LockService>,
    name: LockName,
    changes: Changes,
    seen: Seen,
    events: mpsc::Sender<WatchEvent>,
}

impl Watching {
    async fn run(mut self, snapshot: WatchEvent, leaving: CancellationToken) {
        let gone = self.events.clone();
        // There is room for the last event whatever was not read.
        let Ok(last) = self.events.clone().reserve_owned().await else { return };
        tokio::select! {
            biased;
            () = gone.closed() => {}
            () = leaving.cancelled() => drop(last.send(WatchEvent::Closing)),
            _ = self.tell_all(snapshot) => {}
        }
    }

    /// Tells one event after the other. While nobody reads, what is said of the lock piles up in a
    /// place that is bounded, and then counts as missed.
    async fn tell_all(&mut self, snapshot: WatchEvent) -> Result<(), Gone> {
        self.events.send(snapshot).await?;
        let mut next_look = self.next_look(Instant::now());
        loop {
            let happened = tokio::select! {
                biased;
                Some(change) = self.changes.next() => match change {
                    Change::Acquired(holder) => self.seen.acquired(holder, Instant::now()),
                    Change::Renewed(holder) => self.seen.renewed(holder, Instant::now()),
                    Change::Released(fence) => self.seen.released(fence, Instant::now()),
                    Change::Missed => self.look_anew().await?,
                },
                looked = look_at(&self.service, &self.name, next_look) => match looked {
                    Ok(look) => self.seen.looked(look),
                    Err(error) => {
                        tracing::debug!(%error, "a lock that is watched cannot be looked at");
                        next_look = Instant::now() + LOOK;
                        continue;
                    }
                },
            };
            for event in happened {
                self.events.send(event).await?;
            }
            next_look = self.next_look(Instant::now());
        }
    }

    /// Begins again after something was missed.
    async fn look_anew(&mut self) -> Result<Vec<WatchEvent>, Gone> {
        self.events.send(WatchEvent::Lagged).await?;
        loop {
            // What is said until then is older than the look, or told again by it.
            match self.service.look(&self.name).await {
                Ok(look) => {
                    let (seen, snapshot) = Seen::new(look);
                    self.seen = seen;
                    return Ok(vec![snapshot]);
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Nobody says that a lease has expired.
    fn next_look(&self, now: Instant) -> Instant {
        let expiry = self.seen.ends().map_or(now + LOOK, |ends| ends.max(now + MIN_PAUSE));
        expiry.min(now + LOOK)
    }
}

async fn look_at(service: &LockService, name: &LockName, at: Instant) -> Result<Look, StoreError> {
    sleep_until(at).await;
    service.look(name).await
}

type Gone = mpsc::error::SendError<WatchEvent>;
