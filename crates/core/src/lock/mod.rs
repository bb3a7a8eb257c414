//! Locks: what they are, the rules they follow, and the service that keeps time for them.
//!
//! This module knows no HTTP and no store engine. [`LockState`] holds the rules as a pure
//! function, [`LockCommand`] and [`LockReply`] are the steps as data, and [`LockService`] is what a
//! handler calls.

mod command;
mod entries;
mod fencing_token;
mod history;
mod hold;
mod holders;
mod label;
mod lease;
mod limit;
mod name;
mod queue;
mod rules;
mod service;
mod set;
mod token;
mod waiting;
mod watch;
mod withdrawal;

pub use command::{
    AcquireCommand, AcquireReply, BreakCommand, BreakReply, Contention, LockCommand, LockLoss,
    LockReply, LostLock, ReleaseReply, RenewReply,
};
pub use entries::{Entries, Entry};
pub use fencing_token::{FencingToken, Moment};
pub use history::{Break, EndCause, GrantEnd, History};
pub use hold::{HoldEvent, HoldObserver, HoldRefusal, HoldRequest, LossReason};
pub use holders::HolderState;
pub use label::{EntryName, InvalidLabel, Owner, Reason};
pub use lease::{Change, Holder, HolderId, Holding, InvalidTtl, Lease, Ttl, Waiter};
pub use limit::{InvalidSlots, Limit, Slots};
pub use name::{InvalidName, LockName};
pub use queue::{QueueEntry, WaitQueue};
pub use rules::LockState;
pub use service::{
    AcquireRequest, Acquisition, Grant, LockCounts, LockError, LockService, Renewal, Validity,
    WaiterLimits,
};
pub use set::{InvalidLockSet, LockSet};
pub use token::{Attempt, InvalidToken, Token, TokenHash};
pub use watch::WatchEvent;
