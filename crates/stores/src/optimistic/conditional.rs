//! The port of the engines that write on a condition: small values under keys, each with a version.
//!
//! "Conditional write" is what S3, DynamoDB and RFC 9110 call it; compare-and-set is its mechanism.
//! An engine implements [`ConditionalStore`] and knows no lock and no record:
//! [`Optimistic`](super::Optimistic) runs the rules over it. The contract is on the trait, and the
//! fake engine of `tests/optimistic` breaks it in every way that an engine may.

use std::fmt;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use keylatch_core::idempotency::RecordKey;
use keylatch_core::lock::{FencingToken, LockName};
use keylatch_core::store::{StoreError, StoreHealth, StoreProfile};
use tokio::time::Instant;

pub use super::timeline::{EngineTime, Timeline, Version};
pub use crate::hints::TurnMark;

/// How many changes [`ConditionalStore::write_all`] has at most: each may compare two rows, and an
/// etcd takes 128 comparisons.
pub const TOGETHER: usize = 64;

/// Small values under keys, each with a version that no other value of the key ever had.
///
/// # Contract
///
/// - [`write`](Self::write) carries out each change by itself and atomically, if the version of its
///   key is still the one that it names *and* the engine's clock is in its guard. It is as durable
///   as the tier says before it is answered. A key is at most once in a batch.
/// - [`write_all`](Self::write_all) does so with all changes together: every observer sees all of
///   them or none, and so does a crash. It has at most [`TOGETHER`] of them.
/// - A row that was [removed](Self::remove) may count as having the version that a change names:
///   the adapter removes only what nothing changed for longer than any process remembers it.
/// - [`read`](Self::read) sees every change that was answered before it began.
/// - An error says whether any change of the batch may have been carried out. An engine does not
///   retry.
/// - A future that is dropped leaves its changes carried out or not, and never half.
#[async_trait]
pub trait ConditionalStore: fmt::Debug + Send + Sync + 'static {
    /// The rows of `keys`, in their order, and what the engine's clock showed.
    async fn read(&self, keys: &[Key]) -> Result<ReadReply, StoreError>;

    /// The rows of `keys` as the nearest part of the engine has them, where that costs less than
    /// [`Self::read`]. They may be older than what was answered: a change of them names their
    /// version, and nothing else comes of them.
    async fn peek(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        self.read(keys).await
    }

    /// Carries out independent changes.
    async fn write(&self, changes: &[Change]) -> Result<WriteReply, StoreError>;

    /// Carries out all changes in one atomic step, or none: each has a version then, or none has.
    /// They are of locks, and none marks its row.
    async fn write_all(&self, changes: &[Change]) -> Result<WriteReply, StoreError>;

    /// Up to `limit` rows whose keys begin with `prefix` and come after `after`, in an order of the
    /// keys that is the engine's own. There are fewer only where no more follow.
    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Listing, StoreError>;

    /// Removes the rows whose version is still the one that is named here, and what says that they
    /// are marked. Where the engine [forgets](Self::forgets), it is called of marks whose row is
    /// not there, with a version of none.
    async fn remove(&self, rows: &[Removal]) -> Result<(), StoreError>;

    /// Up to `limit` keys of [marked](Mark) rows that come after `after`, in the order of
    /// [`Self::list`]. There are fewer only where no more follow, and a page costs as many steps as
    /// it has keys.
    ///
    /// Over all pages, a row that was marked throughout is there. There may be keys whose row is
    /// not marked, or is not there: what comes of these is read.
    async fn marked(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Key>, StoreError>;

    /// What other processes write, from now on. It may say too much or too little; after a gap it
    /// says [`Notice::Missed`].
    fn notices(&self) -> BoxStream<'static, Notice>;

    /// Whether the engine can do its work, and what it is.
    async fn health(&self) -> Result<StoreHealth, StoreError>;

    /// What the engine can do.
    fn profile(&self) -> StoreProfile;

    /// When this process saw which version, if the engine has no clock: it notes there what the
    /// engine says before it hands it on.
    fn timeline(&self) -> Option<&Timeline> {
        None
    }

    /// Whether the engine itself removes a row by the time that the row's [`Outline`] says, and
    /// judges itself whether a fencing token is above all that its bucket gave. A row that it
    /// removed is not there: it has no version. A floor reads as a [`floor_row`](crate::floor_row)
    /// then, none is written, and nothing is swept.
    fn forgets(&self) -> bool {
        false
    }

    /// Whether a [promise](Outline::is_promise) is answered only when other machines have it. Then
    /// one that is repeated is written again, so that they have it too.
    fn replicates(&self) -> bool {
        false
    }

    /// How many batches of one kind may be under way at once, in any order. What comes meanwhile
    /// makes the next one, so few are best where a batch costs little more than a change.
    fn writes_at_once(&self) -> usize {
        1
    }

    /// Into how many parts the buckets fall that have a clock each, and fail each by itself. With
    /// several, as the slots of a Redis Cluster are, a step on several locks is
    /// [`Unsupported`](StoreError::Unsupported), and [`Self::write_all`] is not called. A call is
    /// about keys of one part, but for [`Self::marked`] and [`Self::remove`]. A bucket is in the
    /// part of its number modulo this. The adapter lists no locks of several parts and no records
    /// that are done: the engine's own store does.
    fn parts(&self) -> usize {
        1
    }
}

