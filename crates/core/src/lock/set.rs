//! Several locks at once: one step on all of them, by the rules of each.
//!
//! A set is acquired as a whole. Either every lock has room for the token, and it gets all of them, or it
//! gets none and joins the lines of all. Since one step joins all lines, any two sets that wait stand in
//! the same order in every queue that they share, and none that waits holds a lock of its set: so no two
//! wait for each other. The price is that of first come, first served: the first in one line holds that
//! lock up until it is the first in its other lines as well.
//!
//! Invariants: an acquire and a renewal do all or nothing; a token that holds a lock of the set never waits
//! for the others; the entries of a set are kept together. Tested in `tests/sets`, by the conformance of
//! sets and over HTTP.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::{
    AcquireCommand, AcquireReply, Attempt, Contention, Lease, LockCommand, LockLoss, LockName,
    LockReply, LockState, Moment, Release, ReleaseReply, RenewReply, TokenHash, Ttl,
};
use crate::entry::Entry as _;

/// The names of several locks: 2 to 16, each once, in the order in which the client named them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockSet(Arc<[LockName]>);

impl LockSet {
    /// The fewest locks of a set.
    pub const MIN: usize = 2;
    /// The most locks of a set.
    pub const MAX: usize = 16;

    /// Checks the names.
    ///
    /// # Errors
    ///
    /// There are too few or too many, or one is there twice.
    pub fn new(names: Vec<LockName>) -> Result<Self, InvalidLockSet> {
        if !(Self::MIN..=Self::MAX).contains(&names.len()) {
            return Err(InvalidLockSet::Count(names.len()));
        }
        let mut seen = BTreeSet::new();
        match names.iter().find(|name| !seen.insert(*name)) {
            Some(twice) => Err(InvalidLockSet::Twice(twice.clone())),
            None => Ok(Self(names.into())),
        }
    }

    /// The names, in the order in which the client named them.
    pub fn names(&self) -> &[LockName] {
        &self.0
    }
}

impl fmt::Debug for LockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Why names are no [`LockSet`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLockSet {
    /// There are so many.
    #[error("has 2 to 16 names, this one has {0}")]
    Count(usize),
    /// One is there twice.
    #[error("has each name once, this one has `{}` twice", .0.as_str())]
    Twice(LockName),
}

/// One step on all locks of a [`LockSet`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetCommand {
    /// Grants all of them, or keeps a place in the queue of each. It names no entry.
    Acquire(AcquireCommand),
    /// Undoes what one attempt got of each.
    Withdraw {
        /// The token of the attempt.
        token: TokenHash,
        /// The attempt.
        attempt: Attempt,
    },
    /// Lets all leases last a full TTL from now, or none.
    Renew {
        /// The holder's token.
        token: TokenHash,
        /// The new TTL.
        ttl: Ttl,
    },
    /// Ends all leases of the token.
    Release {
        /// The holder's token.
        token: TokenHash,
    },
}

impl SetCommand {
    /// Whether it undoes another command, which may still be on its way.
    pub fn is_undo(&self) -> bool {
        matches!(self, Self::Withdraw { .. })
    }
}

/// What a [`SetCommand`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetReply {
    /// To [`SetCommand::Acquire`].
    Acquire(SetAcquireReply),
    /// To [`SetCommand::Withdraw`].
    Withdraw,
    /// To [`SetCommand::Renew`].
    Renew(SetRenewReply),
    /// To [`SetCommand::Release`].
    Release(SetRelease),
}

/// What became of a release of several locks, each in the order of the names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetRelease {
    /// The locks that the token held and no longer does.
    pub released: Vec<(LockName, Release)>,
    /// Those that it did not hold.
    pub lost: Vec<LostLock>,
}

/// What became of an acquire of several locks. The leases are in the order of the names. What is granted
/// is new in one lock at least; a token that holds one of them and waits for others is
/// [`NotAlone`](AcquireReply::NotAlone), because two such holders would wait for each other.
pub type SetAcquireReply = AcquireReply<Vec<Lease>, SetContention>;

/// Why not all locks of a set are to be had now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetContention {
    /// The first that is not.
    pub name: LockName,
    /// Why it is not.
    pub contention: Contention,
    /// How many waiters are before the token in the longest of the queues.
    pub most_ahead: u64,
}

/// What became of a renewal of several locks: all leases, in the order of the names, or none, because some
/// locks are lost.
pub type SetRenewReply = RenewReply<Vec<Lease>, Vec<LostLock>>;

/// A lock of a set that the token does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostLock {
    /// The name of the lock, one of the set's.
    pub name: LockName,
    /// How it was lost.
    pub loss: LockLoss,
}

/// The state of one lock of a set, and the moment at which a step finds it. The clock shows the same in
/// all moments of a step; the last fencing token is the lock's own.
#[derive(Debug, Clone)]
pub struct SetMember {
    /// What the store remembers of the lock.
    pub state: LockState,
    /// When the step is.
    pub moment: Moment,
}

