//! Records on a disk that loses power: no beginning and no end that was answered is forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::*;
use super::disk::{Dice, Disk, Files};
use super::store::{open, token};
use keylatch_core::idempotency::{
    Abandonment, Answer, Begin, Begun, Complete, Completion, End, Extension, Fingerprint, Kept,
    OnCrash, Phase, Reason, RecordStore, Resolution, Resolve, View,
};
use keylatch_core::lock::{FencingToken, Outcome};

const LEASE: Duration = Duration::from_secs(3600);

/// Power cuts in each campaign; the long form sets another number.
fn rounds() -> u64 {
    std::env::var("POWER_CUTS").map_or(300, |rounds| rounds.parse().unwrap())
}

#[test]
fn a_power_cut_forgets_no_beginning_and_no_end_that_was_answered() {
    let mut known = Vec::new();
    for seed in 0..rounds() {
        let one =
            campaign(seed, |_| {}, Disk::cut).unwrap_or_else(|lost| panic!("seed {seed}: {lost}"));
        known.extend(one);
    }
    // A campaign in which nothing was at stake proves nothing.
    let is_certain = |known: &Known| known.or.is_none();
    let is_run = |known: &Known| is_certain(known) && matches!(known.told, State::Run(_));
    let is_end = |known: &Known| is_certain(known) && matches!(known.told, State::End(..));
    assert!(known.iter().any(is_run) && known.iter().any(is_end), "{known:?}");
    assert!(!known.iter().all(is_certain), "no answer was ever lost");
}

#[test]
fn the_check_finds_what_of_records_is_lost_without_the_sync() {
    let lost = (0..rounds()).filter(|&seed| campaign(seed, Disk::lie, Disk::cut).is_err()).count();
    assert!(lost > 0, "a disk that does not sync was not noticed");
}

/// Most of what was not synced leaves no file that could be read. This is one, and it is empty.
#[test]
fn the_check_finds_records_that_a_whole_disk_has_not() {
    let empty = |disk: &Disk| {
        disk.cut();
        Disk::formatted(1).content()
    };
    let found = (0..20).filter(|&seed| campaign(seed, |_| {}, empty).is_err()).count();
    assert!(found > 10, "{found} of 20 times it was noticed");
}

/// Some clients use records until the power goes; then the disk is read again, as it is `after` that.
/// Gives what they were told.
fn campaign(
    seed: u64,
    prepare: impl Fn(&Disk),
    after: impl Fn(&Disk) -> Files,
) -> Result<Vec<Known>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let disk = Disk::formatted(seed);
        prepare(&disk);
        disk.cut_after(Dice(seed).below(400));
        let known = until_the_cut(&disk, seed).await?;
        let content = after(&disk);
        // On a disk that lied, the engine may give up in the middle of what it reads.
        let opened = std::panic::catch_unwind(|| open(&Disk::new(content, seed)));
        let opened = opened.map_err(|_| "the engine gave up".to_owned())?;
        let again = opened.map_err(|error| error.to_string())?;
        for (key, known) in &known {
            known.check(&again, key).await.map_err(|lost| format!("{lost}: {known:?}"))?;
        }
        // Nobody extends the leases of those who died with the power.
        tokio::time::pause();
        tokio::time::advance(LEASE).await;
        for (key, known) in &known {
            known.check_crash(&again, key).await.map_err(|lost| format!("{lost}: {known:?}"))?;
        }
        Ok(known.into_values().collect())
    })
}

async fn until_the_cut(disk: &Disk, seed: u64) -> Result<BTreeMap<RecordKey, Known>, String> {
    let store = Arc::new(open(disk).map_err(|error| error.to_string())?);
    let mut clients = Vec::new();
    for number in 0..4 {
        let (store, disk) = (Arc::clone(&store), disk.clone());
        let mut client = Client::new(number, seed);
        clients.push(tokio::spawn(async move {
            while disk.has_power() && client.steps < 60 {
                client.step_before_the_cut(&store, &disk).await;
            }
            client
        }));
    }
    let mut known = BTreeMap::new();
    for client in clients {
        known.extend(client.await.unwrap().records);
    }
    Ok(known)
}

/// How far a record is, as somebody was told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Free,
    /// Run under this fence; `None` when its answer never came.
    Run(Option<FencingToken>),
    End(FencingToken, End),
}

