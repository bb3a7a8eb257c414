//! The rules of a lock: what a command does to its state, as one pure function.
//!
//! [`LockState::step`] reads the states, a command and the moments, and nothing else, so that a
//! store which executes Rust runs it. A step is on one lock or several (`step.rs`); what one of
//! them does is here. Every timed thing is `since` plus a span, so that a state can be written down
//! and read on another clock without loss (`src/snapshot.rs`).
//!
//! There is one rule for locks of all kinds. A holder and a waiter have a [limit](Limit) each. A
//! lock goes to a waiter when those before it in the queue have room as well, and then no more hold
//! it than the smallest limit among them says. Invariants: no limit is ever exceeded, and no waiter
//! is passed by one that came later; no token holds a lock and waits for it; no two holders have
//! the same slot; a grant's fencing token is above that of every earlier grant that it cannot be
//! held together with. The differential tests hold every store to these rules.

mod step;

use std::sync::Arc;
use std::time::Duration;

use super::history::{BREAK_KEPT, Break, EndCause, GrantEnd, History};
use super::holders::{HolderState, Holders};
use super::queue::{QueueEntry, WaitQueue};
use super::{
    AcquireCommand, Attempt, BreakCommand, BreakReply, Change, Contention, Entries, Entry,
    EntryName, FencingToken, Holding, Lease, Limit, LockCommand, LockLoss, LockName, LockReply,
    Moment, ReleaseReply, TokenHash, Ttl,
};
use crate::entry::{self, Entry as _, Found};
use crate::snapshot::{self, SnapshotError};

/// How many holders of a lock a client reads that did not ask for the holders.
const HOLDERS_TOLD: usize = 10;

/// A lock that a token has got, or had.
struct Taken {
    lease: Lease,
    is_new: bool,
}

/// Why a token does not get a lock: what [`AcquireReply`](super::AcquireReply) says in more words.
enum Refusal {
    /// It is behind so many waiters, or others hold the lock.
    Busy(u64),
    /// It is behind so many waiters, and would not wait behind as many.
    Crowded(u64),
    /// It would have to be alone, and so many wait.
    NotAlone(u64),
    WaitEnded(Arc<Break>),
    Full,
}

/// What a store remembers of one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockState {
    holders: Holders,
    queue: WaitQueue,
    history: History,
}

impl entry::Entry for LockState {
    type Key = LockName;
    type Command = LockCommand;
    type Reply = LockReply;

    fn bucket(name: &LockName) -> u8 {
        name.bucket()
    }

    fn is_undo(command: &LockCommand) -> bool {
        matches!(command, LockCommand::Withdraw { .. })
    }

    fn step(found: &mut [Found<'_, Self>], command: &LockCommand) -> LockReply {
        step::step(found, command)
    }

    fn settle(&mut self, moment: &Moment) {
        if !self.is_stale(moment) {
            return;
        }
        let now = moment.now;
        self.queue.settle(now);
        self.history.settle(moment);
        let expired = self.holders.iter().filter(|holder| holder.has_expired(now));
        let mut expired: Vec<_> = expired.collect();
        // In the order in which they ended, however late this step sees it.
        expired.sort_by_key(|holder| holder.expires());
        let ends = expired.into_iter();
        self.history
            .extend(ends.map(|holder| holder.end(EndCause::Expiry, holder.expires(), moment)));
        self.holders.retain(|holder| !holder.has_expired(now));
    }

    fn is_stale(&self, moment: &Moment) -> bool {
        self.holders.summary().first_end.is_some_and(|end| end <= moment.now)
            || self.queue.is_stale(moment.now)
            || self.history.is_stale(moment)
    }

    fn ends(&self) -> impl Iterator<Item = Duration> {
        let queue = self.queue.entries().iter().map(QueueEntry::expires);
        let history = self.history.ends().iter().filter_map(GrantEnd::kept_until);
        self.holders().map(HolderState::expires).chain(queue).chain(history)
    }

    /// A lease that is broken is kept beyond its end, as a break of the history.
    fn kept_until(&self) -> Option<Duration> {
        let broken = self.holders().filter(|holder| holder.broken.is_some());
        let breaks = broken.map(|holder| holder.expires() + BREAK_KEPT);
        self.ends().chain(breaks).max()
    }

    fn map_times(&self, mut on_other: impl FnMut(Duration) -> Duration) -> Self {
        let mut holders = self.holders.clone();
        holders.change_all(|_| true, |holder| holder.since = on_other(holder.since));
        let entries = self.queue.entries().iter().cloned();
        let queue = entries.map(|entry| QueueEntry {
            since: on_other(entry.since),
            joined: on_other(entry.joined),
            ..entry
        });
        let queue = queue.collect();
        Self { holders, queue, history: self.history.map_times(on_other) }
    }

    fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && !self.history.keeps_lock()
    }