impl SetCommand {
    /// The states after the command, in the order of the names, and what the command found. `members` has
    /// one for each name.
    pub fn apply(&self, set: &LockSet, members: &[SetMember]) -> (Vec<LockState>, SetReply) {
        let each = |command: &LockCommand| -> (Vec<LockState>, Vec<LockReply>) {
            let steps = set.names().iter().zip(members);
            let steps =
                steps.map(|(name, SetMember { state, moment })| state.apply(name, command, moment));
            steps.unzip()
        };
        match self {
            Self::Acquire(command) => acquire(set, members, command, each),
            Self::Withdraw { token, attempt } => {
                let command = LockCommand::Withdraw { token: *token, attempt: *attempt };
                (each(&command).0, SetReply::Withdraw)
            }
            Self::Renew { token, ttl } => {
                let (renewed, replies) = each(&LockCommand::Renew { token: *token, ttl: *ttl });
                match renewals(set, replies) {
                    reply @ SetRenewReply::Renewed(_) => (renewed, SetReply::Renew(reply)),
                    reply @ SetRenewReply::Lost(_) => (live(members), SetReply::Renew(reply)),
                }
            }
            Self::Release { token } => {
                let (states, replies) = each(&LockCommand::Release { token: *token, entry: None });
                (states, SetReply::Release(releases(set, replies)))
            }
        }
    }
}

fn acquire(
    set: &LockSet,
    members: &[SetMember],
    command: &AcquireCommand,
    each: impl Fn(&LockCommand) -> (Vec<LockState>, Vec<LockReply>),
) -> (Vec<LockState>, SetReply) {
    // Each by itself joins no queue: whether all have room is known only after the last.
    let alone = AcquireCommand { queue: None, ..command.clone() };
    let (states, replies) = each(&LockCommand::Acquire(alone));
    let Verdicts { leases, is_new, busy, never } = Verdicts::of(set, replies);
    let is_held = |it: &SetMember| it.state.is_held_by(&command.token, &it.moment);
    let (states, reply) = match (never, busy) {
        (Some(never), _) => (live(members), never),
        (None, None) if is_new => (states, AcquireReply::Granted(leases)),
        (None, None) => (states, AcquireReply::Repeated(leases)),
        (None, Some(busy)) if command.queue.is_none() => (live(members), AcquireReply::Busy(busy)),
        (None, Some(busy)) if members.iter().any(is_held) => {
            (live(members), AcquireReply::NotAlone(busy))
        }
        (None, Some(busy)) => (joined(members, command), AcquireReply::Busy(busy)),
    };
    (states, SetReply::Acquire(reply))
}

/// What the locks of a set say to an acquire, each by itself.
#[derive(Default)]
struct Verdicts {
    leases: Vec<Lease>,
    /// One of the leases is.
    is_new: bool,
    /// The first lock that is not to be had now.
    busy: Option<SetContention>,
    /// Why no release lets the token have what it asks.
    never: Option<SetAcquireReply>,
}

impl Verdicts {
    fn of(set: &LockSet, replies: Vec<LockReply>) -> Self {
        let (mut all, mut most_ahead) = (Self::default(), 0);
        for (name, reply) in set.names().iter().zip(replies) {
            let LockReply::Acquire(reply) = reply else { continue };
            let of = |contention| SetContention { name: name.clone(), contention, most_ahead: 0 };
            match reply {
                AcquireReply::Granted(lease) => {
                    all.is_new = true;
                    all.leases.push(lease);
                }
                AcquireReply::Repeated(lease) => all.leases.push(lease),
                AcquireReply::Busy(why) => {
                    most_ahead = most_ahead.max(why.ahead);
                    all.busy.get_or_insert_with(|| of(why));
                }
                AcquireReply::NotAlone(why) => {
                    all.never.get_or_insert_with(|| AcquireReply::NotAlone(of(why)));
                }
                AcquireReply::WaitEnded(why) => all.never = Some(AcquireReply::WaitEnded(why)),
                AcquireReply::Full => {
                    all.never.get_or_insert(AcquireReply::Full);
                }
            }
        }
        all.busy = all.busy.map(|busy| SetContention { most_ahead, ..busy });
        all
    }
}

/// The states with an entry of the token in every queue: all where they were, or all at the end. One that
/// kept a place in some queues alone might be before another set there, and behind it elsewhere.
fn joined(members: &[SetMember], command: &AcquireCommand) -> Vec<LockState> {
    let is_in_all =
        members.iter().all(|member| member.state.has_entry(&command.token, &member.moment));
    let join = |member: &SetMember| member.state.join(command, is_in_all, &member.moment);
    members.iter().map(join).collect()
}

/// The states as they are at their moments.
fn live(members: &[SetMember]) -> Vec<LockState> {
    members.iter().map(|member| member.state.live(&member.moment)).collect()
}

fn renewals(set: &LockSet, replies: Vec<LockReply>) -> SetRenewReply {
    let (mut leases, mut lost) = (Vec::new(), Vec::new());
    for (name, reply) in set.names().iter().zip(replies) {
        match reply {
            LockReply::Renew(RenewReply::Renewed(lease)) => leases.push(lease),
            LockReply::Renew(RenewReply::Lost(loss)) => {
                lost.push(LostLock { name: name.clone(), loss });
            }
            _ => {}
        }
    }
    if lost.is_empty() { SetRenewReply::Renewed(leases) } else { SetRenewReply::Lost(lost) }
}

fn releases(set: &LockSet, replies: Vec<LockReply>) -> SetRelease {
    let mut all = SetRelease::default();
    for (name, reply) in set.names().iter().zip(replies) {
        let loss = match reply {
            LockReply::Release(ReleaseReply::Released, release) => {
                all.released.push((name.clone(), release));
                continue;
            }
            LockReply::Release(ReleaseReply::NotHeld, _) => LockLoss::NotHeld,
            LockReply::Release(ReleaseReply::Mismatch, _) => LockLoss::Mismatch,
            _ => continue,
        };
        all.lost.push(LostLock { name: name.clone(), loss });
    }
    all
}
