//! Watching a lock: a task that turns hints and looks into a stream of events.
//!
//! A watch has two sources: the hints of the store, in order, and a look every second and when the
//! lease that is known should be over, because no store reports an expiry and hints get lost. Each
//! may be older than what the other has reported. [`WatchCursor`] tells by fencing tokens and slots
//! what is news, and what repeats or is older than what it knows. When hints were missed for
//! certain, the client reads `Lagged` and a new snapshot.
//!
//! Invariant: the cursor never reports an event twice, and never one that contradicts a later one.
//! It is tested below; the test `watch` holds the task over HTTP.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Change, FencingToken, Holder, HolderId, Holding, Limit, LockName, LockService};
use crate::store::{Hint, Hints, StoreError, Topic};

/// How many events may wait for their reader.
const EVENTS: usize = 16;
/// How often to look without a hint, since hints may get lost.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two looks.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// For how long changes gather before a watcher reads them together. The first after a pause is
/// read at once.
const GATHER: Duration = Duration::from_millis(10);
/// How much later than a store says a lease has surely ended: stores count milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);
/// By how much two accounts of the same end may differ: a store may estimate the clock of its
/// engine. It is below the shortest TTL, by which a renewal moves the end.
const SLACK: Duration = Duration::from_millis(50);

/// How many grants that are over a cursor remembers.
const OVER_MAX: usize = 2 * Limit::HOLDERS_MAX;

/// What happens to a lock, as any client may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// How it stands, as the first event and after [`WatchEvent::Lagged`].
    Snapshot(Option<Holding>),
    /// It is held by another grant, alone or beside others.
    Acquired(Holder),
    /// A lease was renewed.
    Renewed(Holder),
    /// A lease was broken: it ends, and cannot be renewed.
    Broken(Holder),
    /// A grant was released or withdrawn.
    Released(Holder),
    /// A lease expired.
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
        let hints = self.store.subscribe(Topic::Changes(name.clone())).peekable();
        let (cursor, snapshot) = WatchCursor::new(self.observe(&name).await?);
        let (events, receiver) = mpsc::channel(EVENTS);
        let service = Arc::clone(self);
        let task = WatchTask { service, name, hints, cursor, events };
        self.streams.spawn(task.run(snapshot, leaving));
        Ok(receiver)
    }

    async fn observe(&self, name: &LockName) -> Result<Observation, StoreError> {
        let asked = Instant::now();
        Ok(Observation { holding: self.look(name).await?, asked, answered: Instant::now() })
    }
}

/// The task behind one watch.
struct WatchTask {
    service: Arc<LockService>,
    name: LockName,
    hints: stream::Peekable<Hints>,
    cursor: WatchCursor,
    events: mpsc::Sender<WatchEvent>,
}

impl WatchTask {
    async fn run(mut self, snapshot: WatchEvent, leaving: CancellationToken) {
        let gone = self.events.clone();
        // There is room for the last event whatever was not read.
        let Ok(last) = self.events.clone().reserve_owned().await else { return };
        let is_leaving = tokio::select! {
            biased;
            () = gone.closed() => false,
            () = leaving.cancelled() => true,
            _ = self.send_all(snapshot) => false,
        };
        if is_leaving {
            // What has gathered until now, as far as there is room.
            let (happened, _) = self.gather();
            self.send_now(happened);
            last.send(WatchEvent::Closing);
        }
    }

