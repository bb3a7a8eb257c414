//! The state of a lock as bytes: complete, versioned, and without loss.
//!
//! A snapshot is a format byte and the parts in postcard. `decode(encode(state)) == state` for every
//! state that the rules reach, which `snapshots` in the tests of this crate shows; golden files
//! there hold every published format for ever. Times are those of the store's monotonic clock, so
//! a store that is opened on another clock decides what they mean there.
//!
//! A state is written in the lowest format that has all of it, so that an instance of an older version reads
//! what it can; it refuses a higher format, and grants nothing that it does not understand. Format 1 has one
//! holder, which holds the lock alone and entered it without a name. Format 2 has every holder and the history.
//! Format 3 has the labels of waiters and when they joined, where formats 1 and 2 have only when each last asked.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::entries::{Entries, Entry, EntryName};
use super::history::{Break, EndCause, GrantEnd, History, Reason};
use super::holders::HolderState;
use super::queue::QueueEntry;
use super::rules::LockState;
use super::{Attempt, FencingToken, Limit, Owner, Slots, TokenHash};
use crate::snapshot::{SnapshotError, decode_parts, deserialize_time, encode_parts};

/// The format of a lock that one holder at most has, alone.
const PLAIN_FORMAT: u8 = 1;
/// The format of every other lock whose queue is bare.
const BARE_FORMAT: u8 = 2;
/// The format of every other lock.
const FORMAT: u8 = 3;

#[derive(Serialize, Deserialize)]
struct PlainParts {
    holders: Vec<PlainHolder>,
    queue: Vec<PlainEntry>,
    /// How many there are: no version wrote any. As a list of what takes no bytes, a number in damaged bytes
    /// would be counted down.
    ends: u64,
}

#[derive(Serialize, Deserialize)]
struct PlainHolder {
    token: [u8; 32],
    fencing_token: u64,
    owner: Option<String>,
    #[serde(deserialize_with = "deserialize_time")]
    since: Duration,
    #[serde(deserialize_with = "deserialize_time")]
    ttl: Duration,
    acquired_at_millis: u64,
    sole_attempt: Option<u64>,
    /// The limit, the slot, the entries and why it is broken, as every version wrote them.
    rest: PlainRest,
}

/// Fields that have one value each.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct PlainRest {
    limit: Option<u32>,
    slot: u32,
    /// How many there are, as with `ends`.
    entries: u64,
    broken: Option<()>,
}

#[derive(Serialize, Deserialize)]
struct PlainEntry {
    token: [u8; 32],
    attempt: u64,
    #[serde(deserialize_with = "deserialize_time")]
    since: Duration,
    #[serde(deserialize_with = "deserialize_time")]
    lasts: Duration,
    limit: Option<u32>,
}

/// The limit in format 1.
const PLAIN_LIMIT: Option<u32> = Some(1);
const PLAIN_REST: PlainRest = PlainRest { limit: PLAIN_LIMIT, slot: 0, entries: 0, broken: None };

/// The parts with queue entries as a format has them.
#[derive(Serialize, Deserialize)]
struct Parts<Q> {
    holders: Vec<HolderParts>,
    queue: Vec<Q>,
    ends: Vec<EndParts>,
}

#[derive(Serialize, Deserialize)]
struct HolderParts {
    token: [u8; 32],
    fencing_token: u64,
    owner: Option<String>,
    #[serde(deserialize_with = "deserialize_time")]
    since: Duration,
    #[serde(deserialize_with = "deserialize_time")]
    ttl: Duration,
    acquired_at_millis: u64,
    limit: LimitPart,
    slot: u32,
    entries: Vec<EntryParts>,
    broken: Option<BreakParts>,
}

#[derive(Serialize, Deserialize)]
enum LimitPart {
    Exclusive,
    Counted(u32),
    Shared,
}

#[derive(Serialize, Deserialize)]
struct EntryParts {
    name: Option<String>,
    sole_attempt: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct QueueParts {
    token: [u8; 32],
    attempt: u64,
    #[serde(deserialize_with = "deserialize_time")]
    since: Duration,
    #[serde(deserialize_with = "deserialize_time")]
    lasts: Duration,
    limit: LimitPart,
}

/// A queue entry in format 3.
#[derive(Serialize, Deserialize)]
struct WaiterParts<'a> {
    entry: QueueParts,
    owner: Option<&'a str>,
    #[serde(deserialize_with = "deserialize_time")]
    joined: Duration,
}

