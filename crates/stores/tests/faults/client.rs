//! A model of what one client was answered about its locks and records, which no other client uses.
//!
//! [`Client::step`] runs a command that fits what the client knows, and remembers the answer, or,
//! where the outcome is unknown, both states that it may have left. [`Client::check`] holds a store
//! that was opened again to it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use keylatch_core::idempotency::{
    AbandonReply, Answer, BeginCommand, BeginReply, CompleteReply, OnCrash, RecordKey,
    RecordStatus, RecordView, ResolveCommand, ResolveReply, RunEnd, RunRenewal, StoredResponse,
    UnknownReason,
};
use keylatch_core::lock::{
    AcquireReply, FencingToken, LockName, ReleaseReply, RenewReply, TokenHash, Ttl,
};
use keylatch_core::store::{Effect, Store, StoreError};

use crate::dice::Dice;
use crate::disk::Disk;
use crate::requests::{Acquire, begin, name, token};

/// How many locks and how many records a client uses at a time.
const SLOTS: usize = 4;

/// A lock or a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    Lock(LockName),
    Record(RecordKey),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(name) => write!(f, "lock {}", name.as_str()),
            Self::Record(key) => write!(f, "record {:?}", &key.as_bytes()[..4]),
        }
    }
}

/// What became of a lock or a record, as an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Free,
    /// Held or run under this fencing token; `None` when its answer was lost.
    Taken(Option<FencingToken>),
    Ended(FencingToken, RunEnd),
}

/// What a client knows of one entry.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) answered: Outcome,
    /// What the one command would have made of it whose answer was lost.
    pub(crate) or: Option<Outcome>,
    token: TokenHash,
    last_fencing_token: FencingToken,
    on_crash: OnCrash,
}

/// A client, and what it knows.
pub(crate) struct Client {
    number: u8,
    dice: Dice,
    pub(crate) steps: u64,
    /// Which of its entries for each slot the client is at: it leaves one that is done or in doubt.
    at: [[u8; SLOTS]; 2],
    pub(crate) entries: BTreeMap<Entry, Known>,
}

impl Client {
    pub(crate) fn new(number: u8, seed: u64) -> Self {
        let dice = Dice(seed ^ (u64::from(number) + 1));
        Self { number, dice, steps: 0, at: [[0; SLOTS]; 2], entries: BTreeMap::new() }
    }

    /// Runs a command on one of the client's entries. Its answer counts only if it came while the
    /// disk had power.
    pub(crate) async fn step(&mut self, store: &dyn Store, disk: &Disk) {
        self.steps += 1;
        let (kind, slot) = (self.dice.below(2) as usize, self.dice.below(SLOTS as u64) as usize);
        let entry = self.entry(kind, slot);
        let before = self.known(&entry);
        let command = Step { known: &before, store, dice: &mut self.dice, number: self.steps };
        let (meant, answered) = match &entry {
            Entry::Lock(name) => command.on_lock(name).await,
            Entry::Record(key) => command.on_record(key).await,
        };
        let known = match answered {
            Ok(answered) if disk.has_power() => {
                let given = match &answered {
                    Outcome::Taken(fencing_token) => fencing_token.unwrap_or_default(),
                    _ => FencingToken::NONE,
                };
                Known {
                    answered,
                    last_fencing_token: before.last_fencing_token.max(given),
                    ..before
                }
            }
            // What was refused has not happened.
            Err(error) if error.effect() == Effect::NotExecuted && disk.has_power() => before,
            _ => Known { or: Some(meant), ..before },
        };
        let is_done = matches!(known.answered, Outcome::Ended(_, RunEnd::Done(_)));
        if known.or.is_some() || (is_done && self.dice.below(2) == 0) {
            self.at[kind][slot] = self.at[kind][slot].saturating_add(1);
        }
        self.entries.insert(entry, known);
    }