    /// Sends one event after the other. While the client does not read, hints wait in a bounded
    /// channel of the store, and count as missed once it is full.
    async fn send_all(&mut self, snapshot: WatchEvent) -> Result<(), Gone> {
        self.events.send(snapshot).await?;
        let mut next_look = self.next_look(Instant::now());
        loop {
            tokio::select! {
                biased;
                true = has_come(&mut self.hints) => {
                    self.take_up().await?;
                    sleep(GATHER).await;
                }
                looked = look_at(&self.service, &self.name, next_look) => match looked {
                    Ok(look) => {
                        let happened = self.cursor.looked(look);
                        self.send(happened).await?;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "a lock that is watched cannot be looked at");
                        next_look = Instant::now() + LOOK;
                        continue;
                    }
                },
            }
            next_look = self.next_look(Instant::now());
        }
    }

    /// Sends what the hints that have come are news of.
    async fn take_up(&mut self) -> Result<(), Gone> {
        let turns = Arc::clone(&self.service.watch_turns);
        let turn = turns.acquire().await;
        let (happened, is_missed) = self.gather();
        let rest = self.send_now(happened);
        // The turn lasts until the task of the connection, which is next, has written them. It does
        // not wait for the client.
        yield_now().await;
        drop(turn);
        self.send(rest).await?;
        if is_missed {
            let happened = self.restart().await?;
            self.send(happened).await?;
        }
        Ok(())
    }

    /// What the hints that have come are news of, up to one that says that some were missed.
    fn gather(&mut self) -> (Vec<WatchEvent>, bool) {
        let mut happened = Vec::new();
        while let Some(hint) = self.hints.next().now_or_never().flatten() {
            match hint {
                Hint::Changed(change) => happened.extend(self.advance(change)),
                Hint::Missed => return (happened, true),
                Hint::Wakeup | Hint::Ended(..) => {}
            }
        }
        (happened, false)
    }

    /// Sends as many events as there is room for, and gives the others.
    fn send_now(&mut self, happened: Vec<WatchEvent>) -> IntoIter<WatchEvent> {
        let mut rest = happened.into_iter();
        while rest.len() > 0
            && let Ok(place) = self.events.try_reserve()
            && let Some(event) = rest.next()
        {
            place.send(event);
        }
        rest
    }

    async fn send(&mut self, happened: impl IntoIterator<Item = WatchEvent>) -> Result<(), Gone> {
        for event in happened {
            self.events.send(event).await?;
        }
        Ok(())
    }

    /// What a change is news of.
    fn advance(&mut self, change: Change) -> Vec<WatchEvent> {
        let now = Instant::now();
        match change {
            Change::Acquired(holder) => self.cursor.acquired(holder, now),
            Change::Renewed(holder) => self.cursor.renewed(holder, now),
            Change::Broken(holder) => self.cursor.broken(holder, now),
            Change::Released(id) => self.cursor.released(id),
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
                Err(_) => sleep(LOOK).await,
            }
        }
    }

    /// No store reports that a lease has expired.
    fn next_look(&self, now: Instant) -> Instant {
        let expiry = self.cursor.ends().map_or(now + LOOK, |ends| ends.max(now + MIN_PAUSE));
        expiry.min(now + LOOK)
    }
}

/// Waits until a hint has come, and leaves it there: what waits for a turn may be dropped. False
/// when none will.
async fn has_come(hints: &mut stream::Peekable<Hints>) -> bool {
    Pin::new(hints).peek().await.is_some()
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
    holding: Option<Holding>,
    asked: Instant,
    answered: Instant,
}