#[derive(Serialize, Deserialize)]
struct EndParts {
    token: [u8; 32],
    fencing_token: u64,
    owner: Option<String>,
    acquired_at_millis: u64,
    ended_at_millis: u64,
    /// Why it was broken; `None` for an expiry.
    broken: Option<BreakEndParts>,
}

#[derive(Serialize, Deserialize)]
struct BreakEndParts {
    why: BreakParts,
    /// When that ended it.
    #[serde(deserialize_with = "deserialize_time")]
    since: Duration,
}

#[derive(Serialize, Deserialize)]
struct BreakParts {
    reason: String,
    by: Option<String>,
    at_millis: u64,
}

impl LockState {
    /// The state as bytes.
    ///
    /// # Errors
    ///
    /// The codec failed, which it does on no state that the rules reach.
    pub fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        if is_plain(self) {
            return encode_parts(
                PLAIN_FORMAT,
                &PlainParts {
                    holders: self.holders().map(PlainHolder::of).collect(),
                    queue: self.queue().entries().iter().map(PlainEntry::of).collect(),
                    ends: 0,
                },
            );
        }
        if is_bare(self.queue().entries()) {
            return encode_parts(BARE_FORMAT, &Parts::of(self, QueueParts::of));
        }
        encode_parts(FORMAT, &Parts::of(self, WaiterParts::of))
    }

    /// The state that [`LockState::encode`] wrote.
    ///
    /// # Errors
    ///
    /// The bytes are no snapshot, or one of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        match bytes.first() {
            Some(&PLAIN_FORMAT) => decode_parts::<PlainParts>(PLAIN_FORMAT, bytes)?.into_state(),
            Some(&BARE_FORMAT) => {
                decode_parts::<Parts<_>>(BARE_FORMAT, bytes)?.into_state(QueueParts::into_entry)
            }
            _ => decode_parts::<Parts<_>>(FORMAT, bytes)?.into_state(WaiterParts::into_entry),
        }
    }
}

impl PlainParts {
    fn into_state(self) -> Result<LockState, SnapshotError> {
        let Self { holders, queue, ends } = self;
        if holders.len() > 1 || ends > 0 {
            return Err(SnapshotError::Malformed);
        }
        let holders: Vec<_> =
            holders.into_iter().map(PlainHolder::into_state).collect::<Result<_, _>>()?;
        let queue: Vec<_> =
            queue.into_iter().map(PlainEntry::into_entry).collect::<Result<_, _>>()?;
        Ok(LockState::new(holders, queue.into_iter().collect(), History::default()))
    }
}

impl<Q> Parts<Q> {
    fn of<'a>(state: &'a LockState, entry: impl Fn(&'a QueueEntry) -> Q) -> Self {
        Self {
            holders: state.holders().map(HolderParts::of).collect(),
            queue: state.queue().entries().iter().map(entry).collect(),
            ends: state.history().ends().iter().map(EndParts::of).collect(),
        }
    }

    fn into_state(
        self,
        entry: impl Fn(Q) -> Result<QueueEntry, SnapshotError>,
    ) -> Result<LockState, SnapshotError> {
        let Self { holders, queue, ends } = self;
        let holders: Vec<_> =
            holders.into_iter().map(HolderParts::into_state).collect::<Result<_, _>>()?;
        if !holders.is_sorted_by(|one, next| one.slot < next.slot) {
            return Err(SnapshotError::Malformed);
        }
        let queue: Vec<_> = queue.into_iter().map(entry).collect::<Result<_, _>>()?;
        let ends: Vec<_> = ends.into_iter().map(EndParts::into_end).collect::<Result<_, _>>()?;
        Ok(LockState::new(holders, queue.into_iter().collect(), ends.into_iter().collect()))
    }
}

/// Whether format 1 has all of the state.
fn is_plain(state: &LockState) -> bool {
    let is_plain = |holder: &HolderState| {
        holder.limit == Limit::Exclusive
            && holder.slot == 0
            && holder.broken.is_none()
            && holder.entries.iter().map(|entry| &entry.name).eq([&None])
    };
    let queue = state.queue().entries();
    state.holders().all(is_plain)
        && queue.iter().all(|entry| entry.limit == Limit::Exclusive)
        && is_bare(queue)
        && state.history().ends().is_empty()
}