    fn entry(&self, kind: usize, slot: usize) -> Entry {
        let at = self.at[kind][slot];
        if kind == 0 {
            return Entry::Lock(name(&format!("{slot}.{at} of {}", self.number)));
        }
        let mut bytes = [0; 32];
        // All in few buckets, whose fencing tokens they share.
        bytes[..4].copy_from_slice(&[slot as u8, self.number, slot as u8, at]);
        Entry::Record(RecordKey::from_bytes(bytes))
    }

    /// What the client knows of an entry, with a new token if it is free.
    fn known(&mut self, entry: &Entry) -> Known {
        let fresh = Known {
            answered: Outcome::Free,
            or: None,
            token: token(&format!("{}-{}", self.number, self.steps)),
            last_fencing_token: FencingToken::NONE,
            on_crash: [OnCrash::Unknown, OnCrash::Rerun][self.dice.below(2) as usize],
        };
        match self.entries.get(entry) {
            None => fresh,
            Some(known) if known.answered == Outcome::Free && known.or.is_none() => {
                Known { last_fencing_token: known.last_fencing_token, ..fresh }
            }
            Some(known) => known.clone(),
        }
    }

    /// Whether the store says of each entry what the client was answered.
    pub(crate) async fn check(&self, store: &dyn Store) -> Result<(), String> {
        let mut wrong = Vec::new();
        for (entry, known) in &self.entries {
            let found = match entry {
                Entry::Lock(name) => known.check_lock(store, name).await,
                Entry::Record(key) => known.check_record(store, key).await,
            };
            wrong.extend(found.err().map(|lost| format!("{entry}: {lost}: {known:?}")));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Whether a store that was opened again gives fencing tokens above all that the client was
    /// given. On a disk that is ahead of the clock, these come from the disk alone.
    pub(crate) async fn check_fences(&self, again: &dyn Store) -> Result<(), String> {
        let probe = Acquire::new(&format!("probe of {}", self.number), "probe");
        let AcquireReply::Granted(leases) = probe.run(again).await.map_err(|e| e.to_string())?
        else {
            return Err("fences: the probe is held".to_owned());
        };
        let lease = &leases[0];
        match self.entries.iter().find(|(_, known)| known.last_fencing_token >= lease.fencing_token)
        {
            None => Ok(()),
            Some((entry, known)) => Err(format!(
                "fences: {entry} had {}, and now {}",
                known.last_fencing_token, lease.fencing_token
            )),
        }
    }

    /// Whether, a lease after the power cut, only those runs are run again whose beginning said so.
    pub(crate) async fn check_crash(&self, again: &dyn Store) -> Result<(), String> {
        for (entry, known) in &self.entries {
            if let Entry::Record(key) = entry {
                let found = known.check_crash(again, key).await;
                found.map_err(|lost| format!("{entry}: {lost}: {known:?}"))?;
            }
        }
        Ok(())
    }
}

impl Known {
    async fn check_lock(&self, store: &dyn Store, name: &LockName) -> Result<(), String> {
        let holder = store.look(name).await.map_err(|error| error.to_string())?;
        self.check_found(|outcome| match (outcome, &holder) {
            (Outcome::Free, None) => true,
            (Outcome::Taken(fencing_token), Some(found)) => {
                fencing_token.is_none_or(|fencing_token| fencing_token == found.first.fencing_token)
            }
            _ => false,
        })
        .map_err(|()| format!("the store says {holder:?}"))?;
        if let (Outcome::Taken(Some(fencing_token)), None) = (&self.answered, &self.or) {
            let same = Acquire { name: name.clone(), ..self.acquire() }.run(store).await;
            if !matches!(&same, Ok(AcquireReply::Repeated(leases)) if leases[0].fencing_token == *fencing_token)
            {
                return Err(format!("its holder reads {same:?}"));
            }
        }
        Ok(())
    }

    async fn check_record(&self, store: &dyn Store, key: &RecordKey) -> Result<(), String> {
        let found = store.find(key).await.map_err(|error| error.to_string())?;
        self.check_found(|outcome| outcome.is_record(found.as_ref()))
            .map_err(|()| format!("the store says {found:?}"))?;
        if let (Outcome::Taken(Some(fencing_token)), None) = (&self.answered, &self.or) {
            let same = store.begin(&self.begin(key)).await;
            if !matches!(&same, Ok(BeginReply::Again(run)) if run.fencing_token == *fencing_token) {
                return Err(format!("its runner reads {same:?}"));
            }
        }
        Ok(())
    }

    fn check_found(&self, is: impl Fn(&Outcome) -> bool) -> Result<(), ()> {
        if is(&self.answered) || self.or.as_ref().is_some_and(is) { Ok(()) } else { Err(()) }
    }

    async fn check_crash(&self, again: &dyn Store, key: &RecordKey) -> Result<(), String> {
        if self.answered == Outcome::Free || self.or.is_some() {
            return Ok(());
        }
        let ended = matches!(self.answered, Outcome::Ended(..));
        let other = BeginCommand { token: token("another"), ..self.begin(key) };
        let begun = again.begin(&other).await.map_err(|error| error.to_string())?;
        let right = match &begun {
            BeginReply::Started(run) => {
                !ended
                    && self.on_crash == OnCrash::Rerun
                    && run.fencing_token > self.last_fencing_token
            }
            BeginReply::Found(view) if ended => self.answered.is_record(Some(view)),
            BeginReply::Found(view) => {
                let end = Outcome::Ended(
                    self.last_fencing_token,
                    RunEnd::Unknown(UnknownReason::Interrupted),
                );
                self.on_crash == OnCrash::Unknown && end.is_record(Some(view))
            }
            BeginReply::Again(_) | BeginReply::Reused(_) | BeginReply::NoRoom => false,
        };
        if right { Ok(()) } else { Err(format!("the next one who begins finds {begun:?}")) }
    }

    fn acquire(&self) -> Acquire {
        let mut acquire = Acquire::new("any", "client");
        acquire.command.token = self.token;
        acquire
    }

    fn begin(&self, key: &RecordKey) -> BeginCommand {
        BeginCommand {
            key: *key,
            token: self.token,
            on_crash: self.on_crash,
            ..begin("any", "client")
        }
    }
}

impl Outcome {
    fn is_record(&self, found: Option<&RecordView>) -> bool {
        match (self, found.map(|view| (view.fencing_token, &view.phase))) {
            (Self::Free, None) => true,
            (Self::Taken(fencing_token), Some((found, RecordStatus::InFlight { lease }))) => {
                fencing_token.is_none_or(|fencing_token| fencing_token == found) && !lease.is_zero()
            }
            (
                Self::Ended(fencing_token, RunEnd::Done(end)),
                Some((found, RecordStatus::Done { kept, .. })),
            ) => *fencing_token == found && end == kept,
            (
                Self::Ended(fencing_token, RunEnd::Unknown(end)),
                Some((found, RecordStatus::Unknown { reason, .. })),
            ) => *fencing_token == found && end == reason,
            _ => false,
        }
    }
}

/// What a command is meant to make of an entry, and what the store answers that it did.
type StepResult = (Outcome, Result<Outcome, StoreError>);

/// A command that fits what a client knows of an entry.
struct Step<'a> {
    known: &'a Known,
    store: &'a dyn Store,
    dice: &'a mut Dice,
    number: u64,
}

impl Step<'_> {
    /// Acquires, renews or releases a lock.
    async fn on_lock(self, name: &LockName) -> StepResult {
        let (known, store) = (self.known, self.store);
        let same = known.answered.clone();
        match &known.answered {
            Outcome::Free => {
                let acquire = Acquire { name: name.clone(), ..known.acquire() };
                let answered = acquire.run(store).await.map(|reply| match reply {
                    AcquireReply::Granted(leases) => known.taken(leases[0].fencing_token),
                    other => panic!("{name:?} is free: {other:?}"),
                });
                (Outcome::Taken(None), answered)
            }
            _ if self.dice.below(3) == 0 => {
                let renewed = store.renew(name, &known.token, Ttl::MAX).await;
                (same.clone(), expect(renewed, |it| matches!(it, RenewReply::Renewed(_)), same))
            }
            _ => {
                let released = store.release(name, &known.token).await;
                let right = |it: &_| *it == ReleaseReply::Released;
                (Outcome::Free, expect(released, right, Outcome::Free))
            }
        }
    }