/// Where a value is kept.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The state of a lock and its queue.
    Lock(LockName),
    /// A record.
    Record(RecordKey),
    /// The fencing token that every later grant of a bucket is above.
    Floor(u8),
    /// Which store it is.
    Id,
}

impl Key {
    /// What the bytes of every lock's key begin with.
    pub const LOCKS: &[u8] = b"l";
    /// What the bytes of every record's key begin with.
    pub const RECORDS: &[u8] = b"r";
    /// What the bytes of every floor's key begin with.
    const FLOORS: &[u8] = b"f";
    /// The bytes of the key of the store's id.
    const ID: &[u8] = b"i";

    /// The key as an engine keeps it: locks in the order of their names.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Lock(name) => [Self::LOCKS, name.as_str().as_bytes()].concat(),
            Self::Record(key) => [Self::RECORDS, key.as_bytes()].concat(),
            Self::Floor(bucket) => [Self::FLOORS, &[*bucket]].concat(),
            Self::Id => Self::ID.to_vec(),
        }
    }

    /// The key that has these bytes; `None` for those of no key.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_at_checked(1)?;
        match kind {
            Self::LOCKS => {
                let name = LockName::stored(std::str::from_utf8(rest).ok()?);
                name.ok().map(Self::Lock)
            }
            Self::RECORDS => rest.try_into().ok().map(RecordKey::from_bytes).map(Self::Record),
            Self::FLOORS => <[u8; 1]>::try_from(rest).ok().map(|[bucket]| Self::Floor(bucket)),
            Self::ID if rest.is_empty() => Some(Self::Id),
            _ => None,
        }
    }

    /// The bucket whose floor the grants under this key are above.
    pub fn bucket(&self) -> u8 {
        match self {
            Self::Lock(name) => name.bucket(),
            Self::Record(key) => key.bucket(),
            Self::Floor(bucket) => *bucket,
            Self::Id => 0,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(name) => name.fmt(f),
            Self::Record(key) => key.fmt(f),
            Self::Floor(bucket) => write!(f, "Floor({bucket:02x})"),
            Self::Id => f.write_str("Id"),
        }
    }
}

/// The first bytes after all that begin with `prefix`.
#[cfg(any(feature = "postgres", feature = "etcd"))]
pub(crate) fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// A value and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The version.
    pub version: Version,
    /// The value.
    pub value: Vec<u8>,
}

/// Rows that were read.
#[derive(Debug, Clone)]
pub struct ReadReply {
    /// The row of each key that was asked for; `None` where there is none.
    pub rows: Vec<Option<Row>>,
    /// When the engine was asked, over a connection that was there: its clock showed `now` after
    /// that.
    pub asked: Instant,
    /// What the engine's clock showed meanwhile.
    pub now: EngineTime,
}

