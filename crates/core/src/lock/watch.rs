//! Watching a lock: a task that turns hints and looks into a stream of events.
//!
//! A watch has two sources: the hints of the store, in order, and a look every second and when the
//! lease that is known should be over, because no store reports an expiry and hints get lost. Each may
//! be older than what the other has reported; [`WatchCursor`] tells news from repetition. When hints
//! were missed for certain, the client reads `Lagged` and a new snapshot. The test `watch` holds it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::cursor::{Observation, WatchCursor};
use super::{Holder, LockName, LockService};
use crate::store::{Change, Hint, Hints, StoreError, Topic};

/// How many events may wait for their reader.
const EVENTS: usize = 16;
/// How often to look without a hint, since hints may get lost.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two looks.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// What happens to a lock, as any client may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// How it stands, as the first event and after [`WatchEvent::Lagged`].
    Snapshot(Option<Holder>),
    /// It is held by another grant.
    Acquired(Holder),
    /// Its lease was renewed.
    Renewed(Holder),
    /// It was released or withdrawn.
    Released(Holder),
    /// Its lease expired.
    Expired(Holder),
    /// Events may be missing. How the lock stands follows.
    Lagged,
    /// The service shuts down. Nothing follows.
    Closing,
}

impl LockService {
    /// Sends what happens to a lock until the receiver is dropped or `leaving` is cancelled.
    ///
    /// A reader that is slow costs a few events, and reads that it missed the others.
    ///
    /// # Errors
    ///
    /// The store could not find out how the lock stands.
    pub async fn watch(
        self: &Arc<Self>,
        name: LockName,
        leaving: CancellationToken,
    ) -> Result<mpsc::Receiver<WatchEvent>, StoreError> {
        // Before looking, or a change in between would go unheard.
        let hints = self.store.subscribe(Topic::Changes(name.clone()));
        let (cursor, snapshot) = WatchCursor::new(self.observe(&name).await?);
        let (events, receiver) = mpsc::channel(EVENTS);
        let service = Arc::clone(self);
        let task = WatchTask { service, name, hints, cursor, events };
        self.streams.spawn(task.run(snapshot, leaving));
        Ok(receiver)
    }

    async fn observe(&self, name: &LockName) -> Result<Observation, StoreError> {
        let asked = Instant::now();
        Ok(Observation { holder: self.look(name).await?, asked, answered: Instant::now() })
    }
}

/// The task behind one watch.
struct WatchTask {
    service: Arc<LockService>,
    name: LockName,
    hints: Hints,
    cursor: WatchCursor,
    events: mpsc::Sender<WatchEvent>,
}

impl WatchTask {
    async fn run(mut self, snapshot: WatchEvent, leaving: CancellationToken) {
        let gone = self.events.clone();
        // There is room for the last event whatever was not read.
        let Ok(last) = self.events.clone().reserve_owned().await else { return };
        tokio::select! {
            biased;
            () = gone.closed() => {}
            () = leaving.cancelled() => drop(last.send(WatchEvent::Closing)),
            _ = self.send_all(snapshot) => {}
        }
    }

    /// Sends one event after the other. While the client does not read, hints wait in a bounded
    /// channel of the store, and count as missed once it is full.
    async fn send_all(&mut self, snapshot: WatchEvent) -> Result<(), Gone> {
        self.events.send(snapshot).await?;
        let mut next_look = self.next_look(Instant::now());
        loop {
            let happened = tokio::select! {
                biased;
                Some(hint) = self.hints.next() => match hint {
                    Hint::Changed(change) => self.advance(change),
                    Hint::Missed => self.restart().await?,
                    Hint::Wakeup => Vec::new(),
                },
                looked = look_at(&self.service, &self.name, next_look) => match looked {
                    Ok(look) => self.cursor.looked(look),
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

    /// What a change is news of.
    fn advance(&mut self, change: Change) -> Vec<WatchEvent> {
        let now = Instant::now();
        match change {
            Change::Acquired(holder) => self.cursor.acquired(holder, now),
            Change::Renewed(holder) => self.cursor.renewed(holder, now),
            Change::Released(fencing_token) => self.cursor.released(fencing_token, now),
        }
    }

    /// Begins again after some hints were missed.
    async fn restart(&mut self) -> Result<Vec<WatchEvent>, Gone> {
        self.events.send(WatchEvent::Lagged).await?;
        loop {
            // A hint until then is older than the look, or repeated by it.
            match self.service.observe(&self.name).await {
                Ok(look) => {
                    let (cursor, snapshot) = WatchCursor::new(look);
                    self.cursor = cursor;
                    return Ok(vec![snapshot]);
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// No store reports that a lease has expired.
    fn next_look(&self, now: Instant) -> Instant {
        let expiry = self.cursor.ends().map_or(now + LOOK, |ends| ends.max(now + MIN_PAUSE));
        expiry.min(now + LOOK)
    }
}

async fn look_at(
    service: &LockService,
    name: &LockName,
    at: Instant,
) -> Result<Observation, StoreError> {
    sleep_until(at).await;
    service.observe(name).await
}

type Gone = mpsc::error::SendError<WatchEvent>;