    /// Begins, extends, abandons, completes, resolves or repeats a run.
    async fn on_record(self, key: &RecordKey) -> StepResult {
        let (known, store) = (self.known, self.store);
        match &known.answered {
            Outcome::Free => {
                let answered = store.begin(&known.begin(key)).await.map(|begun| match begun {
                    BeginReply::Started(run) => known.taken(run.fencing_token),
                    other => panic!("{key:?} is free: {other:?}"),
                });
                (Outcome::Taken(None), answered)
            }
            Outcome::Taken(fencing_token) => self.on_run(key, fencing_token.unwrap()).await,
            Outcome::Ended(fencing_token, RunEnd::Unknown(_) | RunEnd::SentOn(..)) => {
                let kept = (self.dice.below(2) == 0).then(|| kept(self.number));
                let ended =
                    kept.clone().map(|kept| Outcome::Ended(*fencing_token, RunEnd::Done(kept)));
                let after = ended.unwrap_or(Outcome::Free);
                let resolve = ResolveCommand {
                    key: *key,
                    fencing_token: Some(*fencing_token),
                    end: kept.into(),
                };
                let right =
                    |it: &_| matches!(it, ResolveReply::Completed(_) | ResolveReply::Freed(_));
                (after.clone(), expect(store.resolve(&resolve).await, right, after))
            }
            Outcome::Ended(_, RunEnd::Done(_) | RunEnd::DoneFor(..)) => {
                let other = BeginCommand { token: token("another"), ..known.begin(key) };
                let same = known.answered.clone();
                let right =
                    |it: &_| matches!(it, BeginReply::Found(view) if same.is_record(Some(view)));
                (same.clone(), expect(store.begin(&other).await, right, same.clone()))
            }
        }
    }