/// Rows in the order of their keys.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The rows.
    pub rows: Vec<(Key, Row)>,
    /// What the engine's clock showed meanwhile.
    pub now: EngineTime,
}

/// Whether a row is one of the few that [`ConditionalStore::marked`] finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Whether the row that the change replaces is marked.
    pub was: bool,
    /// Whether the row is from now on.
    pub is: bool,
}

/// A row that is to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Its key.
    pub key: Key,
    /// The version that it must have.
    pub version: Version,
    /// Whether it is marked.
    pub is_marked: bool,
}

/// A write on a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What to write.
    pub key: Key,
    /// The version that the row must have; `None` where there must be no row.
    pub was: Option<Version>,
    /// The new value.
    pub value: Vec<u8>,
    /// Whether the row is marked. The engine writes that in the same step as the row.
    pub mark: Mark,
    /// When the engine may carry it out. An engine without a clock asks its [`Timeline`] before it
    /// sends the change, and the version decides alone after that.
    pub guard: Guard,
    /// Where there must be no row: the floor that the new value is above, and the version that the
    /// row of the floor must have. Only an engine without a clock checks it; the guard says it to
    /// the others.
    pub above: Option<(Key, Option<Version>)>,
    /// What the engine may know of the row.
    pub outline: Outline,
}

/// What an engine may know of a row whose value it does not understand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outline {
    /// The fencing token that the change gives, if it gives one.
    pub given: Option<FencingToken>,
    /// Until when the row is kept, some time after all in it has ended; zero for a row that nothing
    /// is in.
    pub lasts: EngineTime,
    /// Whether a client relies on the change once it is answered: a grant, for one.
    pub is_promise: bool,
    /// The waiters that the lock is free for by the change.
    pub turns: Vec<TurnMark>,
}

/// The time within which a decision holds, on the engine's clock: not before `from`, and before
/// `until`.
///
/// A decision takes some leases as over and others as lasting. The engine carries it out only while
/// both are so, so that its clock judges at the moment of the step, whatever was paused in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// The latest end that the decision took as past.
    pub from: EngineTime,
    /// The earliest end that the decision took as to come.
    pub until: EngineTime,
}

impl Guard {
    /// Whether the engine may carry out the change at `now`.
    pub fn allows(&self, now: EngineTime) -> bool {
        self.from <= now && now < self.until
    }
}

/// What became of a batch.
#[derive(Debug)]
pub struct WriteReply {
    /// The new version of each change; `None` where its condition or its guard did not hold.
    pub versions: Vec<Option<Version>>,
    /// The changes that failed by themselves, by their place in the batch.
    pub failed: Vec<(usize, StoreError)>,
    /// The rows that were there in place of those that changes named, by the place of the change,
    /// as far as the engine says so.
    pub found: Vec<(usize, Option<Row>)>,
    /// When the engine was asked, as of a [`ReadReply`].
    pub asked: Instant,
    /// What the engine's clock showed meanwhile.
    pub now: EngineTime,
}

impl WriteReply {
    /// That of an engine that says nothing of a single change but its version.
    pub fn new(versions: Vec<Option<Version>>, asked: Instant, now: EngineTime) -> Self {
        Self { versions, failed: Vec::new(), found: Vec::new(), asked, now }
    }
}

/// What an engine says of its rows unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The row of this key has this version now, if the engine said which.
    Changed(Key, Option<Version>),
    /// The row of this key has this version now, and of all waiters the lock became free for these
    /// alone. An engine may say so in place of [`Notice::Changed`].
    Turns(Key, Version, Vec<TurnMark>),
    /// The row of this key is this now. If the engine [forgets](ConditionalStore::forgets) and
    /// nothing is in it, it is not there.
    Row(Key, Row),
    /// Some notices may have been lost.
    Missed,
}