    fn fencing_token(&self) -> Option<FencingToken> {
        self.holders.summary().fencing_token
    }

    fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        let holders: Vec<_> = self.holders().collect();
        snapshot::encode(&(holders, self.queue.entries(), self.history.ends()))
    }

    fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let (holders, queue, ends): (Vec<HolderState>, Vec<QueueEntry>, Vec<GrantEnd>) =
            snapshot::decode(bytes)?;
        if !holders.is_sorted_by(|one, next| one.slot < next.slot) {
            return Err(SnapshotError::Malformed);
        }
        Ok(Self::new(holders, queue.into_iter().collect(), ends.into_iter().collect()))
    }
}

impl LockState {
    /// A state of these parts, as a snapshot has them: holders in the order of their slots.
    pub fn new(
        holders: impl IntoIterator<Item = HolderState>,
        queue: WaitQueue,
        history: History,
    ) -> Self {
        Self { holders: holders.into_iter().map(Arc::new).collect(), queue, history }
    }

    /// The holders by slot, their leases expired or not.
    pub fn holders(&self) -> impl ExactSizeIterator<Item = &HolderState> + Clone {
        self.holders.iter()
    }

    /// The waiters, expired entries included.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// How earlier grants ended that were not released.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The waiters that the lock is free for, first come first: each has room beside those before
    /// it.
    pub fn next_waiters(&self) -> impl Iterator<Item = &TokenHash> {
        // Most locks have no waiter, and then the holders are not looked through.
        let mut room = None;
        let is_turn =
            move |entry: &&QueueEntry| room.get_or_insert_with(|| self.room()).take(entry.limit);
        self.queue.entries().iter().take_while(is_turn).map(|entry| &entry.token)
    }

    /// How the lock changed for its watchers when it became `after` at `now`: what ended comes
    /// first.
    pub fn changes(&self, after: &Self, name: &LockName, now: Duration) -> Vec<Change> {
        let waiting = after.queue.len();
        let public = |holder: &HolderState| holder.public(name, waiting, now);
        let mut changes = Vec::new();
        for before in self.holders().filter(|holder| !holder.has_expired(now)) {
            match after.holders.find_grant(before) {
                None => {
                    if let Some(why) = after.history.find_break(&before.token) {
                        let broken = before.broken.clone().or_else(|| Some(Arc::clone(why)));
                        let holder = HolderState { broken, ..before.clone() };
                        changes.extend(
                            before.broken.is_none().then(|| Change::Broken(public(&holder))),
                        );
                    }
                    changes.push(Change::Released(before.id()));
                }
                Some(holder) if holder.broken.is_some() && before.broken.is_none() => {
                    changes.push(Change::Broken(public(holder)));
                }
                Some(holder) if holder.expires() != before.expires() => {
                    changes.push(Change::Renewed(public(holder)));
                }
                Some(_) => {}
            }
        }
        for holder in after.holders() {
            let before = self.holders.find_grant(holder);
            if before.is_none_or(|before| before.has_expired(now)) {
                changes.push(Change::Acquired(public(holder)));
            }
        }
        changes
    }

