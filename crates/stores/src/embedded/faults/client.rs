use std::collections::BTreeMap;

use super::super::*;
use super::disk::{Dice, Disk};
use super::store::{ask, begin, key, name};
use keylatch_core::idempotency::{
    Abandonment, Begun, Complete, Completion, End, Kept, Phase, RecordStore as _,
};
use keylatch_core::lock::{FencingToken, Outcome};

/// What a client was told of each of its locks and records. Nobody else uses them.
pub(super) struct Client {
    number: u64,
    dice: Dice,
    pub(super) steps: u64,
    locks: BTreeMap<String, Known>,
    records: BTreeMap<String, Known>,
    /// Which of its names for each record the client is at: one that is done is not used again.
    names: [u64; 3],
}

/// What the last answer said, and whether there was a command after it whose answer never came.
#[derive(Debug, Clone, Default)]
struct Known {
    told: Option<Told>,
    last_fence: FencingToken,
    in_doubt: bool,
}

/// Who holds the lock or runs the record, under which fencing token, and how that ended.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    token: TokenHash,
    fence: FencingToken,
    status: Option<u16>,
}

/// Which of its things a client used.
pub(super) enum Used {
    Lock(String),
    Record(String),
}

impl Client {
    pub(super) fn new(number: u64, seed: u64) -> Self {
        let (locks, records) = Default::default();
        Self { number, dice: Dice(seed ^ (number + 1)), steps: 0, locks, records, names: [0; 3] }
    }

    /// A step whose answer counts only if it came while there was power.
    pub(super) async fn step_before_the_cut(&mut self, store: &EmbeddedStore, disk: &Disk) {
        let before = (self.locks.clone(), self.records.clone());
        let used = self.step(store).await;
        if !disk.has_power() {
            let (known, before, name) = match &used {
                Used::Lock(name) => (&mut self.locks, before.0, name),
                Used::Record(name) => (&mut self.records, before.1, name),
            };
            let before = before.get(name).cloned().unwrap_or_default();
            known.insert(name.clone(), Known { in_doubt: true, ..before });
        }
    }

    /// Does something to one of the client's locks or records, and remembers what it was told.
    pub(super) async fn step(&mut self, store: &EmbeddedStore) -> Used {
        self.steps += 1;
        if self.dice.below(2) == 0 {
            Used::Lock(self.use_a_lock(store).await)
        } else {
            Used::Record(self.use_a_record(store).await)
        }
    }

    /// Acquires, renews or releases a lock.
    async fn use_a_lock(&mut self, store: &EmbeddedStore) -> String {
        let lock = format!("lock {} of {}", self.dice.below(5), self.number);
        let known = self.locks.entry(lock.clone()).or_default();
        if known.in_doubt {
            return lock;
        }
        let name = name(&lock);
        let failed = match known.told.clone() {
            None => {
                let ask = ask(&lock, &format!("{}-{}", self.number, self.steps));
                match store.acquire(&ask).await {
                    Ok(Acquisition::Granted(lease)) => {
                        known.began(ask.token, lease.fence);
                        None
                    }
                    Ok(other) => panic!("{lock} is nobody else's: {other:?}"),
                    Err(error) => Some(error),
                }
            }
            Some(told) if self.dice.below(3) == 0 => {
                store.renew(&name, &told.token, Ttl::DEFAULT).await.err()
            }
            Some(told) => match store.release(&name, &told.token).await {
                Ok(Release::Released) => {
                    known.told = None;
                    None
                }
                Ok(other) => panic!("{lock} was {told:?}: {other:?}"),
                Err(error) => Some(error),
            },
        };
        known.failed(failed);
        lock
    }

    /// Begins, extends, completes or abandons a run.
    async fn use_a_record(&mut self, store: &EmbeddedStore) -> String {
        let slot = self.dice.below(3) as usize;
        let record = format!("record {slot} {} of {}", self.names[slot], self.number);
        let known = self.records.entry(record.clone()).or_default();
        let key = key(&record);
        let failed = match known.told.clone() {
            _ if known.in_doubt => None,
            None => {
                let begin = begin(&record, &format!("{}-{}", self.number, self.steps));
                match store.begin(&begin).await {
                    Ok(Begun::Started(run)) => {
                        known.began(begin.token, run.fence);
                        None
                    }
                    Ok(other) => panic!("{record} is nobody else's: {other:?}"),
                    Err(error) => Some(error),
                }
            }
            Some(told) => match self.dice.below(4) {
                0 => store.extend(&key, &told.token).await.err(),
                1 => match store.abandon(&key, &told.token).await {
                    Ok(Abandonment::Abandoned) => {
                        known.told = None;
                        None
                    }
                    Ok(other) => panic!("{record} was {told:?}: {other:?}"),
                    Err(error) => Some(error),
                },
                _ => known.complete(store, key, told, 200 + self.steps as u16).await,
            },
        };
        known.failed(failed);
        if known.in_doubt || known.told.as_ref().is_some_and(|told| told.status.is_some()) {
            self.names[slot] += 1;
        }
        record
    }

    /// Whether the store says of each lock and record what the client was told.
    pub(super) async fn check(&self, store: &EmbeddedStore) -> Result<(), String> {
        let mut wrong = Vec::new();
        for (lock, known) in &self.locks {
            let found = store.get(&name(lock)).await.unwrap();
            wrong.extend(known.differs(lock, found.map(|holder| (holder.fence, None))));
        }
        for (record, known) in &self.records {
            let found = store.find(&key(record)).await.unwrap();
            let found = found.map(|view| match view.phase {
                Phase::Done { kept, .. } => (view.fence, Some(kept.status())),
                Phase::InFlight { .. } | Phase::Unknown { .. } => (view.fence, None),
            });
            wrong.extend(known.differs(record, found));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Whether the store that was opened again gives fences above all that the client was given.
    pub(super) fn check_fences(&self, again: &EmbeddedStore) -> Result<(), String> {
        let floor = again.last_fence();
        let mut all = self.locks.iter().chain(&self.records);
        match all.find(|(_, known)| known.last_fence > floor) {
            Some((name, known)) => {
                Err(format!("{name}: fences go on above {floor}, below {}", known.last_fence))
            }
            None => Ok(()),
        }
    }
}

impl Known {
    fn began(&mut self, token: TokenHash, fence: FencingToken) {
        assert!(fence > self.last_fence, "the fence fell: {fence} after {}", self.last_fence);
        self.last_fence = fence;
        self.told = Some(Told { token, fence, status: None });
    }

    /// Ends the run that the client was told of.
    async fn complete(
        &mut self,
        store: &EmbeddedStore,
        key: RecordKey,
        told: Told,
        status: u16,
    ) -> Option<StoreError> {
        let end = End::Done(Kept::Mark(status));
        match store.complete(&Complete { key, token: told.token, end }).await {
            Ok(Completion::Kept(_)) => {
                self.told = Some(Told { status: Some(status), ..told });
                None
            }
            Ok(other) => panic!("it was {told:?}: {other:?}"),
            Err(error) => Some(error),
        }
    }

    /// What was refused has not happened; of what was lost, nobody knows.
    fn failed(&mut self, error: Option<StoreError>) {
        self.in_doubt |= error.is_some_and(|error| error.outcome() == Outcome::Unknown);
    }

    /// What is wrong with what the store says.
    fn differs(&self, what: &str, found: Option<(FencingToken, Option<u16>)>) -> Option<String> {
        let told = self.told.as_ref().map(|told| (told.fence, told.status));
        if self.in_doubt || found == told {
            return None;
        }
        Some(format!("{what}: the store says {found:?}, and the client was told {told:?}"))
    }
}