impl State {
    fn is(&self, found: Option<&View>) -> bool {
        match (self, found.map(|view| (view.fence, &view.phase))) {
            (Self::Free, None) => true,
            (Self::Run(fence), Some((found, Phase::InFlight { lease }))) => {
                fence.is_none_or(|fence| fence == found) && !lease.is_zero()
            }
            (Self::End(fence, End::Done(end)), Some((found, Phase::Done { kept, .. }))) => {
                *fence == found && end == kept
            }
            (Self::End(fence, End::Unknown(end)), Some((found, Phase::Unknown { reason, .. }))) => {
                *fence == found && end == reason
            }
            _ => false,
        }
    }
}

/// What a client was told of one of its records. Nobody else uses them.
#[derive(Debug, Clone)]
struct Known {
    told: State,
    /// What the one command would have made of it whose answer never came.
    or: Option<State>,
    token: TokenHash,
    last_fence: FencingToken,
    on_crash: OnCrash,
}

impl Known {
    fn new(token: TokenHash, on_crash: OnCrash) -> Self {
        Self { told: State::Free, or: None, token, last_fence: FencingToken::NONE, on_crash }
    }

    /// Whether the store that was opened again says what the client was told, and goes on above all
    /// the fences that the client was given.
    async fn check(&self, again: &EmbeddedStore, key: &RecordKey) -> Result<(), String> {
        let found = again.find(key).await.unwrap();
        let says = |state: &State| state.is(found.as_ref());
        if !says(&self.told) && !self.or.as_ref().is_some_and(says) {
            return Err(format!("it is {found:?}"));
        }
        // The floor of the time is left out: what counts is what was on disk.
        let floor = again.table.look::<RecordState>(key).1.last_fence;
        if floor < self.last_fence {
            return Err(format!("fences go on above {floor}"));
        }
        if let (State::Run(Some(fence)), None) = (&self.told, &self.or) {
            let same = again.begin(&ask(key, self.token, self.on_crash)).await.unwrap();
            if !matches!(&same, Begun::Again(run) if run.fence == *fence) {
                return Err(format!("the run goes on as {same:?}"));
            }
        }
        Ok(())
    }

    /// Whether what was begun and not ended is run again only if its beginning said so.
    async fn check_crash(&self, again: &EmbeddedStore, key: &RecordKey) -> Result<(), String> {
        if matches!(self.told, State::Free) || self.or.is_some() {
            return Ok(());
        }
        let ended = matches!(self.told, State::End(..));
        let begun = again.begin(&ask(key, token("another"), self.on_crash)).await.unwrap();
        let right = match &begun {
            Begun::Started(run) => {
                !ended && self.on_crash == OnCrash::Rerun && run.fence > self.last_fence
            }
            Begun::Found(view) if ended => self.told.is(Some(view)),
            Begun::Found(view) => {
                let end = State::End(self.last_fence, End::Unknown(Reason::Interrupted));
                self.on_crash == OnCrash::Unknown && end.is(Some(view))
            }
            Begun::Again(_) | Begun::Reused(_) => false,
        };
        if right { Ok(()) } else { Err(format!("the next one who begins finds {begun:?}")) }
    }
}

struct Client {
    number: u8,
    dice: Dice,
    steps: u64,
    /// Which of its records for each slot the client is at: one that is done, or in doubt, is left.
    at: [u8; 4],
    records: BTreeMap<RecordKey, Known>,
}

impl Client {
    fn new(number: u8, seed: u64) -> Self {
        let dice = Dice(seed ^ (u64::from(number) + 1));
        Self { number, dice, steps: 0, at: [0; 4], records: BTreeMap::new() }
    }

    /// A step whose answer counts only if it came while there was power.
    async fn step_before_the_cut(&mut self, store: &EmbeddedStore, disk: &Disk) {
        self.steps += 1;
        let slot = self.dice.below(4) as usize;
        let mut bytes = [0; 32];
        // All in few buckets, whose fences they share.
        bytes[..4].copy_from_slice(&[slot as u8, self.number, slot as u8, self.at[slot]]);
        let key = RecordKey::from_bytes(bytes);
        let token = token(&format!("{}-{}", self.number, self.steps));
        let on_crash = [OnCrash::Unknown, OnCrash::Rerun][self.dice.below(2) as usize];
        let fresh = Known::new(token, on_crash);
        let before = self.records.entry(key).or_insert_with(|| fresh.clone()).clone();
        let before = if before.told == State::Free {
            Known { last_fence: before.last_fence, ..fresh }
        } else {
            before
        };
        let (meant, answered) = step(&before, store, key, &mut self.dice, self.steps).await;
        let known = match answered {
            Ok(told) if disk.has_power() => {
                let fence = match told {
                    State::Run(fence) => fence.unwrap_or_default(),
                    _ => before.last_fence,
                };
                Known { told, last_fence: fence.max(before.last_fence), ..before }
            }
            // What was refused has not happened; of what was lost, nobody knows.
            Err(error) if error.outcome() == Outcome::NotExecuted && disk.has_power() => before,
            _ => Known { or: Some(meant), ..before },
        };
        let is_over = matches!(known.told, State::End(_, End::Done(_))) && self.dice.below(2) == 0;
        if known.or.is_some() || is_over {
            self.at[slot] = self.at[slot].saturating_add(1);
        }
        self.records.insert(key, known);
    }
}