    /// Some of the holders, as a client reads them that asked for more than this lock.
    pub fn holding_told(&self, name: &LockName, now: Duration) -> Option<Holding> {
        self.holding(name, now, HOLDERS_TOLD)
    }

    /// The holders as any client may see them, at most so many, their leases expired or not.
    pub fn holding(&self, name: &LockName, now: Duration, most: usize) -> Option<Holding> {
        let waiting = self.queue.len();
        let first = self.holders().min_by_key(|holder| holder.expires())?;
        let others = self.holders().filter(|holder| holder.slot != first.slot);
        let others = others.take(most - 1).map(|holder| holder.public(name, waiting, now));
        Some(Holding {
            first: Box::new(first.public(name, waiting, now)),
            others: others.collect(),
            count: self.holders.len(),
        })
    }

    /// Grants the lock if it is to be had. A refusal changes nothing.
    fn take(&mut self, command: &AcquireCommand, moment: &Moment) -> Result<Taken, Refusal> {
        if let Some(holder) = self.holders.find(&command.token) {
            return if holder.limit == command.limit {
                self.enter(command, moment.now)
            } else {
                self.change_limit(command, moment)
            };
        }
        if command.attempt.keeps_entry()
            && self.queue.find(&command.token).is_none()
            && let Some(why) = self.history.find_wait_end(&command.token)
        {
            return Err(Refusal::WaitEnded(Arc::clone(why)));
        }
        let ahead = self.queue.ahead_of(&command.token);
        if !self.has_room_behind(ahead, command.limit) {
            let is_new = self.queue.find(&command.token).is_none();
            let is_crowded = is_new && command.max_ahead.is_some_and(|most| ahead > most);
            return Err(if is_crowded { Refusal::Crowded(ahead) } else { Refusal::Busy(ahead) });
        }
        let sole_attempt = self.queue.sole_attempt(&command.token, command.attempt);
        let holder = self.grant(command, sole_attempt, moment);
        if self.holders.len() >= Limit::HOLDERS_MAX || !self.has_room_for(holder.bytes()) {
            return Err(Refusal::Full);
        }
        self.queue.leave(&command.token, None);
        let lease = holder.lease(moment.now);
        self.holders.insert(holder);
        Ok(Taken { lease, is_new: true })
    }

    /// Whether the row has room for so many bytes more of a holder.
    fn has_room_for(&self, bytes: usize) -> bool {
        self.holders.summary().bytes + bytes <= Limit::ROW_BYTES_MAX
    }

    /// Enters a lock that the token holds already.
    fn enter(&mut self, command: &AcquireCommand, now: Duration) -> Result<Taken, Refusal> {
        let has_room = self.has_room_for(Entry::BYTES_MAX);
        let lease = self.holders.change(&command.token, |holder| {
            let is_in = holder.entries.enter(command.entry.as_ref(), command.attempt, has_room);
            is_in.then(|| holder.lease(now))
        });
        let again = lease.flatten().map(|lease| Taken { lease, is_new: false });
        again.ok_or(Refusal::Full)
    }