/// Whether formats 1 and 2 have all of the queue: no waiter has a label, or has kept its entry since it joined.
fn is_bare(queue: &[QueueEntry]) -> bool {
    queue.iter().all(|entry| entry.owner.is_none() && entry.joined == entry.since)
}

impl PlainHolder {
    fn of(holder: &HolderState) -> Self {
        Self {
            token: *holder.token.as_bytes(),
            fencing_token: holder.fencing_token.get(),
            owner: text(holder.owner.as_ref()),
            since: holder.since,
            ttl: holder.ttl,
            acquired_at_millis: holder.acquired_at_millis,
            sole_attempt: sole_attempt(&holder.entries),
            rest: PLAIN_REST,
        }
    }

    fn into_state(self) -> Result<HolderState, SnapshotError> {
        if self.rest != PLAIN_REST {
            return Err(SnapshotError::Malformed);
        }
        let sole_attempt = self.sole_attempt.map(Attempt::new);
        Ok(HolderState {
            token: TokenHash::from_bytes(self.token),
            fencing_token: FencingToken::new(self.fencing_token),
            owner: owner(self.owner.as_deref())?,
            since: self.since,
            ttl: self.ttl,
            acquired_at_millis: self.acquired_at_millis,
            limit: Limit::Exclusive,
            slot: 0,
            entries: Entries::of(Entry { name: None, sole_attempt }),
            broken: None,
        })
    }
}

/// That of the one entry of a plain holder.
fn sole_attempt(entries: &Entries) -> Option<u64> {
    entries.iter().next().and_then(|entry| entry.sole_attempt).map(Attempt::get)
}

/// What stands for the attempt of a queue entry that several requests keep. No request makes it.
const NO_ATTEMPT: u64 = u64::MAX;

fn queue_attempt(sole: Option<Attempt>) -> u64 {
    sole.map_or(NO_ATTEMPT, Attempt::get)
}

fn sole_queue_attempt(attempt: u64) -> Option<Attempt> {
    (attempt != NO_ATTEMPT).then(|| Attempt::new(attempt))
}

impl PlainEntry {
    fn of(entry: &QueueEntry) -> Self {
        let QueueEntry { token, sole_attempt, since, lasts, .. } = entry;
        let (token, attempt) = (*token.as_bytes(), queue_attempt(*sole_attempt));
        Self { token, attempt, since: *since, lasts: *lasts, limit: PLAIN_LIMIT }
    }

    fn into_entry(self) -> Result<QueueEntry, SnapshotError> {
        let Self { token, attempt, since, lasts, limit } = self;
        if limit != PLAIN_LIMIT {
            return Err(SnapshotError::Malformed);
        }
        let (token, sole_attempt) = (TokenHash::from_bytes(token), sole_queue_attempt(attempt));
        let (limit, owner) = (Limit::Exclusive, None);
        Ok(QueueEntry { token, sole_attempt, since, lasts, limit, owner, joined: since })
    }
}

impl HolderParts {
    fn of(holder: &HolderState) -> Self {
        Self {
            token: *holder.token.as_bytes(),
            fencing_token: holder.fencing_token.get(),
            owner: text(holder.owner.as_ref()),
            since: holder.since,
            ttl: holder.ttl,
            acquired_at_millis: holder.acquired_at_millis,
            limit: LimitPart::of(holder.limit),
            slot: holder.slot,
            entries: holder.entries.iter().map(EntryParts::of).collect(),
            broken: holder.broken.as_deref().map(BreakParts::of),
        }
    }

    fn into_state(self) -> Result<HolderState, SnapshotError> {
        let entries = self.entries.into_iter().map(EntryParts::into_entry);
        let entries: Vec<_> = entries.collect::<Result<_, _>>()?;
        let broken = self.broken.map(BreakParts::into_break).transpose()?;
        Ok(HolderState {
            token: TokenHash::from_bytes(self.token),
            fencing_token: FencingToken::new(self.fencing_token),
            owner: owner(self.owner.as_deref())?,
            since: self.since,
            ttl: self.ttl,
            acquired_at_millis: self.acquired_at_millis,
            limit: self.limit.into_limit()?,
            slot: self.slot,
            entries: entries.try_into().map_err(|_| SnapshotError::Malformed)?,
            broken: broken.map(Arc::new),
        })
    }
}

