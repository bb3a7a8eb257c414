use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;

use super::{
    Acquire, Acquisition, Attempt, FencingToken, Holder, LockName, Release, Renewal, TokenHash, Ttl,
};

/// Where locks are kept.
///
/// # Contract
///
/// - Every method is **one atomic step**: whoever looks sees the lock before it or after it.
/// - Every method is **safe to repeat**: the same call again changes nothing that the first did
///   not, and tells the caller the same about its own grant.
/// - **Held, expired and mismatched are values.** `Err` means that the store could not find out,
///   and [`StoreError::outcome`] says whether the step may have been taken all the same.
/// - A lock **expires by the store's clock**, judged at the moment of the step. What crosses this
///   trait is a duration, so no two clocks are ever compared.
/// - **Fencing tokens rise**: a grant's token is larger than that of every earlier grant of the
///   same name, over release, expiry and restart, and also when the counter was lost, as long as
///   the store's wall clock did not go back.
/// - A store **never waits for a lock** and keeps no deadline: [`LockService`](super::LockService)
///   does. A future that is dropped may leave its step taken or not.
///
/// The rules are those of [`LockState`](super::LockState); the conformance tests hold every store
/// to them. There are no default methods, so that a wrapper cannot forget to pass one on.
#[async_trait]
pub trait LockStore: fmt::Debug + Send + Sync + 'static {
    /// Grants the lock, or says why not and keeps a place in line, if a place is asked for. The
    /// same token again is the same grant, or keeps the same place.
    ///
    /// Who has a place is served in the order in which they came, and before all who have none.
    async fn acquire(&self, ask: &Acquire) -> Result<Acquisition, StoreError>;

    /// Takes back what `attempt` got with `token`, be it the lock or a place, unless another
    /// attempt was given the same or the grant was renewed: then somebody may rely on it, and
    /// nothing happens.
    async fn withdraw(
        &self,
        name: &LockName,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError>;

    /// Lets the lease of `token` last `ttl` from now; its fencing token stays.
    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<Renewal, StoreError>;

    /// Gives the lock back, if `token` holds it.
    async fn release(&self, name: &LockName, token: &TokenHash) -> Result<Release, StoreError>;

    /// Who holds the lock.
    async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError>;

    /// Some of the held locks, in no order, and where to go on. `None` when the cursor is not
    /// one that this store gave.
    ///
    /// Over all pages, a lock that was held throughout is there at least once.
    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError>;

    /// The longest TTL that the store takes: what it needs to keep its promise, where it needs to know.
    fn max_ttl(&self) -> Ttl;

    /// Resolves when it may be `token`'s turn: a hint, to be taken before `acquire` and awaited after
    /// it. It may come too often and, where messages get lost, not at all.
    fn turn(&self, name: &LockName, token: &TokenHash) -> Turn;

    /// Says how `name` changes from now on, for those who watch it: a hint that may get lost, and says
    /// so where that is known. The service looks every second all the same, so a store that hears of
    /// nothing gives a stream that never does ([`futures_util::stream::pending`]), and what comes and
    /// goes between two looks is not seen then.
    fn changes(&self, name: &LockName) -> Changes;

    /// Asks whether the store can do its work, and what it is.
    async fn ping(&self) -> Result<StoreHealth, StoreError>;

    /// Forgets what has expired, to give its space back. A store whose engine does this by
    /// itself has nothing to do.
    async fn sweep(&self) -> Result<(), StoreError>;
}

/// A hint to come: see [`LockStore::turn`].
pub type Turn = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Changes to come: see [`LockStore::changes`].
pub type Changes = Pin<Box<dyn Stream<Item = Change> + Send>>;

/// What a store says of a lock that is watched. Nobody says that a lease has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It was granted.
    Acquired(Holder),
    /// The lease of a grant goes on, or was made shorter.
    Renewed(Holder),
    /// The grant with this fencing token was given back.
    Released(FencingToken),
    /// Something may not have been said.
    Missed,
}

/// The store could not find out. The causes are for the log, not for the client.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The command did not reach the store.
    #[error("the store cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store answered that it does not take the command.
    #[error("the store refused the command")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The command was sent, and its answer was lost or makes no sense.
    #[error("the store's answer was lost")]
    Lost(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer came in time.
    #[error("the store gave no answer within {0:?}")]
    Deadline(Duration),
}

impl StoreError {
    /// Whether the command may have been carried out.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Unreachable(_) | Self::Refused(_) => Outcome::NotExecuted,
            Self::Lost(_) | Self::Deadline(_) => Outcome::Unknown,
        }
    }
}

/// What is known of a command that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It had no effect.
    NotExecuted,
    /// It may have been carried out or not. The same request with the same token may be repeated.
    Unknown,
}

/// Which locks to list.
#[derive(Debug, Clone)]
pub struct ListLocks {
    /// Only names that begin so.
    pub prefix: String,
    /// At most this many.
    pub limit: usize,
    /// Go on where the page that gave this cursor ended.
    pub cursor: Option<Cursor>,
}

/// Some of the locks that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The locks. There may be fewer than asked for, or none, although more follow.
    pub locks: Vec<Holder>,
    /// Where the next page begins; `None` when this was the last.
    pub next: Option<Cursor>,
}

/// A place in a listing, meaningful to the store that gave it: 1 to 512 of
/// `A-Z a-z 0-9 _ - .`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(String);

impl Cursor {
    /// Checks that `text` can be a cursor.
    ///
    /// # Errors
    ///
    /// It cannot.
    pub fn parse(text: &str) -> Result<Self, InvalidCursor> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if (1..=512).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidCursor)
        }
    }

    /// The cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is no [`Cursor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not a cursor that this service gave")]
pub struct InvalidCursor;

/// What a store says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHealth {
    /// What it promises.
    pub tier: Tier,
    /// What it is, for people: version, role, persistence.
    pub facts: BTreeMap<&'static str, String>,
}

/// How much a store's grant is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// An answered grant survives a crash of the store: it is on disk before the answer.
    Strict,
    /// Grants live and die with the process.
    Process,
    /// A crash of the store may forget the last grants.
    BestEffort,
    /// A failover may forget the last grants, and then two hold the lock: the fencing token decides.
    Fenced,
}

impl Tier {
    /// The tier's name, as the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Process => "process",
            Self::BestEffort => "best-effort",
            Self::Fenced => "fenced",
        }
    }

    /// The tier in a sentence, for people.
    pub fn promise(self) -> &'static str {
        match self {
            Self::Strict => "A grant is on disk before it is answered: a crash forgets none.",
            Self::Process => "Grants are gone with the process; fencing tokens go on rising.",
            Self::BestEffort => {
                "A crash of the store may forget the last grants; fencing tokens go on rising."
            }
            Self::Fenced => {
                "A failover may forget the last grants, and grant them anew under higher fencing \
                 tokens: the resource that refuses lower ones decides."
            }
        }
    }
}
