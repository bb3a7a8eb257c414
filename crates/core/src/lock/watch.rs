//! Watching a lock: a task that turns hints and looks into a stream of events.
//!
//! A watch has two sources: the hints of the store, in order, and a look every second and when the
//! lease that is known should be over, because no store reports an expiry and hints get lost. Each may
//! be older than what the other has reported. Fencing tokens rise, so [`WatchCursor`] tells by them
//! what is news, and what repeats or is older than what it knows. When hints were missed for certain,
//! the client reads `Lagged` and a new snapshot.
//!
//! Invariant: the cursor never reports an event twice, and never one that contradicts a later one. It
//! is tested below; the test `watch` holds the task over HTTP.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{FencingToken, Holder, LockName, LockService};
use crate::store::{Change, Hint, Hints, StoreError, Topic};

/// How many events may wait for their reader.
const EVENTS: usize = 16;
/// How often to look without a hint, since hints may get lost.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two looks.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// How much later than a store says a lease has surely ended: stores count milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);
/// By how much two accounts of the same end may differ: a store may estimate the clock of its engine. It is
/// below the shortest TTL, by which a renewal moves the end.
const SLACK: Duration = Duration::from_millis(50);

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

/// What a look at a lock found, and between which moments it was taken.
#[derive(Debug)]
struct Observation {
    holder: Option<Holder>,
    asked: Instant,
    answered: Instant,
}

/// What the watchers of a lock know of it.
///
/// The reports of a store and of looks may arrive in another order than the changes happened.
/// Fencing tokens rise, so the cursor sees by them which report is older than what it knows.
#[derive(Debug)]
struct WatchCursor {
    held: Option<KnownLease>,
    /// The largest fencing token reported.
    last: FencingToken,
}

#[derive(Debug)]
struct KnownLease {
    holder: Holder,
    /// It ends between these two.
    earliest: Instant,
    latest: Instant,
    /// Whether a hint says so, which may have been long on its way: then it may end earlier still.
    is_by_hint: bool,
}

impl WatchCursor {
    /// The cursor after a first look, and the snapshot to report.
    fn new(look: Observation) -> (Self, WatchEvent) {
        let snapshot = WatchEvent::Snapshot(look.holder.clone());
        let last = look.holder.as_ref().map(|holder| holder.fencing_token).unwrap_or_default();
        let held = look.holder.map(|holder| KnownLease::new(holder, look.asked, look.answered));
        (Self { held, last }, snapshot)
    }

    /// When the known lease has surely ended, unless the holder renews it.
    fn ends(&self) -> Option<Instant> {
        self.held.as_ref().map(|lease| lease.latest + ROUNDING)
    }

    /// The store says that the lock was granted.
    fn acquired(&mut self, holder: Holder, now: Instant) -> Vec<WatchEvent> {
        if holder.fencing_token <= self.last {
            return Vec::new();
        }
        self.is_held(KnownLease::by_hint(holder, now), now)
    }

    /// The store says that a lease was renewed, which may be less than a look could tell.
    fn renewed(&mut self, holder: Holder, now: Instant) -> Vec<WatchEvent> {
        match &mut self.held {
            Some(known) if known.holder.fencing_token == holder.fencing_token => {
                *known = KnownLease::by_hint(holder.clone(), now);
                vec![WatchEvent::Renewed(holder)]
            }
            _ => self.is_held(KnownLease::by_hint(holder, now), now),
        }
    }

    /// The store reports that a grant was released or withdrawn.
    fn released(&mut self, fencing_token: FencingToken, now: Instant) -> Vec<WatchEvent> {
        if fencing_token < self.last {
            return Vec::new();
        }
        let known = fencing_token == self.last;
        self.last = fencing_token;
        match self.held.take() {
            Some(lease) if known => vec![WatchEvent::Released(lease.holder)],
            lease => lease.into_iter().map(|lease| lease.over(now)).collect(),
        }
    }

    /// A look was taken.
    fn looked(&mut self, look: Observation) -> Vec<WatchEvent> {
        match look.holder {
            Some(holder) => {
                self.is_held(KnownLease::new(holder, look.asked, look.answered), look.answered)
            }
            None => self.held.take().into_iter().map(|lease| lease.over(look.answered)).collect(),
        }
    }

    fn is_held(&mut self, lease: KnownLease, now: Instant) -> Vec<WatchEvent> {
        let (fencing_token, holder) = (lease.holder.fencing_token, lease.holder.clone());
        if fencing_token == self.last {
            return match &mut self.held {
                Some(known) if lease.is_another_end(known) => {
                    *known = lease;
                    vec![WatchEvent::Renewed(holder)]
                }
                Some(known) if known.is_by_hint => {
                    *known = lease;
                    Vec::new()
                }
                // An event that is reported already, or a late one of a grant that is over.
                _ => Vec::new(),
            };
        }
        if fencing_token < self.last {
            return Vec::new();
        }
        self.last = fencing_token;
        let before = self.held.replace(lease).map(|lease| lease.over(now));
        before.into_iter().chain([WatchEvent::Acquired(holder)]).collect()
    }
}