/// What the watchers of a lock know of it.
///
/// The reports of a store and of looks may arrive in another order than the changes happened. A
/// grant is known by its fencing token and its slot, and the cursor remembers which grants are
/// over, so it sees which report is older than what it knows.
#[derive(Debug, Default)]
struct WatchCursor {
    held: BTreeMap<HolderId, KnownLease>,
    /// The grants that are over, with when each was made. Those below `floor` are not here.
    over: BTreeMap<HolderId, u64>,
    /// Every grant with a smaller fencing token is over: a later one held the lock alone.
    floor: FencingToken,
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
        let snapshot = WatchEvent::Snapshot(look.holding.clone());
        let mut cursor = Self::default();
        cursor.looked(look);
        (cursor, snapshot)
    }

    /// When a known lease has surely ended, unless its holder renews it.
    fn ends(&self) -> Option<Instant> {
        self.held.values().map(|lease| lease.latest + ROUNDING).min()
    }

    /// The store says that the lock was granted.
    fn acquired(&mut self, holder: Holder, now: Instant) -> Vec<WatchEvent> {
        if self.held.contains_key(&holder.id()) {
            return Vec::new();
        }
        self.is_held(KnownLease::by_hint(holder, now), now)
    }

    /// The store says that a lease was renewed, which may be less than a look could tell.
    fn renewed(&mut self, holder: Holder, now: Instant) -> Vec<WatchEvent> {
        match self.held.get_mut(&holder.id()) {
            Some(known) => {
                *known = KnownLease::by_hint(holder.clone(), now);
                vec![WatchEvent::Renewed(holder)]
            }
            None => self.is_held(KnownLease::by_hint(holder, now), now),
        }
    }

    /// The store says that a lease was broken.
    fn broken(&mut self, holder: Holder, now: Instant) -> Vec<WatchEvent> {
        match self.held.get_mut(&holder.id()) {
            Some(known) if known.holder.broken.is_none() => {
                *known = KnownLease::by_hint(holder.clone(), now);
                vec![WatchEvent::Broken(holder)]
            }
            Some(_) => Vec::new(),
            None => self.is_held(KnownLease::by_hint(holder, now), now),
        }
    }

    /// The store reports that a grant was released or withdrawn.
    fn released(&mut self, id: HolderId) -> Vec<WatchEvent> {
        let lease = self.held.remove(&id);
        lease.map(|lease| WatchEvent::Released(self.forget(lease))).into_iter().collect()
    }

    /// A look was taken.
    fn looked(&mut self, look: Observation) -> Vec<WatchEvent> {
        let holders: Vec<_> = look.holding.into_iter().flat_map(Holding::into_holders).collect();
        let is_there = |id: &HolderId| holders.iter().any(|holder| holder.id() == *id);
        let gone: Vec<_> = self.held.keys().filter(|id| !is_there(id)).copied().collect();
        let mut events = self.are_over(&gone, look.answered);
        for holder in holders {
            let lease = KnownLease::new(holder, look.asked, look.answered);
            events.extend(self.is_held(lease, look.answered));
        }
        events
    }

    fn is_held(&mut self, lease: KnownLease, now: Instant) -> Vec<WatchEvent> {
        let (id, holder) = (lease.holder.id(), lease.holder.clone());
        if let Some(known) = self.held.get_mut(&id) {
            let is_broken = holder.broken.is_some() && known.holder.broken.is_none();
            if !is_broken && !lease.is_another_end(known) {
                if known.is_by_hint {
                    *known = lease;
                }
                return Vec::new();
            }
            *known = lease;
            let event = if is_broken { WatchEvent::Broken } else { WatchEvent::Renewed };
            return vec![event(holder)];
        }
        // A late event of a grant that is over. Its slot may have been given again since.
        let is_over = self.over.get(&id).is_some_and(|&made| holder.acquired_at_millis <= made);
        let is_alone = holder.limit == Limit::Exclusive;
        let least = if is_alone { self.last } else { self.floor };
        if id.fencing_token < least || is_over {
            return Vec::new();
        }
        self.last = self.last.max(id.fencing_token);
        let ended = self
            .held
            .iter()
            .filter(|(_, other)| is_alone || other.holder.limit == Limit::Exclusive);
        let ended: Vec<_> = ended.map(|(id, _)| *id).collect();
        let mut events = self.are_over(&ended, now);
        if is_alone {
            self.floor = id.fencing_token;
            self.over.retain(|id, _| id.fencing_token >= holder.fencing_token);
        }
        self.held.insert(id, lease);
        events.push(WatchEvent::Acquired(holder));
        events
    }

    /// The ends of grants of which the store reported none.
    fn are_over(&mut self, ids: &[HolderId], now: Instant) -> Vec<WatchEvent> {
        let leases: Vec<_> = ids.iter().filter_map(|id| self.held.remove(id)).collect();
        let events = leases.into_iter().map(|lease| {
            let has_expired = now + SLACK >= lease.earliest;
            let event = if has_expired { WatchEvent::Expired } else { WatchEvent::Released };
            event(self.forget(lease))
        });
        events.collect()
    }

    /// Notes that a grant is over.
    fn forget(&mut self, lease: KnownLease) -> Holder {
        self.over.insert(lease.holder.id(), lease.holder.acquired_at_millis);
        if self.over.len() > OVER_MAX {
            self.over.pop_first();
        }
        lease.holder
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
            limit: Limit::Exclusive,
            slot: 0,
            broken: None,
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
        Observation { holding: holder.map(Holding::by_one), asked, answered }
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
    fn expiry_without_a_hint_is_known_by_the_time() {
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
        assert_eq!(names(&cursor.released(holder(1, 0).id())), []);
        assert_eq!(names(&cursor.acquired(holder(1, 5000), now)), []);
        assert_eq!(names(&cursor.acquired(holder(2, 1000), now)), []);
        assert_eq!(names(&cursor.renewed(holder(2, 1000), now)), [("renewed", 2)]);
        assert_eq!(names(&cursor.looked(look(None, now, now))), [("released", 2)]);
        assert_eq!(names(&cursor.renewed(holder(2, 5000), now)), []);
        assert_eq!(names(&cursor.released(holder(2, 0).id())), []);
        assert_eq!(names(&cursor.acquired(holder(3, 1000), now)), [("acquired", 3)]);
    }
}