    /// Extends, abandons or completes a run.
    async fn on_run(self, key: &RecordKey, fencing_token: FencingToken) -> StepResult {
        let (token, store) = (self.known.token, self.store);
        match self.dice.below(5) {
            0 => {
                let extended = store.extend(key, &token).await;
                let same = self.known.answered.clone();
                (same.clone(), expect(extended, |it| *it == RunRenewal::Extended, same))
            }
            1 => {
                let abandoned = store.abandon(key, &token).await;
                let right = |it: &_| *it == AbandonReply::Done(());
                (Outcome::Free, expect(abandoned, right, Outcome::Free))
            }
            how => {
                let end = match how {
                    2 => RunEnd::Unknown(UnknownReason::Failed),
                    3 => RunEnd::Done(StoredResponse::Mark(413)),
                    _ => RunEnd::Done(kept(self.number)),
                };
                let completed = store.complete(key, &token, end.clone()).await;
                let after = Outcome::Ended(fencing_token, end);
                let right = |it: &_| matches!(it, CompleteReply::Done(_));
                (after.clone(), expect(completed, right, after))
            }
        }
    }
}

impl Known {
    fn taken(&self, fencing_token: FencingToken) -> Outcome {
        assert!(
            fencing_token > self.last_fencing_token,
            "the fence fell: {fencing_token} after {}",
            self.last_fencing_token
        );
        Outcome::Taken(Some(fencing_token))
    }
}

/// The outcome after an answer that has to be the right one.
fn expect<T: fmt::Debug>(
    answer: Result<T, StoreError>,
    right: impl Fn(&T) -> bool,
    after: Outcome,
) -> Result<Outcome, StoreError> {
    let answer = answer?;
    assert!(right(&answer), "{answer:?}, and not what makes it {after:?}");
    Ok(after)
}

/// A short answer, or one that is not kept in memory.
fn kept(number: u64) -> StoredResponse {
    let headers = vec![("location".to_owned(), Bytes::from_static(b"/orders/1"))];
    let times = if number.is_multiple_of(2) { 1 } else { 400 };
    let body = Bytes::from(format!("order {number}").repeat(times));
    StoredResponse::Answer(Arc::new(Answer { status: 201, headers, body }))
}
