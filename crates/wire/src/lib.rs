//! The JSON of the keylatch API: what a client sends and what the service answers.
//!
//! The service writes these types and every Rust client reads them, so both sides have one
//! definition. [`lock`] has the requests and answers about locks, [`event`] the data of
//! server-sent events, [`record`] the requests and answers about idempotency keys, [`system`]
//! what the service reports about itself, and [`problem`] every way in which a request can fail:
//! the one table of statuses.
//!
//! Requests refuse members that they do not know, so a misspelt member is an error. Answers
//! ignore them, so an older client reads a newer service. This crate knows serde alone; the
//! feature `openapi` adds the schemas that the service publishes. Lengths of time are whole
//! milliseconds, points in time are RFC 3339 in UTC and for people to read.
//!
//! ```
//! use keylatch_wire::{Code, CreateLockRequest, Lease, ProblemDocument};
//!
//! # fn main() -> Result<(), serde_json::Error> {
//! let request = CreateLockRequest { ttl_ms: Some(30_000), ..CreateLockRequest::default() };
//! assert_eq!(serde_json::to_string(&request)?, r#"{"ttl_ms":30000}"#);
//!
//! let granted = r#"{"name":"deploy","token":"aPbOQ2c1kG0x3nN7mYw5","fencing_token":7,"owner":null,
//!     "ttl_ms":30000,"waited_ms":1,"valid_for_ms":29696,"expires_at":"2026-05-27T16:40:30Z"}"#;
//! let lease: Lease<'_> = serde_json::from_str(granted)?;
//! assert_eq!(lease.waited_ms + lease.valid_for_ms, 29_697);
//! assert!(!format!("{lease:?}").contains("aPbOQ2c1kG0x3nN7mYw5"), "a token is never printed");
//!
//! let refused = serde_json::to_string(&ProblemDocument::new(Code::LockHeld, "It is held."))?;
//! let problem: ProblemDocument = serde_json::from_str(&refused)?;
//! assert!(problem.is(Code::LockHeld));
//! # Ok(())
//! # }
//! ```

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod event;
pub mod lock;
mod lock_set;
mod number;
pub mod problem;
pub mod record;
pub mod system;

use std::time::Duration;

pub use event::{EmptyEvent, EndEvent, LossEvent, RenewalEvent, SnapshotEvent, WaitingEvent};
pub use lock::{
    BreakLockRequest, BreakNote, CreateLockRequest, EndKind, EndWaitRequest, FirstWaiter, GrantEnd,
    HeldLock, HoldLockRequest, Holder, Lease, LockBreak, LockEntries, LockHistory, LockMode,
    LockPage, PublicHolder, PublicLock, RenewLockRequest, SecretToken, SharedLock,
};
pub use lock_set::{CreateLocksRequest, LeaseSet, LeasedLock, LostLock, RenewLocksRequest};
pub use number::whole_number;
pub use problem::{Code, Effect, ProblemDocument, Retry};
pub use record::{
    BeginRecordRequest, CompleteRecordRequest, DescribedRequest, FailRecordRequest, HeaderValues,
    IdempotencyAnswer, IdempotencyRecord, IssueKeyRequest, IssuedKey, ListedRecord, OnCrash,
    RecordPage, ResolveRecordRequest, SettlementNote,
};
pub use system::{ObservedGuard, ServiceInfo, StoreInfo};

/// A length of time as the API writes it: whole milliseconds, rounded down.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time for people: to a tenth of a second within two minutes, and in its two largest units
/// beyond.
pub fn in_words(millis: u64) -> String {
    let seconds = millis / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0..120 => format!("{seconds}.{} s", millis / 100 % 10),
        120..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