/// Takes a step that fits how far the record is. Gives what it is meant to make of the record, and
/// what the store says that it did.
async fn step(
    known: &Known,
    store: &EmbeddedStore,
    key: RecordKey,
    dice: &mut Dice,
    number: u64,
) -> (State, Result<State, StoreError>) {
    match &known.told {
        State::Free => (State::Run(None), begin(known, store, key).await),
        State::Run(fence) => go_on(known, fence.unwrap(), store, key, dice.below(5), number).await,
        State::End(fence, End::Unknown(_)) => {
            let kept = (dice.below(2) == 0).then(|| kept(number));
            let after = kept.clone().map(|kept| State::End(*fence, End::Done(kept)));
            let after = after.unwrap_or(State::Free);
            let resolved = store.resolve(&Resolve { key, fence: Some(*fence), end: kept }).await;
            let right = |found: &_| matches!(found, Resolution::Completed(_) | Resolution::Freed);
            (after.clone(), is(resolved, right, after))
        }
        State::End(_, End::Done(_)) => {
            let begun = store.begin(&ask(&key, token("another"), known.on_crash)).await;
            let right =
                |found: &_| matches!(found, Begun::Found(view) if known.told.is(Some(view)));
            (known.told.clone(), is(begun, right, known.told.clone()))
        }
    }
}

async fn begin(known: &Known, store: &EmbeddedStore, key: RecordKey) -> Result<State, StoreError> {
    match store.begin(&ask(&key, known.token, known.on_crash)).await? {
        Begun::Started(run) => {
            assert!(run.fence > known.last_fence, "{key:?}: the fence fell");
            Ok(State::Run(Some(run.fence)))
        }
        other => panic!("{key:?} is nobody else's: {other:?}"),
    }
}

/// Extends, abandons or completes a run.
async fn go_on(
    known: &Known,
    fence: FencingToken,
    store: &EmbeddedStore,
    key: RecordKey,
    how: u64,
    number: u64,
) -> (State, Result<State, StoreError>) {
    let token = known.token;
    match how {
        0 => {
            let extended = store.extend(&key, &token).await;
            let same = known.told.clone();
            (same.clone(), is(extended, |found| *found == Extension::Extended, same))
        }
        1 => {
            let abandoned = store.abandon(&key, &token).await;
            let right = |found: &_| *found == Abandonment::Abandoned;
            (State::Free, is(abandoned, right, State::Free))
        }
        how => {
            let end = if how == 2 { End::Unknown(Reason::Failed) } else { End::Done(kept(number)) };
            let completed = store.complete(&Complete { key, token, end: end.clone() }).await;
            let right = |found: &_| matches!(found, Completion::Kept(_));
            (State::End(fence, end.clone()), is(completed, right, State::End(fence, end)))
        }
    }
}

/// The state after an answer that has to be the right one.
fn is<T: std::fmt::Debug>(
    answer: Result<T, StoreError>,
    right: impl Fn(&T) -> bool,
    after: State,
) -> Result<State, StoreError> {
    let answer = answer?;
    assert!(right(&answer), "{answer:?}, and not what makes it {after:?}");
    Ok(after)
}

fn ask(key: &RecordKey, token: TokenHash, on_crash: OnCrash) -> Begin {
    let fingerprint = Fingerprint::of_text("an order");
    Begin { key: *key, token, fingerprint, lease: LEASE, retention: 24 * LEASE, on_crash }
}

fn kept(number: u64) -> Kept {
    let headers = vec![("location".to_owned(), Bytes::from_static(b"/orders/1"))];
    let body = Bytes::from(format!("order {number}"));
    Kept::Answer(Arc::new(Answer { status: 201, headers, body }))
}