impl KnownLease {
    fn new(holder: Holder, asked: Instant, answered: Instant) -> Self {
        let (earliest, latest) = (asked + holder.expires_in, answered + holder.expires_in);
        Self { holder, earliest, latest, is_by_hint: false }
    }

    fn by_hint(holder: Holder, now: Instant) -> Self {
        Self { is_by_hint: true, ..Self::new(holder, now, now) }
    }

    fn is_another_end(&self, known: &Self) -> bool {
        let is_earlier = !known.is_by_hint && self.latest + SLACK < known.earliest;
        is_earlier || self.earliest > known.latest + SLACK
    }

    /// The end of the lease by `now`, when the store reported none.
    fn over(self, now: Instant) -> WatchEvent {
        if now + SLACK >= self.earliest {
            WatchEvent::Expired(self.holder)
        } else {
            WatchEvent::Released(self.holder)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockName;

    fn holder(fencing_token: u64, millis: u64) -> Holder {
        Holder {
            name: LockName::parse("a").unwrap(),
            owner: None,
            fencing_token: FencingToken::new(fencing_token),
            acquired_at_millis: 0,
            expires_in: Duration::from_millis(millis),
            waiting: 0,
        }
    }

    fn names(events: &[WatchEvent]) -> Vec<(&'static str, u64)> {
        let name = |event: &WatchEvent| match event {
            WatchEvent::Acquired(holder) => ("acquired", holder.fencing_token.get()),
            WatchEvent::Renewed(holder) => ("renewed", holder.fencing_token.get()),
            WatchEvent::Released(holder) => ("released", holder.fencing_token.get()),
            WatchEvent::Expired(holder) => ("expired", holder.fencing_token.get()),
            other => panic!("{other:?}"),
        };
        events.iter().map(name).collect()
    }

    fn look(holder: Option<Holder>, asked: Instant, answered: Instant) -> Observation {
        Observation { holder, asked, answered }
    }

    #[test]
    fn a_look_that_took_long_is_no_renewal() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let (mut cursor, _) = WatchCursor::new(look(Some(holder(1, 1000)), now, after(1)));
        // Asked at 100, taken by the store at 101, answered at 400.
        let slow = look(Some(holder(1, 899)), after(100), after(400));
        assert_eq!(names(&cursor.looked(slow)), []);
        let renewed = look(Some(holder(1, 999)), after(500), after(501));
        assert_eq!(names(&cursor.looked(renewed)), [("renewed", 1)]);
    }

    #[test]
    fn hint_that_was_long_on_its_way_is_no_renewal() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let (mut cursor, _) = WatchCursor::new(look(None, now, now));
        // Granted at 0, and heard of at 100.
        assert_eq!(names(&cursor.acquired(holder(1, 1000), after(100))), [("acquired", 1)]);
        let exact = look(Some(holder(1, 800)), after(199), after(201));
        assert_eq!(names(&cursor.looked(exact)), []);
        let shortened = look(Some(holder(1, 400)), after(299), after(301));
        assert_eq!(names(&cursor.looked(shortened)), [("renewed", 1)]);
    }

    #[test]
    fn what_nobody_said_is_known_by_the_time() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let (mut cursor, _) = WatchCursor::new(look(Some(holder(1, 1000)), now, now));
        assert_eq!(names(&cursor.looked(look(None, after(500), after(500)))), [("released", 1)]);
        assert_eq!(names(&cursor.acquired(holder(2, 100), after(600))), [("acquired", 2)]);
        assert_eq!(names(&cursor.looked(look(None, after(701), after(701)))), [("expired", 2)]);
        assert_eq!(names(&cursor.acquired(holder(3, 100), after(800))), [("acquired", 3)]);
        let taken_over = cursor.acquired(holder(5, 100), after(840));
        assert_eq!(names(&taken_over), [("released", 3), ("acquired", 5)]);
        let taken_over = cursor.acquired(holder(6, 100), after(940));
        assert_eq!(names(&taken_over), [("expired", 5), ("acquired", 6)]);
    }

    #[test]
    fn what_is_said_late_is_not_told_again() {
        let now = Instant::now();
        let (mut cursor, _) = WatchCursor::new(look(Some(holder(2, 1000)), now, now));
        assert_eq!(names(&cursor.released(FencingToken::new(1), now)), []);
        assert_eq!(names(&cursor.acquired(holder(1, 5000), now)), []);
        assert_eq!(names(&cursor.acquired(holder(2, 1000), now)), []);
        assert_eq!(names(&cursor.renewed(holder(2, 1000), now)), [("renewed", 2)]);
        assert_eq!(names(&cursor.looked(look(None, now, now))), [("released", 2)]);
        assert_eq!(names(&cursor.renewed(holder(2, 5000), now)), []);
        assert_eq!(names(&cursor.released(FencingToken::new(2), now)), []);
        assert_eq!(names(&cursor.acquired(holder(3, 1000), now)), [("acquired", 3)]);
    }
}