    /// Changes the limit of a holder. More may hold the lock with it at once, always; for fewer it
    /// has to be alone, and gets a grant of its own, so that those who held it together with others
    /// are refused.
    fn change_limit(
        &mut self,
        command: &AcquireCommand,
        moment: &Moment,
    ) -> Result<Taken, Refusal> {
        let is_alone = self.holders.len() == 1 && self.queue.is_empty();
        let (era, has_room) = (self.era(), self.has_room_for(Entry::BYTES_MAX));
        let next = moment.last_fencing_token.next(moment.least_micros);
        let Some(holder) = self.holders.find(&command.token) else { return Err(Refusal::Full) };
        let is_widened = holder.limit.is_widened_by(command.limit);
        if holder.broken.is_some() || !is_widened && !is_alone {
            return Err(Refusal::NotAlone(self.queue.len()));
        }
        let changed = self.holders.change(&command.token, |holder| {
            if !holder.entries.enter(command.entry.as_ref(), command.attempt, has_room) {
                return Err(Refusal::Full);
            }
            holder.limit = command.limit;
            if is_widened {
                if let (Limit::Shared, Some(era)) = (command.limit, era) {
                    holder.fencing_token = era;
                }
                return Ok(Taken { lease: holder.lease(moment.now), is_new: false });
            }
            holder.fencing_token = next;
            holder.slot = 0;
            (holder.since, holder.ttl) = (moment.now, command.ttl.get());
            holder.acquired_at_millis = moment.unix_micros / 1000;
            Ok(Taken { lease: holder.lease(moment.now), is_new: true })
        });
        changed.unwrap_or(Err(Refusal::Full))
    }

    /// Undoes what one attempt got, unless another attempt got the same.
    fn withdraw(&mut self, token: &TokenHash, attempt: Attempt, moment: &Moment) {
        self.leave(token, |entry| entry.sole_attempt == Some(attempt), moment);
        self.queue.leave(token, Some(attempt));
    }

    /// Lets a lease last a full TTL from now.
    fn renew(
        &mut self,
        token: &TokenHash,
        ttl: Option<Ttl>,
        now: Duration,
    ) -> Result<Lease, LockLoss> {
        let renewed = self.holders.change(token, |holder| {
            if let Some(why) = &holder.broken {
                return Err(LockLoss::Broken(Arc::clone(why)));
            }
            (holder.since, holder.ttl) = (now, ttl.map_or(holder.ttl, Ttl::get));
            // A client that renews has read the grant, so no attempt may withdraw it any more.
            holder.entries.settle();
            Ok(holder.lease(now))
        });
        renewed.unwrap_or_else(|| {
            Err(match self.history.find_break(token) {
                Some(why) => LockLoss::Broken(Arc::clone(why)),
                None if self.holders.is_empty() => LockLoss::NotHeld,
                None => LockLoss::Mismatch,
            })
        })
    }

    /// Leaves one entry, or all. The lease ends with the last.
    fn release(
        &mut self,
        token: &TokenHash,
        entry: Option<&EntryName>,
        moment: &Moment,
    ) -> (ReleaseReply, Option<GrantEnd>) {
        let Some(holder) = self.holders.find(token) else {
            let is_free = self.holders.is_empty();
            let reply = if is_free { ReleaseReply::NotHeld } else { ReleaseReply::Mismatch };
            return (reply, None);
        };
        let end = holder.end(EndCause::Release, moment.now, moment);
        let is_left = |left: &Entry| entry.is_none_or(|entry| left.name.as_ref() == Some(entry));
        match self.leave(token, is_left, moment) {
            Some(entries) => (ReleaseReply::Entered(entries.names().cloned().collect()), None),
            None => (ReleaseReply::Released, Some(end)),
        }
    }

    /// Takes the entries that `is_left` admits from the token's holder, and gives those that
    /// remain. With the last one the token holds the lock no longer.
    fn leave(
        &mut self,
        token: &TokenHash,
        is_left: impl Fn(&Entry) -> bool,
        moment: &Moment,
    ) -> Option<Entries> {
        let holder = self.holders.find(token)?;
        let rest = holder.entries.without(is_left);
        match &rest {
            // What is the same stays shared with the state before.
            Some(entries) if holder.entries == *entries => {}
            Some(entries) => {
                self.holders.change(token, |holder| holder.entries = entries.clone());
            }
            None => {
                if holder.broken.is_some() {
                    self.history.extend([holder.end(EndCause::Release, moment.now, moment)]);
                }
                self.holders.remove(token);
            }
        }
        rest
    }