impl LimitPart {
    fn of(limit: Limit) -> Self {
        match limit {
            Limit::Exclusive => Self::Exclusive,
            Limit::Counted(slots) => Self::Counted(slots.get()),
            Limit::Shared => Self::Shared,
        }
    }

    fn into_limit(self) -> Result<Limit, SnapshotError> {
        Ok(match self {
            Self::Exclusive => Limit::Exclusive,
            Self::Counted(slots) => {
                let slots = Slots::new(slots.into()).map_err(|_| SnapshotError::Malformed)?;
                Limit::Counted(slots)
            }
            Self::Shared => Limit::Shared,
        })
    }
}

impl EntryParts {
    fn of(entry: &Entry) -> Self {
        Self {
            name: entry.name.as_ref().map(|name| name.as_str().to_owned()),
            sole_attempt: entry.sole_attempt.map(Attempt::get),
        }
    }

    fn into_entry(self) -> Result<Entry, SnapshotError> {
        let name = self.name.map(|name| EntryName::parse(&name)).transpose();
        Ok(Entry {
            name: name.map_err(|_| SnapshotError::Malformed)?,
            sole_attempt: self.sole_attempt.map(Attempt::new),
        })
    }
}

impl QueueParts {
    fn of(entry: &QueueEntry) -> Self {
        let QueueEntry { token, sole_attempt, since, lasts, limit, .. } = entry;
        let (token, attempt) = (*token.as_bytes(), queue_attempt(*sole_attempt));
        Self { token, attempt, since: *since, lasts: *lasts, limit: LimitPart::of(*limit) }
    }

    fn into_entry(self) -> Result<QueueEntry, SnapshotError> {
        let Self { token, attempt, since, lasts, limit } = self;
        let (token, sole_attempt) = (TokenHash::from_bytes(token), sole_queue_attempt(attempt));
        let (limit, owner) = (limit.into_limit()?, None);
        Ok(QueueEntry { token, sole_attempt, since, lasts, limit, owner, joined: since })
    }
}

impl<'a> WaiterParts<'a> {
    fn of(entry: &'a QueueEntry) -> Self {
        let owner = entry.owner.as_ref().map(Owner::as_str);
        Self { entry: QueueParts::of(entry), owner, joined: entry.joined }
    }

    fn into_entry(self) -> Result<QueueEntry, SnapshotError> {
        let Self { entry, owner: label, joined } = self;
        Ok(QueueEntry { owner: owner(label)?, joined, ..entry.into_entry()? })
    }
}

impl EndParts {
    fn of(end: &GrantEnd) -> Self {
        Self {
            token: *end.token.as_bytes(),
            fencing_token: end.fencing_token.get(),
            owner: text(end.owner.as_ref()),
            acquired_at_millis: end.acquired_at_millis,
            ended_at_millis: end.ended_at_millis,
            broken: match &end.cause {
                EndCause::Expiry => None,
                EndCause::Break { why, since } => {
                    Some(BreakEndParts { why: BreakParts::of(why), since: *since })
                }
            },
        }
    }

    fn into_end(self) -> Result<GrantEnd, SnapshotError> {
        let cause = match self.broken {
            None => EndCause::Expiry,
            Some(BreakEndParts { why, since }) => {
                EndCause::Break { why: Arc::new(why.into_break()?), since }
            }
        };
        Ok(GrantEnd {
            token: TokenHash::from_bytes(self.token),
            fencing_token: FencingToken::new(self.fencing_token),
            owner: owner(self.owner.as_deref())?,
            acquired_at_millis: self.acquired_at_millis,
            ended_at_millis: self.ended_at_millis,
            cause,
        })
    }
}

impl BreakParts {
    fn of(why: &Break) -> Self {
        let Break { reason, by, at_millis } = why;
        Self { reason: reason.as_str().to_owned(), by: text(by.as_ref()), at_millis: *at_millis }
    }

    fn into_break(self) -> Result<Break, SnapshotError> {
        Ok(Break {
            reason: Reason::parse(&self.reason).map_err(|_| SnapshotError::Malformed)?,
            by: owner(self.by.as_deref())?,
            at_millis: self.at_millis,
        })
    }
}

fn text(owner: Option<&Owner>) -> Option<String> {
    owner.map(|owner| owner.as_str().to_owned())
}

fn owner(label: Option<&str>) -> Result<Option<Owner>, SnapshotError> {
    Owner::parse(label.unwrap_or_default()).map_err(|_| SnapshotError::Malformed)
}