    /// Ends the leases or the wait that the command names.
    fn break_lease(
        &mut self,
        name: &LockName,
        command: &BreakCommand,
        moment: &Moment,
    ) -> BreakReply {
        let BreakCommand { is_of_wait, fencing_token, slot, reason, by, grace } = command;
        let is_broken = |holder: &HolderState| {
            let is_in_slot = slot.is_none_or(|slot| slot == holder.slot);
            !is_of_wait && holder.fencing_token == *fencing_token && is_in_slot
        };
        let at_millis = moment.unix_micros / 1000;
        let why = Arc::new(Break { reason: reason.clone(), by: by.clone(), at_millis });
        let mut ends_in = None;
        self.holders.change_all(is_broken, |holder| {
            holder.broken.get_or_insert_with(|| Arc::clone(&why));
            if let Some(grace) = grace.filter(|grace| *grace < holder.expires_in(moment.now)) {
                (holder.since, holder.ttl) = (moment.now, grace);
            }
            ends_in = ends_in.max(Some(holder.expires_in(moment.now)));
        });
        if *is_of_wait {
            self.history.extend(self.queue.end_wait(*fencing_token, why, moment));
        }
        let is_known = self.history.ends().iter().any(|end| {
            let is_such = if *is_of_wait { end.is_of_wait() } else { end.broken().is_some() };
            is_such && end.fencing_token == *fencing_token
        });
        match ends_in.or(is_known.then_some(Duration::ZERO)) {
            Some(ends_in) => {
                self.settle(moment);
                BreakReply::Broken { ends_in }
            }
            None => match self.holding_told(name, moment.now) {
                Some(holding) => BreakReply::Mismatch(holding),
                None => BreakReply::NotHeld,
            },
        }
    }

    /// Why the lock is not to be had by one that is behind `ahead` waiters.
    fn contention(
        &self,
        name: &LockName,
        now: Duration,
        ahead: u64,
        most_ahead: u64,
    ) -> Contention {
        let first = self.queue.entries().first().filter(|_| ahead > 0);
        let first = first.map(|entry| entry.public(now));
        let holding = self.holding_told(name, now);
        Contention { name: name.clone(), holding, ahead, first, most_ahead }
    }

    fn grant(
        &self,
        command: &AcquireCommand,
        sole_attempt: Option<Attempt>,
        moment: &Moment,
    ) -> HolderState {
        let era = self.era().filter(|_| command.limit == Limit::Shared);
        let next = || moment.last_fencing_token.next(moment.least_micros);
        HolderState {
            token: command.token,
            fencing_token: era.unwrap_or_else(next),
            owner: command.owner.clone(),
            since: moment.now,
            ttl: command.ttl.get(),
            acquired_at_millis: moment.unix_micros / 1000,
            limit: command.limit,
            slot: self.holders.free_slot(),
            entries: Entries::of(Entry { name: command.entry.clone(), sole_attempt }),
            broken: None,
        }
    }

    /// The fencing token that all who share the lock without a number have at this time: that of
    /// the first of them, so that no resource refuses one of them for the sake of another.
    fn era(&self) -> Option<FencingToken> {
        self.holders.summary().era
    }

    /// Whether one with this limit has room beside the holders and the first `ahead` waiters.
    fn has_room_behind(&self, ahead: u64, limit: Limit) -> bool {
        let mut room = self.room();
        let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
        let before = self.queue.entries().iter().take(ahead).map(|entry| entry.limit);
        before.chain([limit]).all(|limit| room.take(limit))
    }

    fn room(&self) -> Room {
        Room { taken: self.holders.len(), most: self.holders.summary().most }
    }
}

/// How many hold a lock, and how many may.
struct Room {
    taken: usize,
    most: usize,
}

impl Room {
    /// Takes the place of one more, if there is room by its limit and by those of the others.
    fn take(&mut self, limit: Limit) -> bool {
        self.most = self.most.min(limit.holders());
        self.taken += 1;
        self.taken <= self.most
    }
}
